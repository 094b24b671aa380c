"""Goodness of fit: do counts come from a law that is known exactly? And how many samples does the answer take?

The p-value is a *bound that holds at every size*, not the chi-square approximation, which cannot be trusted as far out
as a family-wise 1e-6 needs. At its chi-square point for 1e-8, Pearson's statistic is exceeded 76 times too often if one
cell has 10 expected and the other has the rest, 6 times with 16 cells of 10 and 1.6 times with 160 (exact calculations,
tests/verify/test_fit.py); the uncorrected deviance 4 times with 160. So:

- the statistic is the deviance G = 2 sum seen log(seen / expected), whose moment generating function exists;
- P(G >= g) <= E exp(tG) exp(-tg) (Chernoff 1952), with the expectation taken under the multinomial law itself: Poisson
  cells, given their total. The price is a factor of 25 in p and 13 % in samples with 160 cells (30 % with 2), for a
  rate that really holds;
- a fault that sits in one cell is diluted by all the others, so each cell, unpooled, is judged alone as well, by
  exp(-n kl(seen/n, p)) for either direction. This part has a tenth of alpha and shares it between the cells.

Knows nothing of engines or prompts: a cell is any hashable thing, such as a tuple of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.tails import needed, noncentral_sf

Cell = TypeVar("Cell", bound=Hashable)
Floats = NDArray[np.float64]

_MIN_EXPECTED = 10.0
_JOINT, _SINGLE = 0.9, 0.1  # shares of alpha: the deviance, and the cells one by one
_SLOPES = tuple(0.43 * (1.0 - 0.85**i) for i in range(1, 25))  # any fixed set is valid; more are only sharper
_FALL, _POINTS = 24.0, 3.0  # sums over counts: to where a term is exp(-24), points per standard deviation
_PAD = 1.2  # for the local limit theorem: up to 16 % low with cells of 1 to 5 expected, 1 % with 10 or more


@dataclass(frozen=True, slots=True)
class CellFit:
    """One cell of the law: `seen` and `expected` counts, and a bound on the probability of a gap as large."""

    cell: Any
    seen: int
    expected: float
    p_value: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`statistic` is the deviance over pooled cells, `df` their number minus one. `worst`: the least likely cells."""

    p_value: float
    statistic: float
    df: int
    samples: int
    worst: tuple[CellFit, ...] = ()
    impossible: tuple[Any, ...] = ()  # seen although the law gives them no mass: proof, without error rate


def goodness_of_fit(
    expected_probs: Mapping[Cell, float], counts: Mapping[Cell, int], min_expected: float = _MIN_EXPECTED
) -> Fit:
    """Test that `counts` are independent draws from `expected_probs` (which sum to 1; an absent cell has mass 0).

    P(p_value <= alpha) <= alpha for every alpha, law and sample size. Rare cells are pooled, by probability alone,
    until each pool has `min_expected` (1 or more); pooling serves power only.
    """
    if min_expected < 1.0:
        raise ValueError(f"min_expected must be at least 1, not {min_expected}: the bound is not known to hold below")
    law = _checked(expected_probs, counts)
    samples = sum(counts.values())
    seen = np.array([counts.get(cell, 0) for cell in law], dtype=np.float64)
    probs = np.fromiter(law.values(), dtype=np.float64)
    impossible = tuple(cell for cell, count in counts.items() if count and law.get(cell, 0.0) == 0.0)
    pools = pool(probs, samples, min_expected)
    pooled, expected = _added(seen, pools), _added(probs * samples, pools)
    statistic = deviance(pooled, expected)
    worst, single = _worst(list(law), seen, probs, samples)
    p_value = min(1.0, deviance_tail(statistic, expected) / _JOINT, single / _SINGLE)
    return Fit(0.0 if impossible else p_value, statistic, len(pools) - 1, samples, worst, impossible)


