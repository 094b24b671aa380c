"""Acceptance against its own law (I2): the one place where a wrong draft shows, since the output hides it.

Knows, of each rule, only the probability that the first draft token of a step is accepted; from `oracle.acceptance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import Tokens, prompts, sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Sample, World
from draftproof.verify.stats import Looks, bernoulli_sum_test, detectable_bias

_COUNT = {"quick": 1_500, "default": 12_000, "deep": 60_000}
_KNOWN = ("token", "block", "sampled", "coupled")
_STEPS = 3  # steps with a draft that are looked at: state that goes stale shows from the second on


class Row(NamedTuple):
    """Acceptance in one step: what p and q say, and what was seen."""

    name: str
    expected: float
    seen: float
    samples: int


class AcceptanceCounts(BaseCheck):
    name = "acceptance/counts"
    claim = "the first draft token of a step is accepted as often as p and q say, in early and in later steps"
    needs = frozenset({Ability.STEPS})
    statistical = True

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        rules = [r for r in engine.rules if r in _KNOWN]
        if world.draft is None or not rules:
            return self.untested("the draft's law is not known: acceptance has no law to be compared with")
        claims, count, lowest, seen = len(rules) * _STEPS, _COUNT[budget.level], 1.0, 0
        looks = Looks(alpha / claims)
        rows: list[Row] = []
        for rule in rules:
            for look, found in enumerate(_observe(engine, world, rule, looks.sizes(count), budget.seed)):
                if not all(found):
                    return self.untested(f"rule {rule or 'default'}: nothing was proposed in a step before the third")
                p_value, step = min((bernoulli_sum_test(*_sums(pairs)), n) for n, pairs in enumerate(found))
                lowest = min(lowest, looks.adjusted(look, p_value))
                if p_value <= looks.alpha_at(look):
                    wrong = _row(step, rule, *_sums(found[step]))
                    plots = {"acceptance": _plot([*rows, wrong])}
                    return self.fails(seen + sum(map(len, found)), _witness(rule, wrong), lowest * claims, plots)
            rows += [_row(n, rule, *_sums(pairs)) for n, pairs in enumerate(found)]
            seen += sum(map(len, found))
        bias = detectable_bias([0.5] * count, looks.alpha_at(len(looks) - 1), budget.power)
        result = self.holds(seen, f"a bias of {bias:.3f} would be seen", {"acceptance": _plot(rows)})
        return replace(result, p_value=min(1.0, lowest * claims), detectable_tv=bias, power=budget.power)


def _sums(pairs: Sequence[tuple[bool, float]]) -> tuple[int, list[float]]:
    return sum(a for a, _ in pairs), [p for _, p in pairs]


def _row(step: int, rule: str, hits: int, chances: Sequence[float]) -> Row:
    n = len(chances)
    return Row(str(step + 1) if step else rule, sum(chances) / n, hits / n, n)


def _witness(rule: str, row: Row) -> dict[str, object]:
    return {"rule": rule, "step": row.name, "expected": row.expected, "seen": row.seen, "samples": row.samples, "k": 1}


def _observe(
    engine: EngineUnderTest, world: World, rule: str, sizes: Sequence[int], seed: int
) -> Iterator[list[list[tuple[bool, float]]]]:
    """At each size, for each of the first steps: (accepted, its probability) of the samples that proposed in it."""
    params, some = Params(max_tokens=2 * _STEPS, k=1, rule=rule), prompts(world, 4)
    jobs = [Job(some[n % len(some)], params, seed=seed * 1_000_003 + n) for n in range(sizes[-1])]
    chances: dict[tuple[Tokens, Tokens], float] = {}
    found: list[list[tuple[bool, float]]] = [[] for _ in range(_STEPS)]
    for begin, end in pairwise((0, *sizes)):
        for start in range(begin, end, 1000):
            part = jobs[start : min(start + 1000, end)]
            for job, sample in zip(part, sound(part, engine.sample(part)), strict=True):
                _add(found, world, job, sample, chances)
        yield found


def _add(
    found: Sequence[list[tuple[bool, float]]],
    world: World,
    job: Job,
    sample: Sample,
    chances: dict[tuple[Tokens, Tokens], float],
) -> None:
    place, step = 0, 0
    for count in sample.steps or ():
        if count.proposed > 0 and step < _STEPS:
            at = (job.prompt, sample.tokens[:place])
            if at not in chances:
                chances[at] = oracle.acceptance(world, *at, job.params, job.params.rule)
            found[step].append((count.accepted > 0, chances[at]))
            step += 1
        place += count.accepted + 1


def _plot(rows: Sequence[Row]) -> dict[str, object]:
    names, expected, seen, n = zip(*rows, strict=True)
    return {"positions": list(names), "expected": list(expected), "seen": list(seen), "n": list(n)}


CHECKS = (AcceptanceCounts(),)
