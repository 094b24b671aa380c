"""Each planted fault really is one: it shows on some input. That its check sees it is the kill matrix's to test.

A mutant and an honest engine of the same settings answer a list of probes; their answers must differ. Knows no check.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from draftproof.verify.contract import EngineUnderTest, Job, Mutant, Params, RuleUnderTest
from draftproof.verify.mutants import BROKEN, HONEST, MUTANTS, SILENT, WORLDS, Honest, Variant
from draftproof.verify.mutants.build import built

CHECKS = {
    *(f"rules/{name}" for name in ("joint", "acceptance", "boundary", "pure")),
    *(f"law/{name}" for name in ("joint", "penalties", "filters", "masks", "ends")),
    *(f"bitwise/{name}" for name in ("speculation", "batch", "order", "abort", "preempt")),
    *(f"ends/{name}" for name in ("pairs", "context", "books", "streamed")),
    "acceptance/counts",
    "stream/evidence",
    "blackbox/two-sample",
}


def test_there_are_enough_and_every_check_has_one() -> None:
    assert len(MUTANTS) >= 35
    assert {m.check for m in MUTANTS} == CHECKS
    names = [x.name for x in (*MUTANTS, *HONEST, *SILENT, *BROKEN)]
    assert len(set(names)) == len(names)
    assert all(m.world in WORLDS for m in MUTANTS)


def test_all_can_be_sent_to_a_worker() -> None:
    for x in (*MUTANTS, *HONEST, *SILENT, *BROKEN):
        assert pickle.loads(pickle.dumps(x)) == x or pickle.loads(pickle.dumps(x)).name == x.name


# probes


class Scripted:
    """Noise from a list of numbers by key, which remembers what was asked."""

    def __init__(self, seed: int, fixed: float | None = None) -> None:
        self._seed, self._fixed = seed, fixed
        self.asked: list[tuple[int, ...]] = []

    def uniform(self, *key: int) -> float:
        self.asked.append(key)
        return float(np.random.default_rng([self._seed, *key]).random()) if self._fixed is None else self._fixed

    def sample(self, offset: int) -> float:
        return self.uniform(offset, 99)

    def race(self, offset: int) -> ScriptedRace:
        return ScriptedRace(self._seed, offset)


class ScriptedRace:
    def __init__(self, seed: int, offset: int) -> None:
        self._key = [seed, offset]

    def winner(self, law: Any) -> int:
        return int((law.dense() / np.random.default_rng(self._key).exponential(size=len(law.dense()))).argmax())


def edges(rule: RuleUnderTest) -> Iterator[object]:
    """Verdicts at the edges; a refusal is an answer."""
    nan = float("nan")
    for p, q, x, u in (
        ([0.0, 1.0], [1.0, 0.0], 0, 0.0),
        ([0.0, 1.0], [0.0, 1.0], 1, 1 - 2.0**-53),
        ([1e-9, 1 - 1e-9], [1e-8, 1 - 1e-8], 0, 0.5),
        ([0.5, 0.5], [nan, 0.5], 0, 0.5),
    ):
        try:
            laws = [rule.law(np.array(law)) for law in (p, p, q)]
            yield tuple(rule.verdict(laws[:2], rule.draft([x], laws[2:]), Scripted(1, u)))  # type: ignore[arg-type]
        except (ValueError, ArithmeticError) as error:
            yield type(error).__name__


def calls(rule: RuleUnderTest) -> Iterator[object]:
    """Verdicts on random laws, with what was asked of the noise and what became of the laws."""
    for seed in range(150):
        rng, noise = np.random.default_rng(seed), Scripted(seed)
        arrays = [rng.dirichlet(np.ones(4)) for _ in range(5)]
        laws = [rule.law(a) for a in arrays]
        tokens = [rule.draw(q, noise, i) for i, q in enumerate(laws[3:])]
        verdict = rule.verdict(laws[:3], rule.draft(tokens, laws[3:]), noise)
        yield tokens, verdict.accepted, verdict.token, noise.asked, [law.dense().tolist() for law in laws]


def trees(rule: RuleUnderTest) -> Iterator[object]:
    """Verdicts on a small tree of random laws: two children, the second with two of its own."""
    for seed in range(60 if rule.trees else 0):
        rng = np.random.default_rng(seed)
        laws = [rule.law(rng.dirichlet(np.ones(4))) for _ in range(9)]
        yield rule.verdict(laws[:5], rule.draft((0, 1, 2, 3), laws[5:], (0, 0, 2, 2)), Scripted(seed))


def jobs(rules: tuple[str, ...], stop: bool, **more: Any) -> list[Job]:
    """Sixty seeded jobs with everything in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.6, "top_p": 0.8},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"repetition_penalty": 1.7, "top_k": 3},
        {"min_p": 0.3, "logit_bias": ((1, 1.5), (2, -2.0))},
        {"temperature": 0.0},
    )
    ends: tuple[dict[str, Any], ...] = ({"stop": ("ab", "c")}, {"min_tokens": 3, "stop_token_ids": (0, 4)})
    return [
        Job(
            tuple((n + i * (n // 6 % 3 + 1)) % 6 for i in range(1 + n % 6)),
            Params(
                **{"max_tokens": 3 + n % 12, "k": 1 + n % 4, "rule": rules[n % len(rules)]}
                | kinds[n % len(kinds)]
                | (ends[n // 6 % 2] if stop else {})
                | more
            ),
            seed=n,
        )
        for n in range(60)
    ]


def answers(engine: EngineUnderTest) -> Iterator[object]:
    """All that an engine says to the probes, the cheap ones first."""
    for name in engine.rules:
        yield list(edges(engine.rule(name)))
        yield list(calls(engine.rule(name)))
        yield list(trees(engine.rule(name)))
    for asked in (jobs(engine.rules, stop=False), jobs(engine.rules, stop=True)):
        yield [engine.sample([job])[0] for job in asked]
        yield engine.sample(asked)
        yield engine.sample_tight(asked)
        for after in (1, 2):
            yield engine.sample_aborting(asked, dict.fromkeys(range(0, 60, 3), after))
        yield [list(engine.stream(job)) for job in asked]
    unseeded = [replace(job, seed=None) for job in jobs(engine.rules, stop=False)]
    yield len({s.tokens for s in engine.sample(unseeded[:1] * 5)})
    yield engine.sample(jobs(engine.rules, stop=False, max_tokens=30)[:12])
    full = [tuple(n * i % 6 for i in range(engine.context - 3)) for n in range(1, 5)]
    yield engine.sample([Job(prompt, Params(temperature=0.0, max_tokens=9, k=4), seed=1) for prompt in full])


@cache
def honest_answers(rules: tuple[str, ...], world: str) -> list[object]:
    return list(answers(built(WORLDS[world](), "honest", rules=rules)))


def first_difference(engine: EngineUnderTest, world: str) -> int | None:
    wanted = honest_answers(tuple(engine.rules), world)
    return next((n for n, (a, b) in enumerate(zip(answers(engine), wanted, strict=True)) if a != b), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_differs_from_the_honest_engine(mutant: Mutant) -> None:
    assert first_difference(mutant.make(WORLDS[mutant.world]()), mutant.world) is not None


@pytest.mark.parametrize("rules", [("token",), ("block",), ("sampled", "coupled")])
def test_an_honest_engine_does_not_differ_from_itself(rules: tuple[str, ...]) -> None:
    assert first_difference(built(WORLDS["tabular"](), "another name", rules=rules), "tabular") is None


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.check.startswith("rules/")], ids=lambda m: m.name)
def test_faults_of_engines_leave_their_rules_alone(mutant: Mutant) -> None:
    """So that the check that is named must see them, and enumeration of the rules cannot."""
    if mutant.check == "blackbox/two-sample":
        pytest.skip("a black box shows no rules")
    engine = mutant.make(WORLDS[mutant.world]())
    for name in engine.rules:
        honest = Honest(WORLDS["tabular"]()).rule(name)
        assert list(calls(engine.rule(name))) == list(calls(honest))
        assert list(trees(engine.rule(name))) == list(trees(honest))


# engines that cannot be tested


@pytest.mark.parametrize("variant", SILENT, ids=lambda v: v.name)
def test_silent_engines_propose_nothing(variant: Variant) -> None:
    samples = variant.make(WORLDS["tabular"]()).sample(jobs(Honest.rules, stop=False))
    assert all(s.proposed == 0 and s.tokens for s in samples)


@pytest.mark.parametrize("variant", BROKEN, ids=lambda v: v.name)
def test_broken_engines_raise_or_return_garbage(variant: Variant) -> None:
    world, asked = WORLDS["tabular"](), jobs(Honest.rules, stop=False)
    try:
        samples = variant.make(world).sample(asked)
    except RuntimeError:
        return
    fine = len(samples) == len(asked) and all(
        s.error is None and s.tokens and all(0 <= t < world.vocab for t in s.tokens) for s in samples
    )
    assert not fine
