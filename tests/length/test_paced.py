"""k = auto with proposers that stop where it no longer pays: what is chosen, what prices follow, and what it gains.

On the made-up machine of made_up.py; each draft token has a confidence, and stands as often as that says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from made_up import COSTS, FIXED, REQUESTS, SEEDS, TOKENS, View, mean

from draftproof.length import goodput
from draftproof.length.goodput import GoodputLength, Inputs, decide, prices
from draftproof.length.learned import Step
from draftproof.length.profile import Line, Profile
from draftproof.prices import Pace, Prices
from draftproof.types import Finish, Kind, Run, SamplingParams

HALVES = Profile(((1.0, 1.0), (2.0, 1.5), (3.0, 1.5), (9.0, 4.5)), ((1, Line(0.1, 0.2)),), ((1, Line(0.0, 0.0)),))


def inputs(
    chances: tuple[float, ...], proposals: tuple[float, ...], batch: int = 1, held: tuple[int, ...] = ()
) -> Inputs:
    return Inputs(batch, chances, proposals, held, False, paced=True)


def test_the_choice_is_between_plain_decoding_and_as_far_as_it_pays() -> None:
    """A fixed length of 1 would look best; with prices a longer one only adds what pays."""
    rare = inputs((0.9, 0.05, 0.9), (1.0, 0.1, 0.1))
    assert decide(HALVES, rare).choice == 3
    assert decide(HALVES, rare._replace(held=(1,))).choice == 3
    assert decide(HALVES, rare._replace(paced=False)).choice == 1
    assert decide(HALVES, inputs((0.1, 0.1, 0.1), (1.0, 1.0, 1.0))).choice == 0


def test_passes_that_are_not_made_cost_nothing() -> None:
    """Tokens 1 + .5, seconds 1.5 of two rows, .1 + .2 of one pass, half a row and half a pass more."""
    found = decide(HALVES, inputs((0.5, 0.0), (1.0, 0.5)))
    assert found.goodputs == pytest.approx((1.0, 1.5 / 1.8, 1.5 / (1.5 + 0.1 + 0.3)))


def test_prices_are_what_a_step_brings_in_the_time() -> None:
    decision = decide(HALVES, inputs((0.9, 0.9), (1.0, 1.0)))
    rate = decision.goodputs[2]
    assert decision.choice == 2
    found = prices(HALVES, decision)
    assert found.rows == pytest.approx((0.0, 0.5 * rate, 0.5 * rate))
    assert (found.begin, found.each) == pytest.approx((0.1 * rate, 0.2 * rate))


def test_a_row_holds_all_sequences_up_and_a_pass_serves_them_all() -> None:
    """Three others take two rows each; beyond six rows each takes a tenth of a second."""
    costs = replace(HALVES, verify=((1.0, 1.0), (6.0, 1.0), (9.0, 1.3)))
    four = decide(costs, inputs((0.99,), (1.0,), batch=4))
    rate = four.goodputs[1]
    assert rate == pytest.approx(1.99 / (1.2 + 0.1 + 0.2))
    found = prices(costs, four)
    assert found.rows == pytest.approx((0.0, rate * 4 * 0.1))
    assert found.each == pytest.approx(rate * 0.2)


def test_fixed_requests_and_other_proposers_have_no_prices() -> None:
    view, policy = View(1), GoodputLength(HALVES, paced=True)
    assert policy.prices(view) is None
    policy.choose(view, 1, 5)
    assert isinstance(policy.prices(view), Prices)
    other = GoodputLength(HALVES)
    other.choose(view, 1, 5)
    assert other.prices(view) is None


def test_plain_decoding_looks_up_what_pays_and_makes_no_pass() -> None:
    decision = decide(HALVES, inputs((0.1, 0.1), (1.0, 1.0)))
    found = prices(HALVES, decision)
    assert decision.choice == 0
    assert not found.pass_pays
    assert found.rows == pytest.approx((0.0, 0.5, 0.5))  # a plain step takes a second
    assert found.looked_up([0.9, 0.9]) == (2, pytest.approx(0.9 + 0.81 - 0.5))
    assert found.drafted(0.9) < 0.0
    policy, view = GoodputLength(HALVES, paced=True), View(1)
    for _ in range(80):
        k = policy.choose(view, 1, 5)
        view.tokens += [0]
        policy.observe(view, Run((0,), (Kind.RESIDUAL,), 1, 0, len(view.tokens)))
    policy.choose(view, 1, 5)
    assert k == 5
    assert policy.prices(view) is not None
    assert not policy.prices(view).pass_pays


def test_all_sequences_fit_into_a_pass() -> None:
    """The profile knows passes of nine rows at most; a seeded text must not depend on how many there are."""
    policy = GoodputLength(HALVES, paced=True)
    assert [policy.choose(View(n), batch, 12) for n, batch in enumerate((1, 2, 3, 4))] == [8, 3, 2, 1]
    seeded = [View(10 + n) for n in range(2)]
    for view in seeded:
        view.request = replace(view.request, params=SamplingParams(seed=1))
    assert [policy.choose(view, batch, 12) for view, batch in zip(seeded, (1, 4), strict=True)] == [3, 3]


Confidence = Callable[[random.Random], float]
SPREAD: Confidence = lambda rng: rng.betavariate(0.5, 0.9)  # noqa: E731
HOPELESS: Confidence = lambda rng: 0.0 * rng.random()  # noqa: E731


def rate(confidence: Confidence, policy: GoodputLength | None = None, k: int = 0, seed: int = 1) -> float:
    """Tokens a second."""
    rng, seconds = random.Random(seed), 0.0
    for name in range(REQUESTS):
        view = View(name)
        while view.left:
            asked = min(k, view.left - 1) if policy is None else policy.choose(view, 1, view.left - 1)
            sure, passes = drawn(confidence, rng, asked if len(view.tokens) > 2 else 0, policy and policy.prices(view))
            stood = next((i for i, c in enumerate(sure) if rng.random() >= c), len(sure))
            parts = COSTS.parts(1, passes, len(sure))
            seconds += sum(parts)
            view.tokens += [0] * (stood + 1)
            if policy is not None:
                kind = Kind.BONUS if stood == len(sure) else Kind.RESIDUAL
                finish = None if view.left else Finish.LENGTH
                policy.timed(Step(1 + len(sure), parts[0], 1, passes, parts[1]))
                policy.observe(view, Run((0,) * (stood + 1), (kind,), len(sure), stood, TOKENS - view.left, finish))
    return REQUESTS * TOKENS / seconds


def drawn(confidence: Confidence, rng: random.Random, asked: int, prices: Prices | None) -> tuple[list[float], int]:
    """Confidences of the draft's tokens, and the passes that it took."""
    pace, sure, passes = Pace(prices), list[float](), 0
    while len(sure) < asked and (not passes or pace.wants_a_pass()) and (prices is None or prices.pass_pays):
        passes += 1
        c = confidence(rng)
        rest = [(1.0 - c) / 1000] * 1000
        if not pace.takes(np.log(np.array([c + 1e-9, *rest]))):
            break
        sure.append(c)
    return sure, passes


def test_it_gains_over_every_fixed_length() -> None:
    best = max(mean(rate(SPREAD, k=k, seed=s) for s in SEEDS) for k in FIXED)
    assert mean(rate(SPREAD, GoodputLength(COSTS, paced=True), seed=s) for s in SEEDS) > 1.02 * best


def test_plain_decoding_where_nothing_helps() -> None:
    assert rate(HOPELESS, GoodputLength(COSTS, paced=True)) > 0.99 * rate(HOPELESS)


def test_planted_free_drafts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput, "prices", lambda _, decision: Prices((0.0,) * (decision.choice + 1)))
    best = max(rate(SPREAD, k=k) for k in FIXED)
    assert rate(SPREAD, GoodputLength(COSTS, paced=True)) < best
