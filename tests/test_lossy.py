"""Lossy rules: the TV that they state is the TV that they cause, by enumeration; they are refused and named as such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toys import drafting, random_table, toy_engine
from worlds import World, distance, honest

from draftproof.accept import RULES, ProposerError
from draftproof.lossy import LOSSY, Lenience, LossyRule, Typical, parse
from draftproof.noise import StepNoise
from draftproof.types import Draft, Law, RequestError, SamplingParams, Verdict
from draftproof.verify.enumerate import joint_law, law_of

EXACT = 1e-12
FLAVOURS = [
    "dense",
    "zeros",
    "sparse",
    "one-hot target",
    "one-hot draft",
    "point draft",
    "equal",
    "disjoint",
    "float32",
]
NAMED = {
    name: parse(name) for name in ("lenience:1.2", "lenience:3", "typical:0.2", "typical:0.4,0.5", "typical:0.9,0.9")
}


def law_at_one(rule: Any, p: Law, q: Law) -> NDArray[np.float64]:
    """The law of the first token of a step with one draft, by enumeration."""
    world = World.constant(p, q)
    law = law_of(lambda noise: honest(rule).step(world, 1)((), 0, noise)[0])
    return np.array([law.get(x, 0.0) for x in range(p.vocab)])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_stated_law_and_tv_are_those_of_the_rule(name: str, flavour: str) -> None:
    rule = NAMED[name]
    assert rule is not None
    for seed in range(6):
        world = World(4, flavour, seed=seed)
        p, q = world.p(()), world.q(())
        law = law_at_one(rule, p, q)
        assert law == pytest.approx(rule.law(p, q), abs=EXACT)
        draft = Draft((int(np.flatnonzero(q.dense())[0]),), (q,))
        verdict = rule.verdict([p, p], draft, StepNoise(seed, 0))
        assert rule.tv([p, p], draft, verdict) == pytest.approx(0.5 * np.abs(law - p.dense()).sum(), abs=EXACT)


def test_tv_is_the_mean_over_the_positions_that_were_judged() -> None:
    rule, world = Lenience(2.0), World(4, "dense")
    tokens = (0, 1, 2)
    rows, draft = world.rows((), tokens), Draft(tokens, tuple(world.q(tokens[:i]) for i in range(3)))
    gaps = [0.5 * float(np.abs(rule.law(rows[i], draft.laws[i]) - rows[i].dense()).sum()) for i in range(3)]
    for n, judged in enumerate([1, 2, 3, 3]):
        assert rule.tv(rows, draft, Verdict(n, 0, "bonus")) == pytest.approx(np.mean(gaps[:judged]))  # type: ignore[arg-type]
    assert rule.tv(rows[:1], Draft(), Verdict(0, 0, "bonus")) == 0.0  # type: ignore[arg-type]


def test_a_lenience_of_nearly_one_is_nearly_exact_and_a_large_one_is_the_draft() -> None:
    world = World(3, "dense")
    target = world.target(3)
    errors = [distance(joint_law(honest(Lenience(1 + e)).step(world, 2), 3), target) for e in (1e-9, 1e-3, 0.1, 1.0)]  # type: ignore[arg-type]
    assert errors == sorted(errors)
    assert errors[0] < 1e-8
    assert errors[-1] > 1e-2
    assert Lenience(1e9).law(world.p(()), world.q(())) == pytest.approx(world.q(()).dense(), abs=1e-9)


def test_typical_by_hand() -> None:
    """Entropy of p is 0.802 nats: the bar is min(0.3, 0.5 exp(-0.802) = 0.224); the third token does not pass it."""
    p, q = Law(3, None, np.array([0.7, 0.2, 0.1])), Law(3, None, np.array([0.1, 0.4, 0.5]))
    rule = Typical(0.3, 0.5)
    assert rule.accepted(p.dense(), q.dense()).tolist() == [0.1, 0.0, 0.0]
    assert rule.law(p, q) == pytest.approx(np.array([0.1, 0, 0]) + 0.9 * np.array([0.7, 0.2, 0.1]))


@pytest.mark.parametrize("text", ["lenience:1", "lenience:0.5", "lenience:nan", "lenience:inf", "lenience:-2"])
def test_lenience_must_be_above_one(text: str) -> None:
    with pytest.raises(RequestError, match="above 1"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["lenience", "lenience:", "lenience:x", "typical:a,b", "typical:0.1,", "typical:0.1,b"]
)
def test_a_malformed_parameter_is_refused(text: str) -> None:
    if text == "typical:0.1,":
        assert parse(text) == Typical(0.1, 0.1**0.5)
        return
    with pytest.raises(RequestError, match="write the parameter as a number"):
        parse(text)


@pytest.mark.parametrize("text", ["typical:0", "typical:1", "typical:0.5,1", "typical:0.5,0"])
def test_typical_must_lie_between_0_and_1(text: str) -> None:
    with pytest.raises(RequestError, match=r"in \(0, 1\)"):
        parse(text)


def test_only_lossy_names_are_lossy() -> None:
    assert [parse(name) for name in RULES] == [None] * len(RULES)
    assert not RULES.keys() & LOSSY.keys()
    assert parse("lenience:1.5") == Lenience(1.5)


def test_a_claim_of_no_probability_is_refused() -> None:
    draft = Draft((0,), (Law(2, None, np.array([0.0, 1.0])),))
    p = Law(2, None, np.array([0.5, 0.5]))
    with pytest.raises(ProposerError):
        Lenience(2.0).verdict([p, p], draft, StepNoise(0, 0))


@pytest.mark.parametrize("rule", [*RULES, "lenience:1.5", "typical:0.3"])
def test_the_trace_shows_tv_for_lossy_rules_only(rule: str) -> None:
    engine = toy_engine(random_table(5, 1), 5, drafting(random_table(5, 2), 5))
    steps = engine.generate([[1]], SamplingParams(k=3, rule=rule, seed=1, max_tokens=20))[0].steps
    assert all(s.tv == 0.0 for s in steps) is (rule in RULES)


# planted faults


@dataclass(frozen=True, slots=True)
class Renormalised(Lenience):
    """The residual is p: another law than the one the TV is computed from."""

    def verdict(self, rows: Any, draft: Draft, noise: Any) -> Verdict:
        return Typical.verdict(Half(self.lenience), rows, draft, noise)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Half(Lenience):
    def fallback(self, p: Law, q: Law) -> Law:
        return p


@dataclass(frozen=True, slots=True)
class OtherScale(Lenience):
    """States the law of half the lenience."""

    def law(self, p: Law, q: Law) -> NDArray[np.float64]:
        return Lenience(1 + (self.lenience - 1) / 2).law(p, q)


@pytest.mark.parametrize("fault", [Renormalised(2.0), OtherScale(2.0)])
def test_planted_fault_is_seen(fault: LossyRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED, "fault", fault)
    with pytest.raises(AssertionError):
        test_stated_law_and_tv_are_those_of_the_rule("fault", "dense")
