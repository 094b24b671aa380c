"""Paired comparison of two ways to do the same work. Knows numbers, not clocks or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 4000


class Ratio(NamedTuple):
    """How many times faster: an estimate with a 95 % bootstrap interval over pairs."""

    ratio: float
    low: float
    high: float


def paired_ratio(base: Sequence[float], other: Sequence[float], seed: int = 0) -> Ratio:
    """Sum of `base` over sum of `other`, pairs (base[i], other[i]) resampled together.

    Args:
        base, other: seconds for the same unit of work, pair by pair.
    Raises:
        ValueError: the lengths differ, or there are fewer than two pairs, so that there is no spread.
    """
    a, b = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if a.shape != b.shape or len(a) < 2:
        raise ValueError(f"a paired ratio needs at least two pairs of equal number, got {len(a)} and {len(b)}")
    picks = np.random.default_rng(seed).integers(0, len(a), (_RESAMPLES, len(a)))
    ratios = a[picks].sum(axis=1) / b[picks].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(float(a.sum() / b.sum()), float(low), float(high))


class Spread(NamedTuple):
    """Percentiles that occurred: the smallest value that so many per cent do not exceed. `values` counts them."""

    values: int
    p50: float
    p90: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    """
    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no value has no percentiles")
    p50, p90, p99 = np.quantile(np.asarray(values), [0.5, 0.9, 0.99], method="inverted_cdf")
    return Spread(len(values), float(p50), float(p90), float(p99))
