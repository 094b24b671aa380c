"""What passes teach about the profile: each point's own error, whatever the machine's speed does meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from draftproof.length import learned
from draftproof.length.learned import LearnedCosts, Step
from draftproof.length.profile import Line, Profile, on_line

ROWS = ((2.0, 30.0), (3.0, 31.0), (4.0, 32.0), (5.0, 33.0), (6.0, 36.0))
COSTS = Profile(ROWS, ((1, Line(1.0, 1.5)),), ((1, Line(1.0, 0.2)),), min_rows=2)
TRUE = (30.0, 31.0, 32.0, 36.0, 36.0)  # milliseconds; five rows are 9 % dearer than the profile says


def steady(_: int) -> float:
    return 1.0


def swaying(n: int) -> float:
    """A machine that gets 15 % slower and faster again, as others use it."""
    return 1.0 + 0.15 * math.sin(n / 100.0)


def taught(
    passes: int, speed: Callable[[int], float] = steady, seed: int = 1, interrupted: float = 0.0
) -> LearnedCosts:
    """After passes of three to five rows that take 10 % more or less by chance."""
    rng, costs = random.Random(seed), LearnedCosts(COSTS)
    for n in range(passes):
        point = rng.choice((1, 2, 3, 3))
        slow = 20.0 if rng.random() < interrupted else 1.0
        verify = TRUE[point] * speed(n) * slow * math.exp(rng.gauss(0.0, 0.1))
        costs.note(Step(int(ROWS[point][0]), verify))
    return costs


def ratio(costs: LearnedCosts) -> float:
    """Five rows to four; the truth is 1.125, the profile says 1.03."""
    return on_line(costs.profile.verify, 5) / on_line(costs.profile.verify, 4)


@pytest.mark.parametrize("speed", [steady, swaying])
@pytest.mark.parametrize("interrupted", [0.0, 0.02])
def test_a_point_that_is_off_is_corrected(speed: Callable[[int], float], interrupted: float) -> None:
    """Seeds are fixed. One interrupted pass in fifty."""
    for seed in range(10):
        assert ratio(taught(480, speed, seed, interrupted)) == pytest.approx(1.125, abs=0.04)


def test_planted_trust_in_the_profile_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "_PROFILE", 1e-6)
    assert ratio(taught(480)) == pytest.approx(33.0 / 32.0, abs=1e-3)


def test_a_slower_machine_makes_everything_slower_and_nothing_dearer_beside_the_rest() -> None:
    costs = LearnedCosts(COSTS)
    for n in range(480):
        rows, seconds = ROWS[n % 5]
        costs.note(Step(int(rows), 2.0 * seconds, 1, 2.0, 2.0 * COSTS.parts(1, 2, 0.0)[1]))
    for k in range(5):
        for now, before in zip(costs.profile.parts(1, k, k), COSTS.parts(1, k, k), strict=True):
            assert now == pytest.approx(2.0 * before, rel=0.07)  # points take a little of it


def test_dearer_drafts_are_learned() -> None:
    """Half as dear again as the profile says, beside a target that is as it was."""
    costs, rng = LearnedCosts(COSTS), random.Random(2)
    for _ in range(160):
        spread = math.exp(rng.gauss(0.0, 0.1))
        costs.note(Step(3, 31.0 * spread, 1, 2.0, 1.5 * COSTS.parts(1, 2, 0.0)[1] * spread))
    for k in (1, 4):
        assert costs.profile.parts(1, k, k)[1] == pytest.approx(1.5 * COSTS.parts(1, k, k)[1], rel=0.1)


def test_points_that_were_not_seen_move_with_the_machine_alone() -> None:
    costs = taught(480)
    (_, two), *_, (_, six) = costs.profile.verify
    assert two / ROWS[0][1] == pytest.approx(six / ROWS[4][1])
    assert costs.measured == COSTS


def test_corrections_are_numbered_and_rare() -> None:
    costs = LearnedCosts(COSTS)
    changed = [costs.note(Step(3, 31.0)) for _ in range(48)]
    assert [n for n, new in enumerate(changed, 1) if new] == [16, 32, 48]
    assert costs.number == 3


def test_a_clock_that_stood_still_says_nothing() -> None:
    costs = LearnedCosts(COSTS)
    for _ in range(48):
        costs.note(Step(3, 0.0))
    assert costs.profile == COSTS
