"""Tail probabilities: chi-square, noncentral chi-square, binomial and sums of unequal coins. NumPy and stdlib only.

Scalars in, scalars out; every probability is a plain number in [0, 1], never a percentage. Knows no cell, no sample
and no claim: what is done with a tail is decided in `fit` and `stats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_TINY = 1e-300
_EPS = 1e-16


def bisect(wanted: Callable[[float], bool], low: float, high: float) -> float:
    """Smallest x in [low, high] with wanted(x), for a predicate that turns from false to true once."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if wanted(middle) else (middle, high)
    return high


def beyond(wanted: Callable[[float], bool], start: float = 1.0) -> float:
    """Smallest x >= 0 with wanted(x), when no upper end is known."""
    high = start
    while not wanted(high):
        high *= 2
    return bisect(wanted, 0.0, high)


def gamma_q(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(a, x); relative error below 1e-10 down to 1e-30.

    Series for x < a + 1, else Lentz's continued fraction (Abramowitz and Stegun 6.5.29 and 6.5.31).
    """
    if x <= 0.0:
        return 1.0
    if math.isinf(x):
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        return 1.0 - front * _series(a, x)
    return front * _fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1.0 / a
    n = a
    while term > total * _EPS:
        n += 1.0
        term *= x / n
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    b = x + 1.0 - a
    c, d = 1.0 / _TINY, 1.0 / b
    h = d
    for i in range(1, 1_000_000):
        an = -i * (i - a)
        b += 2.0
        d = 1.0 / _nonzero(an * d + b)
        c = _nonzero(b + an / c)
        h *= c * d
        if abs(c * d - 1.0) < 3 * _EPS:
            break
    return h


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def chi2_sf(x: float, df: float) -> float:
    """P(X >= x) for X chi-square with `df` > 0 degrees of freedom."""
    return gamma_q(df / 2.0, x / 2.0)


def chi2_isf(p: float, df: float) -> float:
    """The x with chi2_sf(x, df) = p, for 0 < p <= 1."""
    _probability(p)
    return beyond(lambda x: chi2_sf(x, df) <= p, max(df, 1.0))


def noncentral_sf(x: float, df: float, nc: float) -> float:
    """P(X >= x) for X noncentral chi-square: central ones with df + 2j, weighted by Poisson(nc / 2) at j.

    Terms within 12 standard deviations of the Poisson mean, so absolute error below 1e-12. Q(a + 1, x) = Q(a, x) +
    x**a exp(-x) / Gamma(a + 1) climbs from term to term without cancellation.
    """
    if x <= 0.0:
        return 1.0
    mean, half = nc / 2.0, x / 2.0
    reach = 12.0 * math.sqrt(mean) + 30.0
    first, last = max(0, math.floor(mean - reach)), math.ceil(mean + reach)
    a = df / 2.0 + first
    q, total = gamma_q(a, half), 0.0
    for j in range(first, last + 1):
        total += q * _poisson(j, mean)
        q += math.exp(a * math.log(half) - half - math.lgamma(a + 1.0))
        a += 1.0
    return min(1.0, total)


def _poisson(j: int, mean: float) -> float:
    if mean == 0.0:
        return 1.0 if j == 0 else 0.0
    return math.exp(j * math.log(mean) - mean - math.lgamma(j + 1.0))


def chi2_power(nc: float, df: float, alpha: float) -> float:
    """Power of the chi-square test at level `alpha` when the statistic is noncentral with parameter `nc`."""
    return noncentral_sf(chi2_isf(alpha, df), df, nc)


def noncentrality(df: float, alpha: float, power: float) -> float:
    """The `nc` at which chi2_power(nc, df, alpha) = power; 0 if the level alone reaches it."""
    return needed(df, chi2_isf(alpha, df), power)


def needed(df: float, critical: float, power: float) -> float:
    """The noncentrality at which the statistic exceeds `critical` with probability `power`."""
    _probability(power)
    if power >= 1.0:
        raise ValueError("no sample is large enough for a power of 1: ask for less, such as 0.99")
    return beyond(lambda nc: noncentral_sf(critical, df, nc) >= power, max(critical, 1.0))


def normal_quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)


def binomial_sf(k: int, n: int, p: float) -> float:
    """P(X >= k) for X binomial(n, p), summed term by term from k upwards (or 1 minus the sum below)."""
    if k <= 0 or p >= 1.0:
        return 1.0 if k <= n else 0.0
    if k > n or p <= 0.0:
        return 0.0
    if k < n * p:
        return max(0.0, 1.0 - binomial_sf(n - k + 1, n, 1.0 - p))
    log_first = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p)
    term = total = math.exp(log_first + (n - k) * math.log1p(-p))
    odds = p / (1.0 - p)
    for j in range(k, n):
        term *= (n - j) / (j + 1) * odds
        total += term
        if term <= total * _EPS:
            break
    return min(1.0, total)


def binomial_test(successes: int, n: int, p: float) -> float:
    """Two-sided p-value of `successes` in `n` independent tries with probability `p`: twice the smaller exact tail.

    Valid at every size: P(p-value <= alpha) <= alpha.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} tries")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{p} is not a probability")
    upper = binomial_sf(successes, n, p)
    lower = binomial_sf(n - successes, n, 1.0 - p)
    return min(1.0, 2.0 * min(upper, lower))


