"""The paired ratio: exact where it can be, and honest about its spread."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.bench.stats import paired_ratio


def test_a_constant_ratio_has_no_spread() -> None:
    assert paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)


def test_it_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    assert paired_ratio([1.0, 9.0], [1.0, 3.0]).ratio == 2.5


def test_pairs_stay_together() -> None:
    """Long and short works differ a hundredfold, their ratio does not: resampled unpaired it would be wide."""
    base = np.geomspace(1, 100, 40)
    assert paired_ratio(base, base / 1.5).high - paired_ratio(base, base / 1.5).low < 1e-9
    shuffled = np.random.default_rng(0).permutation(base / 1.5)
    assert paired_ratio(base, shuffled).high - paired_ratio(base, shuffled).low > 0.2


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """300 seeded samples of 30 pairs. The bootstrap covers a little less than 95 %: at 0.92 fewer than 250 of 300 has
    probability below 1e-6; an interval of half the width covers 0.67 and is seen with probability above 1 - 1e-8."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        base, other = rng.lognormal(0.5, 0.3, 30), rng.lognormal(0.0, 0.3, 30)
        r = paired_ratio(base, other)
        hits += r.low <= np.exp(0.5) <= r.high
        assert r.low <= r.ratio <= r.high
    assert 250 <= hits < 300


def test_the_same_numbers_give_the_same_interval() -> None:
    base, other = np.random.default_rng(2).lognormal(size=(2, 30))
    assert paired_ratio(base, other) == paired_ratio(base, other)
    assert paired_ratio(base, other) != paired_ratio(base, other, seed=1)


@pytest.mark.parametrize(
    ("base", "other"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, 2.0, 3.0])]
)
def test_too_few_or_unequal_pairs_are_refused(base: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two pairs of equal number"):
        paired_ratio(base, other)
