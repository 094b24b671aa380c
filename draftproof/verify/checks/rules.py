"""Accept rules as pure functions, by exact enumeration on tiny vocabularies: no sampling, no error rate.

Knows the formulas of the rules (DESIGN.md, section 2), not their code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from draftproof.verify.checks import trees
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.scripted import Racing, Recording
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Floats, Result, RuleUnderTest, World
from draftproof.verify.enumerate import Fixed, Step, joint_law, law_of

Tokens = tuple[int, ...]
Table = Callable[[Tokens], Floats]
TOLERANCE = 1e-9


class Setting(NamedTuple):
    """A tiny world: laws for every prefix, and a draft length."""

    kind: str
    vocab: int
    k: int
    p: Table
    q: Table


def settings(seed: int, level: str) -> Iterator[Setting]:
    """Vocabularies 2 to 4, draft lengths 1 to 4, dense laws, laws with zeros, one-hots, equal and disjoint pairs."""
    shapes = [(2, 1), (2, 2), (3, 1), (3, 2), (2, 3)]
    shapes += [] if level == "quick" else [(4, 1), (4, 2), (3, 3), (2, 4)]
    for (vocab, k), kind in product(shapes, ("dense", "zeros", "one-hot", "equal", "disjoint")):
        if vocab**k <= 16 or kind in {"dense", "zeros"}:
            yield Setting(kind, vocab, k, _table(kind, vocab, seed, 0), _table(kind, vocab, seed, 1))


def _table(kind: str, vocab: int, seed: int, which: int) -> Table:
    stream = 0 if kind == "equal" else which

    @cache
    def law(prefix: Tokens) -> Floats:
        rng = np.random.default_rng([seed, stream, vocab, len(prefix), *prefix])
        weights = rng.random(vocab) + 0.05
        if kind == "zeros":
            weights[rng.permutation(vocab)[: rng.integers(0, vocab)]] = 0.0
        elif kind == "one-hot":
            weights = np.eye(vocab)[rng.integers(vocab)]
        elif kind == "disjoint":
            weights[which::2] = 0.0
        weights.flags.writeable = False
        return np.asarray(weights / weights.sum())

    return law


def _block(rule: RuleUnderTest, s: Setting, prefix: Tokens, noise: Any) -> tuple[Tokens, int]:
    """One step of the rule behind `prefix`: the emitted tokens, and how many were accepted."""
    tokens: list[int] = []
    laws = []
    for i in range(s.k):
        laws.append(rule.law(s.q((*prefix, *tokens))))
        tokens.append(rule.draw(laws[-1], noise, i))
    rows = [rule.law(s.p((*prefix, *tokens[:i]))) for i in range(s.k + 1)]
    verdict = rule.verdict(rows, rule.draft(tokens, laws), noise)
    return (*tokens[: verdict.accepted], verdict.token), verdict.accepted


class _RuleCheck(BaseCheck):
    needs = frozenset({Ability.RULES})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del world, alpha
        return self.judged([engine.rule(name) for name in engine.rules], budget)

    def judged(self, rules: Sequence[RuleUnderTest], budget: Budget) -> Result:
        tried = 0
        for rule in rules:
            for s in self._settings(budget):
                tried += 1
                fault = self._fault(rule, s)
                if fault is not None:
                    where = {"rule": rule.name, "laws": s.kind, "vocabulary": s.vocab, "k": s.k, "seed": budget.seed}
                    return self.fails(tried, {**where, **fault})
        return self.holds(tried, note=f"{tried} settings enumerated; every path, no sampling")

    def _settings(self, budget: Budget) -> Iterator[Setting]:
        return settings(budget.seed, budget.level)

    def _fault(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        raise NotImplementedError


class RulesJoint(_RuleCheck):
    name = "rules/joint"
    claim = "the accept rules emit the target's joint law over several steps"

    def _fault(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        length = s.k + 2 if s.vocab**s.k <= 9 else s.k + 1
        return self._gap(s, length, lambda prefix, _, noise: _block(rule, s, prefix, noise)[0]) or self._tree(rule, s)

    def _tree(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        """Trees of both kinds, over more steps than one."""
        fits = rule.trees and (s.vocab, s.k) == (3, 2) and s.kind in {"dense", "zeros"}
        for shape, sampled in product(trees.SHAPES if fits else (), (True, False)):

            def step(prefix: Tokens, _: int, noise: Any, shape: Any = shape, sampled: bool = sampled) -> Tokens:
                return trees.step(rule, s.p, prefix, trees.drawn(s.q, prefix, shape, sampled, noise), noise)

            if gap := self._gap(s, 3, step):
                return {"tree": shape, "siblings": "sampled" if sampled else "point masses", **gap}
        return None

    def _gap(self, s: Setting, length: int, step: Step) -> dict[str, Any] | None:
        seen = joint_law(step, length)
        worst = max(product(range(s.vocab), repeat=length), key=lambda t: abs(seen.get(t, 0.0) - _joint(s.p, t)))
        if abs(seen.get(worst, 0.0) - _joint(s.p, worst)) <= TOLERANCE:
            return None
        return {"tokens": worst, "expected": _joint(s.p, worst), "seen": seen.get(worst, 0.0)}


def _joint(p: Table, tokens: Tokens) -> float:
    return float(np.prod([p(tokens[:i])[x] for i, x in enumerate(tokens)]))


class RulesAcceptance(_RuleCheck):
    name = "rules/acceptance"
    claim = "the accept rules accept as many tokens as their own law says"

    def _fault(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        if rule.acceptance not in ACCEPTED:
            return None
        seen = law_of(lambda noise: _block(rule, s, (), noise)[1])
        mean = sum(n * probability for n, probability in seen.items())
        expected = ACCEPTED[rule.acceptance](s)
        return None if abs(mean - expected) <= TOLERANCE else {"expected accepted": expected, "seen": mean}


def _chain(s: Setting, match: Callable[[Floats, Floats, int], float]) -> float:
    """Expected length of the accepted prefix when position i stands with `match`, given that all before it stood."""
    paths = (t for i in range(1, s.k + 1) for t in product(range(s.vocab), repeat=i))
    return sum(float(np.prod([match(s.p(t[:j]), s.q(t[:j]), x) for j, x in enumerate(t)])) for t in paths)


def _coupled(p: Floats, q: Floats, x: int) -> float:
    return 0.0 if p[x] == 0 or q[x] == 0 else 1.0 / float(np.maximum(p / p[x], q / q[x]).sum())


def _block_accepted(s: Setting) -> float:
    """Sun et al. 2024: expected last i with u_i < h_i, over all drafts."""
    total = 0.0
    for path in product(range(s.vocab), repeat=s.k):
        drawn, ratio, heights = 1.0, 1.0, []
        for i, x in enumerate(path):
            p, q = s.p(path[:i])[x], s.q(path[:i])[x]
            if q == 0:
                drawn = 0.0
                break
            drawn, ratio = drawn * q, min(ratio * p / q, 1.0)
            rest = float(np.maximum(ratio * s.p(path[: i + 1]) - s.q(path[: i + 1]), 0).sum())
            bottom = rest + 1 - ratio
            heights.append(ratio if i + 1 == s.k else (rest / bottom if bottom > 0 else 1.0))
        later = 1.0
        for n in range(len(heights), 0, -1):
            total += drawn * later * heights[n - 1] * n
            later *= 1 - heights[n - 1]
    return total


ACCEPTED: dict[str, Callable[[Setting], float]] = {
    "token": lambda s: _chain(s, lambda p, q, x: min(p[x], q[x])),
    "sampled": lambda s: _chain(s, lambda p, q, x: p[x] * q[x]),
    "coupled": lambda s: _chain(s, _coupled),
    "block": _block_accepted,
}


class RulesBoundary(_RuleCheck):
    name = "rules/boundary"
    claim = "the accept rules are right at the edges: u = 0, the largest u below 1, p = 0, p = q, underflow, NaN"

    def _settings(self, budget: Budget) -> Iterator[Setting]:
        del budget
        yield Setting("edges", 2, 1, lambda _: np.array([0.0, 1.0]), lambda _: np.array([1.0, 0.0]))

    def _fault(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        del s
        zero, top = Fixed(0.0), Fixed(1.0 - 2.0**-53)
        impossible = self._verdict(rule, [0.0, 1.0], [1.0, 0.0], 0, zero)
        if impossible != (0, 1):
            return {"p": [0, 1], "q": [1, 0], "draft": 0, "u": 0.0, "expected": (0, 1), "seen": impossible}
        same = self._verdict(rule, [0.0, 1.0], [0.0, 1.0], 1, top)
        if same != (1, 1):
            return {"p": [0, 1], "q": [0, 1], "draft": 1, "u": "largest below 1", "expected": (1, 1), "seen": same}
        return self._underflow(rule) or self._nan(rule)

    def _verdict(self, rule: RuleUnderTest, p: list[float], q: list[float], x: int, noise: Fixed) -> tuple[int, int]:
        rows = [rule.law(np.array(p)), rule.law(np.array(p))]
        verdict = rule.verdict(rows, rule.draft([x], [rule.law(np.array(q))]), Racing(noise))
        return verdict.accepted, verdict.token

    def _underflow(self, rule: RuleUnderTest) -> dict[str, Any] | None:
        """q(x) = 0 for a drawn token, as half precision makes of 1e-8, must not be accepted whatever u is."""
        if rule.acceptance in {"sampled", "coupled"}:
            return None  # their verdict does not use q
        try:
            seen = self._verdict(rule, [1e-6, 1 - 1e-6], [0.0, 1.0], 0, Fixed(0.5))
        except Exception:  # noqa: BLE001  any refusal is right
            return None
        wanted = {"p": [1e-6, 1 - 1e-6], "q": [0, 1], "draft": 0, "u": 0.5, "expected": "not accepted", "seen": seen}
        return wanted if seen[0] else None

    def _nan(self, rule: RuleUnderTest) -> dict[str, Any] | None:
        try:
            seen = self._verdict(rule, [0.5, 0.5], [float("nan"), 0.5], 0, Fixed(0.5))
        except Exception:  # noqa: BLE001  any refusal is right
            return None
        if rule.acceptance in {"sampled", "coupled"}:
            return None
        return {"p": [0.5, 0.5], "q": ["nan", 0.5], "draft": 0, "expected": "an error", "seen": seen}


class RulesPure(_RuleCheck):
    name = "rules/pure"
    claim = "the accept rules are pure: same input, same answer, no input changed, no uniform asked for twice"

    def _settings(self, budget: Budget) -> Iterator[Setting]:
        return (s for s in settings(budget.seed, "quick") if s.kind in {"dense", "zeros"})

    def _fault(self, rule: RuleUnderTest, s: Setting) -> dict[str, Any] | None:
        for seed in range(40):
            answers, asked = [], []
            tables = {
                t: (s.p(t).copy(), s.q(t).copy()) for i in range(s.k + 1) for t in product(range(s.vocab), repeat=i)
            }
            rows_of, drafts_of = ({t: rule.law(pair[which]) for t, pair in tables.items()} for which in (0, 1))
            for _ in range(2):  # on the same law objects
                noise = Recording(seed)
                answers.append(_on_objects(rule, s, rows_of, drafts_of, noise))
                asked.append(noise.twice)
            if answers[0] != answers[1]:
                return {"noise seed": seed, "first answer": answers[0], "second answer": answers[1]}
            if asked[0]:
                return {"noise seed": seed, "asked for twice": [str(key) for key in asked[0]]}
            if any(
                not np.array_equal(s.p(t), pair[0]) or not np.array_equal(s.q(t), pair[1]) for t, pair in tables.items()
            ):
                return {"noise seed": seed, "changed": "an input array"}
        return None


def _on_objects(
    rule: RuleUnderTest, s: Setting, rows_of: dict[Tokens, Any], drafts_of: dict[Tokens, Any], noise: Any
) -> tuple[int, int]:
    tokens: list[int] = []
    laws = []
    for i in range(s.k):
        laws.append(drafts_of[tuple(tokens)])
        tokens.append(rule.draw(laws[-1], noise, i))
    rows = [rows_of[tuple(tokens[:i])] for i in range(s.k + 1)]
    verdict = rule.verdict(rows, rule.draft(tokens, laws), noise)
    return verdict.accepted, verdict.token


CHECKS: tuple[_RuleCheck, ...] = (RulesJoint(), RulesAcceptance(), RulesBoundary(), RulesPure())
