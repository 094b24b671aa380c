"""Paired comparison of two ways to do the same work, and percentiles. Knows numbers, not clocks or models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_HALVINGS = 60


class Ratio(NamedTuple):
    """How many times faster: an estimate with its interval."""

    ratio: float
    low: float
    high: float


def paired_ratio(base: Sequence[float], other: Sequence[float], error: float = 0.05) -> Ratio:
    """Sum of `base` over sum of `other`, with the Student interval of the linearised ratio (Cochran 1977, chapter 6).

    A percentile bootstrap is too narrow: its 95 % intervals missed 16 % of the time with six pairs, 8 % with twelve.

    Args:
        base, other: positive seconds for the same unit of work, pair by pair.
        error: the interval misses the truth that often.
    Raises:
        ValueError: the lengths differ, there are fewer than two pairs, or `error` is not between 0 and 1.
    """
    a, b = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if a.shape != b.shape or len(a) < 2:
        raise ValueError(f"a paired ratio needs at least two pairs of equal number, got {len(a)} and {len(b)}")
    ratio = float(a.sum() / b.sum())
    left = a - ratio * b
    spread = math.sqrt(float(left @ left) / (len(a) - 1) / len(a)) / float(b.mean())
    reach = student(error, len(a) - 1) * spread
    return Ratio(ratio, max(ratio - reach, 0.0), ratio + reach)


def student(error: float, freedom: int) -> float:
    """What the absolute value of Student's t exceeds with probability `error`."""
    if not 0.0 < error < 1.0 or freedom < 1:
        raise ValueError(f"error must lie between 0 and 1 and freedom be at least 1, got {error} and {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 - _within(middle, freedom) > error else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)), a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    odd, squared = freedom % 2, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= squared * i / (i + 1)
    total *= math.sin(angle)
    return 2.0 / math.pi * (angle + total) if odd else total


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
