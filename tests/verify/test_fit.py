"""Goodness of fit: the bound against exact laws far out in the tail, pooling, power, and what plain chi-square does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats as reference
from scipy.special import gammaln, xlogy

from draftproof.verify import fit
from draftproof.verify.stats import chi2_isf, detectable_tv, goodness_of_fit, pool, power_at, sample_size

ALPHAS = (1e-2, 1e-4, 1e-6, 1e-8)


@cache
def exact_tail(cells: int, expected: int, score: Callable[[np.ndarray], np.ndarray], size: int) -> np.ndarray:
    """P(sum of score(count) >= s), s = 0 .. size - 1, for multinomial counts in equal cells. `score`: whole numbers.

    Poisson counts given their total: a Fourier transform over the score, an integral over the total's phase.
    """
    total = cells * expected
    y = np.arange(12 * expected)
    y = y[score(y) < size]
    weights = np.exp(xlogy(y, expected) - expected - gammaln(y + 1))
    half = min(math.pi, 12 / math.sqrt(total))
    law = np.zeros(size, dtype=complex)
    for phase in (np.arange(32) + 0.5) / 32 * half:  # the other half is its mirror image
        one = np.zeros(size, dtype=complex)
        np.add.at(one, score(y), weights * np.exp(1j * phase * (y - expected)))
        law += np.fft.fft(one) ** cells
    law = np.fft.ifft(law) * (half / 32 / math.pi) / reference.poisson.pmf(total, total)
    assert law.real.sum() == pytest.approx(1.0, abs=1e-3)
    return np.cumsum(law.real[::-1])[::-1]


def pearson(y: np.ndarray) -> np.ndarray:
    return (y - 10) ** 2


def deviance_hundredths(y: np.ndarray) -> np.ndarray:
    return np.round(200 * (xlogy(y, y / 10) - y + 10)).astype(int)


def test_what_the_chi_square_point_is_worth_at_ten_expected() -> None:
    """The figures in fit.py. 1 would be right; above 1 the approximation claims too much."""
    far = chi2_isf(1e-8, 1)
    apart = math.sqrt(10 * far)
    worth = reference.poisson.sf(math.ceil(10 + apart) - 1, 10) / 1e-8
    assert 70 < worth < 80  # one cell of 10, the other without end
    for cells, lowest, highest in ((16, 5.5, 6.5), (160, 1.5, 1.8)):
        tail = exact_tail(cells, 10, pearson, 1 << 14)
        assert lowest < tail[math.ceil(10 * chi2_isf(1e-8, cells - 1))] / 1e-8 < highest
    tail = exact_tail(160, 10, deviance_hundredths, 1 << 16)
    assert 3.2 < tail[math.ceil(100 * chi2_isf(1e-8, 159))] / 1e-8 < 4.2


def tail_holds() -> None:
    """At the deviance where the test rejects at alpha, the exact tail is below alpha, by no more than a factor 100."""
    for cells in (16, 160):
        tail = exact_tail(cells, 10, deviance_hundredths, 1 << 16)
        for alpha in ALPHAS:
            point = fit.critical_deviance(cells, alpha)
            assert fit.deviance_tail(point, np.full(cells, 10.0)) == pytest.approx(0.9 * alpha, rel=0.2)
            assert alpha / 100 < tail[math.ceil(100 * point)]
            assert tail[math.floor(100 * point - cells / 2)] < alpha  # whatever the rounding
    for n, p in ((20, 0.5), (1000, 0.01), (100_000, 1e-4)):  # two cells, one of them with 10 expected
        y = np.arange(min(n, 200) + 1)
        expected = np.array([n * p, n - n * p])
        bounds = np.array(
            [fit.deviance_tail(fit.deviance(np.array([i, n - i], dtype=float), expected), expected) for i in y]
        )
        law = reference.binom.pmf(y, n, p)
        for alpha in bounds:
            assert law[bounds <= alpha].sum() <= alpha + 1e-9


def test_the_bound_holds_far_out() -> None:
    tail_holds()


TAIL, MOMENT = fit.deviance_tail, fit.log_moment


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g, expected: TAIL(g, expected[: len(expected) // 2 + 1]),  # half the degrees of freedom
        lambda g, expected: float(reference.chi2.sf(g, len(expected) - 1)),  # the approximation
        lambda g, expected: float(reference.chi2.sf(g, len(expected) - 2)) if len(expected) > 2 else TAIL(g, expected),
        lambda g, expected: TAIL(1.1 * g, expected),
    ],
)
def test_a_wrong_tail_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(fit, "deviance_tail", wrong)
    with pytest.raises(AssertionError):
        tail_holds()


def exact_moment(t: float, n: int, p: float) -> float:
    y = np.arange(n + 1)
    deviance = 2 * (xlogy(y, y / (n * p)) + xlogy(n - y, (n - y) / (n * (1 - p))))
    logs = reference.binom.logpmf(y, n, p) + t * deviance
    return float(np.logaddexp.reduce(logs))


def moments_agree() -> None:
    for n, p, within in ((20, 0.5, 0.1), (30, 0.1, 0.1), (200, 0.05, 0.01), (1000, 0.01, 0.002), (10**5, 0.3, 1e-4)):
        for t in (0.05, 0.2, 0.4, 0.43):
            moment = fit.log_moment(t, np.array([n * p, n - n * p]))
            assert moment == pytest.approx(exact_moment(t, n, p), abs=within)
    assert fit.log_moment(0.4, np.array([2.0, 6.0])) > exact_moment(0.4, 8, 0.25)  # few samples: a bound


def equal_moment(t: float, cells: int, m: int) -> float:
    """log E exp(tG) for equal cells of m expected, the total's phase integrated out at its saddle point."""
    y = np.arange(m + 60 + int(40 * math.sqrt(m / (1 - 2 * t)) + 200 / (1 - 2 * t)))
    logs = xlogy(y, m) - m - gammaln(y + 1) + 2 * t * (xlogy(y, y / m) - y + m)
    tilt = 0.0
    for _ in range(30):
        w = np.exp(logs + tilt * (y - m))
        mean = (w @ y) / w.sum()
        tilt -= (mean - m) / ((w @ (y - mean) ** 2) / w.sum())
    phases = (np.arange(400) + 0.5) / 400 * min(math.pi, 14 / math.sqrt(cells * m))
    turned = np.exp(1j * phases[:, None] * (y - m)) @ (w / w.sum())
    density = (turned**cells).real.mean() * min(1.0, 14 / math.sqrt(cells * m) / math.pi)
    return float(cells * math.log(w.sum()) + math.log(density) - reference.poisson.logpmf(cells * m, cells * m))


