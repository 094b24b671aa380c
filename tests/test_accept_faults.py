"""Each planted fault must be caught by its named check, and the honest rules must pass the same checks.

A check that lets a fault through proves nothing about the rules that pass it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from planted import FAULTS, SAMPLED, argmax, block_with, confident, discarding, draw_apart, token_with
from worlds import HONEST, Decoder, Tokens, World, distance, expected_accepted, proposing

from draftproof.accept import RULES, draw
from draftproof.types import Draft, Kind, Law, Verdict
from draftproof.verify.enumerate import Fixed, joint_law, law_of, mean_of

VISIBLE, EXACT = (
    1e-6,
    1e-12,
)  # a fault moves a probability by more than the first, an honest rule by less than the second


@cache
def world() -> World:
    return World(4, "dense", seed=7)


def joint(decoder: Decoder, rule: str) -> float:
    """The law of three tokens over one to three steps with noise of their own."""
    return distance(joint_law(decoder.step(world(), 2), 3), world().target(3))


def steps(decoder: Decoder, rule: str) -> float:
    """The law of three tokens over steps that share one noise, so that noise used in two steps is seen."""
    small = World(2, "dense", seed=7)
    return distance(joint_law(decoder.step(small, 1), 3, shared=True), small.target(3))


def requests(decoder: Decoder, rule: str) -> float:
    """The law of the first tokens of two requests in one batch, whose noise differs by origin."""
    small, prefixes = World(3, "dense", seed=7), ((0,) * 5, (1,) * 9)

    def batch(noise: Any) -> Tokens:
        return tuple(decoder.step(small, 1)(x, len(x), noise.at(len(x)))[0] for x in prefixes)

    p, q = (small.p(x).dense() for x in prefixes)
    return distance(law_of(batch), {(i, j): float(p[i] * q[j]) for i in range(3) for j in range(3)})


def acceptance(decoder: Decoder, rule: str) -> float:
    accepted = mean_of(lambda noise: decoder.judge(world(), (1,), 2, noise)[1].accepted)
    return abs(accepted - expected_accepted(rule, world(), (1,), 2))


def zero(decoder: Decoder, rule: str) -> float:
    """u = 0 and a draft token that the target forbids."""
    p, q = Law(2, None, np.array([0.0, 1.0])), Law(2, None, np.array([0.5, 0.5]))
    return float(decoder.verdict([p, p], Draft((0,), (q,)), Fixed(0.0)).accepted)


def one_hot(decoder: Decoder, rule: str) -> float:
    """p = q, all mass on one token: everything stands, and nothing is divided by nothing."""
    law = Law(3, None, np.array([0.0, 1.0, 0.0]))
    try:
        with np.errstate(all="raise"):
            verdict = decoder.verdict([law, law], Draft((1,), (law,)), Fixed(1 - 2.0**-53))
    except (ArithmeticError, ValueError):
        return 1.0
    return float(verdict != Verdict(1, 1, Kind.BONUS))


def tiny(decoder: Decoder, rule: str) -> float:
    """q(x) = 1e-8 and p(x) a tenth of it: rejected nine times in ten, for instance at u = 0.5."""
    p, q = Law(2, None, np.array([1e-9, 1.0])), Law(2, None, np.array([1e-8, 1.0]))
    return float(decoder.verdict([p, p], Draft((0,), (q,)), Fixed(0.5)).accepted)


def twice(decoder: Decoder, rule: str) -> float:
    """Two calls with the same arrays, the first of which rejects at once."""
    p, q = Law(2, None, np.array([0.1, 0.9])), Law(2, None, np.array([0.9, 0.1]))
    first, second = (decoder.verdict([p, p], Draft((0,), (q,)), Fixed(u)) for u in (0.9, 0.05))
    return float(first != Verdict(0, 1, Kind.RESIDUAL) or second.accepted != 1)


CHECKS = {c.__name__: c for c in (joint, steps, requests, acceptance, zero, one_hot, tiny, twice)}
FORCED = ("zero", "one_hot", "tiny", "twice")  # these script the accept uniform, which only two rules have


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str) -> None:
    decoder, rule, check = FAULTS[name]
    assert CHECKS[check](decoder, rule) > VISIBLE


@pytest.mark.parametrize(
    ("check", "rule"), [(c, r) for c in CHECKS for r in RULES if c not in FORCED or r in ("token", "block")]
)
def test_honest_rule_passes(check: str, rule: str) -> None:
    assert CHECKS[check](HONEST[rule], rule) < EXACT


@pytest.mark.parametrize(("rule", "rewritten"), [("token", token_with()), ("block", block_with())])
def test_rewritten_rules_are_honest_without_their_fault(rule: str, rewritten: Decoder) -> None:
    assert joint(rewritten, rule) < EXACT
    assert acceptance(rewritten, rule) < EXACT


def test_noise_of_the_first_step_is_invisible_in_the_first_token() -> None:
    """Case 10: why joint laws are tested."""
    decoder, small = FAULTS["10 draft noise of the first step in every step"][0], World(2, "dense", seed=7)
    assert distance(joint_law(decoder.step(small, 1), 1, shared=True), small.target(1)) < EXACT


def test_published_numbers_of_two_faults() -> None:
    """Worked by hand for p = [.6, .4], q = [.8, .2], and for four tokens."""
    pair = [0.6, 0.4], [0.8, 0.2]
    assert first_token("1 argmax draft, softmax claimed", *pair) == pytest.approx([0.75, 0.25])
    assert first_token("13 residual is p", *pair) == pytest.approx([0.72, 0.28])
    four = [0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.3, 0.2]
    assert first_token("13 residual is p", *four) == pytest.approx([0.4, 0.34, 0.195, 0.065])


def first_token(fault: str, p: list[float], q: list[float]) -> list[float]:
    here = World.constant(*(Law(len(p), None, np.array(w)) for w in (p, q)))
    law = joint_law(FAULTS[fault][0].step(here, 1), 1)
    return [law[t,] for t in range(len(p))]


def test_case_43_emitting_the_compared_sample_is_exact() -> None:
    for propose in (proposing(draw_apart), proposing(argmax), discarding, proposing(draw_apart, confident)):
        assert joint(replace(SAMPLED, propose=propose), "sampled") < EXACT


def test_case_44_a_deterministic_tree_verified_with_q_1_is_exact() -> None:
    """Two levels, the top two children at each node, chosen by argmax; each stands with its share of what is left."""

    def step(prefix: Tokens, origin: int, noise: Any) -> Tokens:
        emitted: Tokens = ()
        while len(emitted) < 2:
            left = world().p(prefix + emitted).dense().copy()
            children = np.argsort(-world().q(prefix + emitted).dense())[:2]
            for child in children:
                if noise.uniform(len(emitted), "stands", int(child)) * left.sum() < left[child]:
                    emitted += (int(child),)
                    break
                left[child] = 0.0
            else:
                return (*emitted, draw(Law(world().vocab, None, left), noise.uniform(len(emitted), "next")))
        return (*emitted, draw(world().p(prefix + emitted), noise.uniform(2, "next")))

    assert distance(joint_law(step, 3), world().target(3)) < EXACT