def _checked(law: Mapping[Cell, float], counts: Mapping[Cell, int]) -> dict[Cell, float]:
    if not all(p >= 0.0 for p in law.values()) or any(c < 0 for c in counts.values()):  # `not >=` sees NaN
        raise ValueError("probabilities and counts must not be negative or NaN")
    total = math.fsum(law.values())
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"the law's probabilities sum to {total}, not 1: a cell is missing or counted twice")
    return {cell: p / total for cell, p in law.items() if p > 0.0}


def pool(probs: Sequence[float] | Floats, samples: int, min_expected: float = _MIN_EXPECTED) -> list[list[int]]:
    """Groups of indices, rarest first, each with at least `min_expected` of `samples` (all in one if there are few)."""
    groups: list[list[int]] = [[]]
    mass = 0.0
    for i in np.argsort(np.asarray(probs), kind="stable"):
        if mass * samples >= min_expected:
            groups.append([])
            mass = 0.0
        groups[-1].append(int(i))
        mass += float(probs[i])
    if len(groups) > 1 and mass * samples < min_expected:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _added(values: Floats, pools: list[list[int]]) -> Floats:
    return np.array([values[group].sum() for group in pools])


def deviance(seen: Floats, expected: Floats) -> float:
    """G = 2 sum seen log(seen / expected), 0 for an empty cell. Both [cells], with the same total."""
    ratio = np.divide(seen, expected, out=np.ones_like(seen), where=(seen > 0) & (expected > 0))
    return max(0.0, 2.0 * float((seen * np.log(ratio)).sum()))


def deviance_tail(statistic: float, expected: Floats) -> float:
    """Bound on P(G >= statistic) for multinomial counts with the given expected counts [cells]."""
    if statistic < len(expected) or len(expected) < 2:
        return 1.0  # about the mean: no bound to be had
    ideal = 0.5 - len(expected) / (2.0 * statistic)  # where the chi-square bound is lowest
    near = sorted(_SLOPES, key=lambda t: abs(t - ideal))[:4]
    best = min(log_moment(t, expected) - t * statistic for t in near)
    return min(1.0, _PAD * math.exp(best))


def log_moment(t: float, expected: Floats) -> float:
    """log E exp(tG) under the multinomial law with these expected counts [cells], 0 <= t < 1/2.

    Multinomial counts are independent Poisson counts y given their total n, and there G is a sum over cells of 2 d(y),
    d(y) = y log(y / m) - y + m. So E exp(tG) = prod E exp(2t d) times P'(total = n) / P(total = n), P' being the law
    that exp(2t d) tilts to. P' of the total is taken as normal with its exact mean and variance, below 20 samples as 1.
    """
    m, copies = np.unique(expected, return_counts=True)
    sums, means, variances = _tilted(t, m)
    n, variance = float(expected.sum()), float(copies @ variances)
    exact = n - n * math.log(n) + math.lgamma(n + 1.0)  # -log P(Poisson(n) = n)
    off = float(copies @ (means - m))
    local = -0.5 * math.log(2.0 * math.pi * variance) - off * off / (2.0 * variance) if n >= 20 else 0.0
    return float(copies @ np.log(sums)) + local + exact


def _tilted(t: float, cells: Floats) -> tuple[Floats, Floats, Floats]:
    """Total, mean and variance [cells] of the weights exp(2t d(y)) Poisson(y; m) = exp(-(1 - 2t) d(y) - s(y)).

    s(y) = log y! - y log y + y. Far from 0 and with a wide spread, every h-th count is taken: for a function as smooth
    as this a sum with three points a standard deviation is exact to rounding.
    """
    m = cells[:, None]
    fall = _FALL / (1.0 - 2.0 * t)  # d(m + u) >= fall at u = sqrt(2 m fall) + 2 fall / 3 (Bernstein), -sqrt(2 m fall)
    reach = np.sqrt(2.0 * m * fall)
    low = np.maximum(0.0, np.floor(m - reach))
    step = np.where(low > 0, np.maximum(1.0, np.floor(np.sqrt(m / (1.0 - 2.0 * t)) / _POINTS)), 1.0)
    rows = int(np.max((m - low + reach + 2.0 * fall / 3.0) / step)) + 2
    y: Floats = low + step * np.arange(rows, dtype=np.float64)
    d = y * np.log(np.maximum(y, 1.0) / m) - y + m
    w = step * np.exp(-(1.0 - 2.0 * t) * d - _stirling_gap(y))
    totals = w.sum(axis=1)
    means = (w * y).sum(axis=1) / totals
    return totals, means, (w * (y - means[:, None]) ** 2).sum(axis=1) / totals


