"""What passes teach about the profile: each point's own error, whatever the machine's speed does meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from draftproof.length import learned
from draftproof.length.learned import LearnedCosts
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
        costs.note(int(ROWS[point][0]), TRUE[point] * speed(n) * slow * math.exp(rng.gauss(0.0, 0.1)))
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


def test_a_slower_machine_alone_changes_nothing() -> None:
    """Passes that all take twice as long: no number of rows has become dearer beside another."""
    costs = LearnedCosts(COSTS)
    for n in range(480):
        rows, seconds = ROWS[n % 5]
        costs.note(int(rows), 2.0 * seconds)
    moved = [corrected / measured for (_, corrected), (_, measured) in zip(costs.profile.verify, ROWS, strict=True)]
    assert max(moved) / min(moved) < 1.02
    assert max(moved) < 1.1


def test_points_that_were_not_seen_stay() -> None:
    costs = taught(480)
    assert costs.profile.verify[0] == ROWS[0]
    assert costs.profile.verify[4] == ROWS[4]
    assert costs.measured == COSTS


def test_corrections_are_numbered_and_rare() -> None:
    costs = LearnedCosts(COSTS)
    changed = [costs.note(3, 31.0) for _ in range(48)]
    assert [n for n, new in enumerate(changed, 1) if new] == [16, 32, 48]
    assert costs.number == 3


def test_a_clock_that_stood_still_says_nothing() -> None:
    costs = LearnedCosts(COSTS)
    assert not any(costs.note(3, 0.0) for _ in range(48))
    assert costs.profile == COSTS
