"""The paired ratio: exact where it can be, and honest about its spread."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from draftproof.bench.stats import paired_ratio, student


def test_a_constant_ratio_has_no_spread() -> None:
    assert paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0, 2.0))


def test_it_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    assert paired_ratio([1.0, 9.0], [1.0, 3.0]).ratio == 2.5


def test_pairs_stay_together() -> None:
    """Long and short works differ a hundredfold, their ratio does not: compared unpaired it would be wide."""
    base = np.geomspace(1, 100, 40)
    assert paired_ratio(base, base / 1.5).high - paired_ratio(base, base / 1.5).low < 1e-9
    shuffled = np.random.default_rng(0).permutation(base / 1.5)
    assert paired_ratio(base, shuffled).high - paired_ratio(base, shuffled).low > 0.2


@pytest.mark.parametrize(
    ("base", "other"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, 2.0, 3.0])]
)
def test_too_few_or_unequal_pairs_are_refused(base: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two pairs of equal number"):
        paired_ratio(base, other)


@pytest.mark.parametrize("error", [0.5, 0.05, 0.0033, 0.0005])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 59, 400])
def test_quantiles(error: float, freedom: int) -> None:
    assert student(error, freedom) == pytest.approx(scipy_stats.t.ppf(1 - error / 2, freedom), rel=1e-7)


@pytest.mark.parametrize(("error", "freedom"), [(0.0, 3), (1.0, 3), (0.05, 0)])
def test_no_quantile(error: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        student(error, freedom)


def test_known_ratio() -> None:
    """Seconds 2, 4 over 1, 3: the ratio is 1.5, what is left 0.5 and -0.5, the spread 0.5 / 2."""
    found = paired_ratio([2.0, 4.0], [1.0, 3.0], 0.05)
    assert found.ratio == 1.5
    assert found.high - 1.5 == pytest.approx(0.25 * scipy_stats.t.ppf(0.975, 1))
    assert found.low == 0.0  # no ratio of seconds is below


def test_equal_ratios_have_no_spread() -> None:
    assert paired_ratio([3.0, 30.0, 0.3], [2.0, 20.0, 0.2], 0.001) == pytest.approx((1.5, 1.5, 1.5))


def misses(error: float, told: float) -> float:
    """How often eight skewed pairs miss a true ratio of 1.5 at `error`, if they claim `told`."""
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(3000):
        base = np.exp(rng.normal(0.0, 0.5, 8))
        other = base / 1.5 * np.exp(rng.normal(-0.02, 0.2, 8))
        found = paired_ratio(list(base), list(other), told)
        wrong += not found.low <= 1.5 <= found.high
    return wrong / 3000 / error


def test_eight_pairs_miss_about_as_often_as_they_say() -> None:
    assert misses(0.02, 0.02) < 2.0


def test_planted_narrow_intervals_are_seen() -> None:
    assert misses(0.02, 0.08) > 2.5