_SMALL = np.array([0.0] + [math.lgamma(k + 1.0) - k * math.log(k) + k for k in range(1, 16)])


def _stirling_gap(y: Floats) -> Floats:
    """log y! - y log y + y; Stirling's series from 16 on (error below 1e-10)."""
    inverse = 1.0 / np.maximum(y, 16.0)
    series = inverse * (1 / 12 - inverse * inverse * (1 / 360 - inverse * inverse / 1260))
    large = series - 0.5 * np.log(inverse / (2.0 * math.pi))
    gap: Floats = np.where(y < 16.0, _SMALL[np.minimum(y, 15.0).astype(np.int64)], large)
    return gap


def _worst(cells: list[Cell], seen: Floats, probs: Floats, samples: int) -> tuple[tuple[CellFit, ...], float]:
    """The three cells least likely by themselves, and a bound on seeing any cell as far off as the first."""
    if not samples:
        return (), 1.0
    bounds = np.exp(-samples * binary_divergence(seen / samples, probs))
    order = np.argsort(bounds, kind="stable")[:3]
    fits = tuple(
        CellFit(cells[i], int(seen[i]), float(probs[i] * samples), min(1.0, 2.0 * float(bounds[i]))) for i in order
    )
    return fits, min(1.0, 2.0 * len(cells) * float(bounds[order[0]]))


def binary_divergence(a: Floats, b: Floats) -> Floats:
    """kl(a, b) = a log(a/b) + (1-a) log((1-a)/(1-b)), elementwise, 0 log 0 = 0; b in (0, 1]."""
    yes = np.where(a > 0, a * (np.log(np.where(a > 0, a, 1.0)) - np.log(b)), 0.0)
    rest = np.maximum(1.0 - b, 1e-300)
    no = np.where(a < 1, (1.0 - a) * (np.log(np.where(a < 1, 1.0 - a, 1.0)) - np.log(rest)), 0.0)
    divergence: Floats = np.maximum(0.0, yes + no)
    return divergence


def critical_deviance(cells: int, alpha: float, expected: float = _MIN_EXPECTED) -> float:
    """The deviance from which on `goodness_of_fit` rejects at `alpha`, for `cells` pools of `expected` counts each.

    The most when all cells are as small as pooling lets them be, which is the default.
    """
    counts = np.full(cells, expected)
    slopes = [(t, log_moment(t, counts)) for t in _SLOPES]
    return min((moment + math.log(_PAD / (_JOINT * alpha))) / t for t, moment in slopes)


def power_at(samples: int, cells: int, alpha: float, tv: float) -> float:
    """Power of `goodness_of_fit` at `alpha` against any law `tv` away from the expected one *on the pooled cells*.

    The deviance is about noncentral chi-square with parameter 2 n KL >= 4 n tv**2 (Pinsker; Pearson's is the same by
    Cauchy-Schwarz).
    """
    return noncentral_sf(critical_deviance(cells, alpha), cells - 1, 4.0 * samples * tv * tv)


def sample_size(cells: int, alpha: float, power: float, tv: float) -> int:
    """Smallest number of samples at which every law `tv` or more away is rejected at `alpha` with `power`."""
    nc = needed(_df(cells), critical_deviance(cells, alpha), power)
    return math.ceil(nc / (4.0 * tv * tv))


def detectable_tv(n: int, cells: int, alpha: float, power: float) -> float:
    """Smallest total variation distance seen with `power` by `n` samples; more than 1 means nothing can be seen."""
    nc = needed(_df(cells), critical_deviance(cells, alpha), power)
    return math.sqrt(nc / (4.0 * n)) if n else math.inf


def _df(cells: int) -> int:
    if cells < 2:
        raise ValueError("a law of fewer than two cells cannot be tested")
    return cells - 1