def test_the_moment_is_the_multinomial_one() -> None:
    moments_agree()


@pytest.mark.parametrize("m", [1, 2, 5, 10, 30])
def test_the_pad_covers_the_local_limit_theorem(m: int) -> None:
    for cells in (20, 160, 1000):
        for t in (fit._SLOPES[0], 0.2, 0.3, 0.4, fit._SLOPES[-1]):
            off = fit.log_moment(t, np.full(cells, float(m))) - equal_moment(t, cells, m)
            assert off > -math.log(fit._PAD)
            assert m < 10 or abs(off) < 0.02


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t, m: -math.log(1 - 2 * t),  # one degree too many
        lambda t, m: -0.5 * math.log(1 - 2 * t),  # chi-square, no correction for small cells
        lambda t, m: float(np.log(fit._tilted(t, m)[0]).sum()),  # the total is not given
    ],
)
def test_a_wrong_moment_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(fit, "log_moment", wrong)
    with pytest.raises(AssertionError):
        moments_agree()


# --- pooling ------------------------------------------------------------------------------------------------------

SKEWED = np.geomspace(1.0, 1e-6, 200) / np.geomspace(1.0, 1e-6, 200).sum()


def pooled_well(made: Callable[..., list[list[int]]]) -> None:
    for probs, n in ((SKEWED, 10_000), (SKEWED, 30), (SKEWED, 5), (np.array([0.999, 0.001]), 100), (np.ones(1), 7)):
        groups = made(probs, n)
        assert sorted(i for g in groups for i in g) == list(range(len(probs)))
        sizes = [probs[g].sum() * n for g in groups]
        assert len(groups) == 1 or min(sizes) >= 10
        assert all(len(g) == 1 or probs[g[:-1]].sum() * n < 10 for g in groups[:-1])
        assert len(groups[-1]) == 1 or probs[groups[-1][:-1]].sum() * n < 10 or sizes[-1] < 30


def test_pools_hold_every_cell_once_and_enough() -> None:
    pooled_well(pool)
    assert len(pool(SKEWED, 10_000)) > 60


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, n: [g for g in pool(p, n) if len(g) == 1] or pool(p, n),  # the rare ones are dropped
        lambda p, n: [[i] for i in range(len(p))],  # not pooled
        lambda p, n: pool(p, n, 5.0),
        lambda p, n: [[*range(len(p))]],  # nothing left to see
    ],
)
def test_wrong_pools_are_noticed(wrong: Callable[..., list[list[int]]]) -> None:
    with pytest.raises(AssertionError):
        pooled_well(wrong)


def drops_the_rare(probs: np.ndarray, n: int, least: float) -> list[list[int]]:
    return [g for g in pool(probs, n, least) if len(g) == 1]


def rare_fault_is_seen() -> None:
    """Of 150 cells with 5 % of the mass in all, one half takes what belongs to the other."""
    law = {i: 0.95 / 10 if i < 10 else 0.05 / 150 for i in range(160)}
    counts = {i: 1900 if i < 10 else 13 if i < 85 else 0 for i in law}
    assert goodness_of_fit(law, counts).p_value < 1e-9