# Slopes of the bets in `bernoulli_sum_test(adapted=True)`. The best slope is z / sqrt(variance): this reaches from one
# observation to some millions, and no slope is more than a factor 1.22 from one of these (5 % of the exponent).
_SLOPES = [sign * 0.004 * 1.5**i for i in range(19) for sign in (1.0, -1.0)]


def bernoulli_sum_test(successes: int, probs: Sequence[float], adapted: bool = False) -> float:
    """Two-sided p-value of the number of `successes` of coins with known, unequal `probs`. Valid at every size.

    Fixed probs: twice the smaller Chernoff bound exp(K(t) - t s), K(t) = sum log(1 - a_i + a_i exp(t)), with the best
    t; for equal probs that is exp(-n kl(s/n, a)) (Chernoff 1952, Hoeffding 1963). `adapted`: probs[i] may depend on the
    outcomes before i, as a draft's acceptance depends on the text so far. Then the best t is out, and the mean of
    exp(t s - K(t)) over fixed slopes is an e-value, its reciprocal a p-value, also when sampling is stopped at will.
    """
    a = _coins(probs)
    if not int((a == 1.0).sum()) <= successes <= int((a > 0.0).sum()):
        return 0.0
    if adapted:
        logs = np.array([t * successes - _cumulant(a, t) for t in _SLOPES])
        return min(1.0, math.exp(math.log(len(_SLOPES)) - _log_sum(logs)))
    return min(1.0, 2.0 * math.exp(-_rate(a, successes)))


def detectable_bias(probs: Sequence[float], alpha: float, power: float, adapted: bool = False) -> float:
    """Smallest change of the mean success probability, in either direction, that the test sees with `power`.

    The critical number of successes is the test's own; beyond it the sum is taken as normal, with a variance that the
    bias may have raised by its own size. inf if no number of successes would be rejected.
    """
    a = _coins(probs)
    n, mean, variance = len(a), float(a.sum()), float((a * (1.0 - a)).sum())
    low, high = _critical(a, alpha, adapted)
    gap = max(mean - low, high - mean)
    z = max(0.0, normal_quantile(power))
    bias = bisect(lambda d: d * n >= gap + z * math.sqrt(variance + d * n), 0.0, 2.0 + 4.0 * z * z)
    return bias if math.isfinite(gap) and bias <= 1.0 else math.inf


def _critical(a: NDArray[np.float64], alpha: float, adapted: bool) -> tuple[float, float]:
    """The largest rejected number of successes below the mean and the smallest above; infinite where there is none."""
    coins, mean, n = [float(x) for x in a], float(a.sum()), len(a)

    def rejected(s: int) -> bool:
        return bernoulli_sum_test(s, coins, adapted) <= alpha

    high = bisect_int(rejected, math.ceil(mean), n)
    low = bisect_int(lambda s: rejected(-s), -math.floor(mean), 0)
    return (-math.inf if low is None else -float(low)), (math.inf if high is None else float(high))


def bisect_int(wanted: Callable[[int], bool], low: int, high: int) -> int | None:
    """Smallest whole number in low .. high with wanted, None if there is none."""
    if not wanted(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if wanted(middle) else (middle + 1, high)
    return high


def _rate(a: NDArray[np.float64], s: int) -> float:
    """sup over t of t s - K(t), by bisection on K'(t) = s."""
    free = a[(a > 0.0) & (a < 1.0)]
    s -= int((a == 1.0).sum())
    if s in (0, len(free)):  # the best t is infinite: only one outcome is left
        return float(-(np.log1p(-free) if s == 0 else np.log(free)).sum())
    t = bisect(lambda t: float((free / (free + (1.0 - free) * math.exp(-t))).sum()) >= s, -60.0, 60.0)
    return max(0.0, t * s - _cumulant(free, t))


def _cumulant(a: NDArray[np.float64], t: float) -> float:
    return float(np.log1p(a * math.expm1(t)).sum())


def _log_sum(logs: NDArray[np.float64]) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def _coins(probs: Sequence[float]) -> NDArray[np.float64]:
    a = np.asarray(probs, dtype=np.float64)
    if a.ndim != 1 or not len(a) or not bool(((a >= 0.0) & (a <= 1.0)).all()):
        raise ValueError("probs must be a non-empty list of probabilities")
    return a


def _probability(p: float) -> None:
    if not 0.0 < p <= 1.0:
        raise ValueError(f"{p} is not a probability above 0")