def test_a_fault_among_rare_cells_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rare_fault_is_seen()
    monkeypatch.setattr(fit, "pool", drops_the_rare)
    with pytest.raises(AssertionError):
        rare_fault_is_seen()


# --- the whole test -----------------------------------------------------------------------------------------------


def test_fit_says_what_it_saw() -> None:
    law = {"a": 0.5, "b": 0.3, "c": 0.1999, "d": 0.0001, "never": 0.0}
    found = goodness_of_fit(law, {"a": 500, "b": 300, "c": 190, "d": 10})
    assert found.df == 2  # c and d are pooled
    assert found.samples == 1000
    assert found.statistic == pytest.approx(0.0, abs=1e-3)  # the pool hides what happened to d; the single cells do not
    assert found.worst[0].cell == "d"
    assert found.worst[0].seen == 10
    assert found.worst[0].expected == pytest.approx(0.1)
    assert found.p_value < 1e-9
    assert not found.impossible


@pytest.mark.parametrize("cell", ["never", "unheard of"])
def test_the_impossible_is_proof(cell: str) -> None:
    law = {"a": 0.5, "b": 0.5, "never": 0.0}
    found = goodness_of_fit(law, {"a": 50, "b": 50, cell: 1})
    assert (found.p_value, found.impossible) == (0.0, (cell,))
    assert goodness_of_fit(law, {"a": 50, "b": 50, cell: 0}).p_value == 1.0


def test_wrong_input_is_refused() -> None:
    for law in ({"a": 0.5, "b": 0.4}, {"a": 1.5, "b": -0.5}, {"a": math.nan, "b": 1.0}):
        with pytest.raises(ValueError, match="probabilities"):
            goodness_of_fit(law, {"a": 1})
    with pytest.raises(ValueError, match="negative"):
        goodness_of_fit({"a": 1.0}, {"a": -1})
    assert goodness_of_fit({"a": 1.0}, {"a": 5}).p_value == 1.0
    assert goodness_of_fit({"a": 0.5, "b": 0.5}, {}).p_value == 1.0
    assert goodness_of_fit({"a": 1.0, "b": 1e-310}, {"a": 20, "b": 1}).p_value < 1e-200
    with pytest.raises(ValueError, match="at least 1"):
        goodness_of_fit({"a": 1.0}, {"a": 1}, min_expected=0.5)
    with pytest.raises(ValueError, match="two cells"):
        sample_size(1, 1e-6, 0.99, 0.02)


def drawn(law: np.ndarray, n: int, rng: np.random.Generator) -> Counter[int]:
    return Counter(dict(enumerate(rng.multinomial(n, law).tolist())))


def test_honest_counts_are_seldom_rejected() -> None:
    """1,000 honest runs at 160 skewed cells. At alpha = .05 at most 50 rejections are due; the bound gives some 5.

    P(more than 50 | rate .01) < 1e-18; and none is due at 1e-6, but for once in 1,000 seeds.
    """
    law = np.random.default_rng(1).dirichlet(np.ones(160))
    expected, rng = dict(enumerate(law)), np.random.default_rng(2)
    p_values = np.array([goodness_of_fit(expected, drawn(law, 3000, rng)).p_value for _ in range(1000)])
    assert (p_values <= 0.05).sum() <= 50
    assert p_values.min() > 1e-6
    assert (p_values <= 0.2).any()  # it is a test, not a constant


def test_the_stated_distance_is_seen_with_the_stated_power() -> None:
    """The law that Pinsker's bound is tightest for. Power .99 at alpha 1e-6: 200 runs, at most 13 misses.

    P(more | .99) < 1e-7. At half the distance nearly all are missed, so the sample is no larger than it must be.
    """
    cells, tv, alpha = 100, 0.05, 1e-6
    n = sample_size(cells, alpha, 0.99, tv)
    law, rng = np.full(cells, 1 / cells), np.random.default_rng(3)
    expected = dict(enumerate(law))
    sign = np.where(np.arange(cells) % 2, 1.0, -1.0)

    def rejected(distance: float) -> int:
        other = law * (1 + 2 * distance * sign)
        return sum(goodness_of_fit(expected, drawn(other, n, rng)).p_value <= alpha for _ in range(200))

    assert rejected(tv) >= 187
    assert rejected(tv / 2) <= 100


def test_sample_size_is_the_smallest() -> None:
    for cells, alpha, power, tv in ((2, 1e-6, 0.99, 0.02), (160, 1e-8, 0.99, 0.02), (160, 0.01, 0.5, 0.1)):
        n = sample_size(cells, alpha, power, tv)
        assert power_at(n, cells, alpha, tv) >= power > power_at(n - 1, cells, alpha, tv)
        assert detectable_tv(n, cells, alpha, power) <= tv < detectable_tv(n - 1, cells, alpha, power)
    assert detectable_tv(0, 5, 0.01, 0.9) == math.inf
    assert sample_size(160, 1e-8, 0.99, 0.02) == pytest.approx(136_000, rel=0.01)  # 121,000 if chi-square were exact
