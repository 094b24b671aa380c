"""Tails against SciPy, and tests of sums against exact laws. Nothing here is drawn at random but one power check."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats as reference

from draftproof.verify import tails
from draftproof.verify.stats import (
    bernoulli_sum_test,
    binomial_test,
    chi2_isf,
    chi2_power,
    chi2_sf,
    detectable_bias,
    noncentrality,
    normal_quantile,
)

DF = (1, 2, 5, 30, 159, 1000, 5000)
P = (0.99, 0.5, 0.1, 1e-3, 1e-8, 1e-20, 1e-30)


def chi2_agrees() -> None:
    for df, p in itertools.product(DF, P):
        x = float(reference.chi2.isf(p, df))
        assert chi2_sf(x, df) == pytest.approx(float(reference.chi2.sf(x, df)), rel=1e-10)
        assert chi2_isf(p, df) == pytest.approx(x, rel=1e-9)


def test_chi_square_tail_to_ten_digits_down_to_1e_30() -> None:
    chi2_agrees()
    assert chi2_sf(0.0, 3) == chi2_isf(1.0, 3) + 1.0 == 1.0
    assert chi2_sf(math.inf, 3) == 0.0


@pytest.mark.parametrize(
    ("part", "wrong"),
    {
        "_EPS": 1e-7,  # the series is left too early
        "gamma_q": lambda a, x, right=tails.gamma_q: right(a + 0.5, x),  # two more degrees of freedom
        "_fraction": lambda a, x, right=tails._fraction: right(a, x) * (1 + 1e-8),
    }.items(),
)
def test_a_wrong_tail_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str, wrong: Any) -> None:
    monkeypatch.setattr(tails, part, wrong)
    with pytest.raises(AssertionError):
        chi2_agrees()


@pytest.mark.parametrize("alpha", [0.05, 1e-8])
@pytest.mark.parametrize("df", DF[:-1])
def test_power_agrees_and_inverts(df: int, alpha: float) -> None:
    for nc in (1.0, 50.0, 400.0, 2000.0):
        exact = float(reference.ncx2.sf(reference.chi2.isf(alpha, df), df, nc))
        assert chi2_power(nc, df, alpha) == pytest.approx(exact, abs=1e-6)
    assert chi2_power(0.0, df, alpha) == pytest.approx(alpha, rel=1e-6)
    nc = noncentrality(df, alpha, 0.99)
    assert chi2_power(nc, df, alpha) == pytest.approx(0.99, abs=1e-6)
    assert chi2_power(0.99 * nc, df, alpha) < 0.99


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="power of 1"):
        noncentrality(3, 0.01, 1.0)
    for wrong in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="probability"):
            chi2_isf(wrong, 3)
    with pytest.raises(ValueError, match="successes"):
        binomial_test(5, 4, 0.5)
    with pytest.raises(ValueError, match="not a probability"):
        binomial_test(1, 4, 1.5)
    with pytest.raises(ValueError, match="probabilities"):
        bernoulli_sum_test(1, [0.5, math.nan])


def test_normal_quantile() -> None:
    assert normal_quantile(0.99) == pytest.approx(float(reference.norm.ppf(0.99)), rel=1e-12)


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (40, 0.02), (1000, 0.5), (1_000_000, 0.25), (7, 0.0), (7, 1.0)])
def test_binomial_tails(n: int, p: float) -> None:
    spread = math.sqrt(n * p * (1 - p))
    for k in {0, n, *(min(n, max(0, round(n * p + z * spread))) for z in (-10, -5, -1, 0, 1, 2, 5, 10))}:
        upper, lower = float(reference.binom.sf(k - 1, n, p)), float(reference.binom.cdf(k, n, p))
        assert tails.binomial_sf(k, n, p) == pytest.approx(upper, rel=1e-7, abs=1e-300)
        assert binomial_test(k, n, p) == pytest.approx(min(1.0, 2 * min(upper, lower)), rel=1e-7, abs=1e-300)


# --- sums of unequal coins, against their exact law ---------------------------------------------------------------


def sum_law(probs: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for a in probs:
        law = np.convolve(law, [1 - a, a])
    return law


COINS = {
    "many kinds": np.linspace(0.05, 0.95, 60),
    "rare": np.full(100, 0.01),
    "some certain": np.array([0.0, 1.0, 1.0, *np.linspace(0.3, 0.6, 12)]),
    "one": np.array([0.2]),
}
Test = Callable[[int, np.ndarray], float]


def valid(test: Test) -> None:
    """P(p-value <= alpha) <= alpha at every alpha that the test can reach."""
    for probs in COINS.values():
        law = sum_law(probs)
        p_values = np.array([test(s, probs) for s in range(len(law))])
        for alpha in p_values:
            assert law[p_values <= alpha].sum() <= alpha + 1e-12


def normal_test(s: int, probs: np.ndarray) -> float:
    spread = math.sqrt(float((probs * (1 - probs)).sum()))
    return float(2 * reference.norm.sf(abs(s - probs.sum()) / spread))


def test_sums_of_coins_are_judged_validly() -> None:
    valid(bernoulli_sum_test)
    valid(lambda s, probs: bernoulli_sum_test(s, probs, adapted=True))


@pytest.mark.parametrize(
    "wrong",
    [
        normal_test,
        lambda s, probs: bernoulli_sum_test(s, probs) ** 2,
        lambda s, probs: bernoulli_sum_test(s, np.full(len(probs), 0.5 * probs.mean())),
    ],
)
def test_an_invalid_test_of_sums_is_noticed(wrong: Test) -> None:
    with pytest.raises(AssertionError):
        valid(wrong)


def test_equal_coins_give_the_binary_divergence() -> None:
    n, s, a = 500, 300, 0.5
    divergence = s / n * math.log(s / n / a) + (1 - s / n) * math.log((1 - s / n) / (1 - a))
    assert bernoulli_sum_test(s, [a] * n) == pytest.approx(2 * math.exp(-n * divergence), rel=1e-9)
    exact = binomial_test(s, n, a)
    assert exact < bernoulli_sum_test(s, [a] * n) < 20 * exact


def adapted_paths(n: int) -> list[tuple[float, int, list[float]]]:
    """(probability, successes, probs) of every path of coins whose probability falls to .02 with a success."""
    paths = []
    for outcome in itertools.product((0, 1), repeat=n):
        probs = [0.02 if i and outcome[i - 1] else 0.6 for i in range(n)]
        weight = math.prod(a if x else 1 - a for a, x in zip(probs, outcome, strict=True))
        paths.append((weight, sum(outcome), probs))
    return paths


def test_coins_that_depend_on_the_past_are_judged_validly() -> None:
    judged = [(w, bernoulli_sum_test(s, a, adapted=True)) for w, s, a in adapted_paths(11)]
    for alpha in {p for _, p in judged}:
        assert math.fsum(w for w, p in judged if p <= alpha) <= alpha + 1e-12
    slopes = tails._SLOPES  # the mean of exp(t s - K(t)) is 1, exactly: what the bound rests on
    for t in (slopes[0], slopes[20], slopes[-1]):
        mean = math.fsum(w * math.exp(t * s - tails._cumulant(np.array(a), t)) for w, s, a in adapted_paths(11))
        assert mean == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("adapted", [False, True])
def test_the_detectable_bias_is_seen(adapted: bool) -> None:
    """Power .99 stated: 400 runs, at least 380 must reject (a test with power .99 fails here with P < 1e-8)."""
    probs, alpha = np.linspace(0.2, 0.9, 4000), 1e-6
    bias = detectable_bias(probs, alpha, 0.99, adapted)
    assert 0.04 < bias < 0.08
    rng = np.random.default_rng(5)
    for moved in (np.minimum(probs + bias, 1.0), probs - bias):
        sums = (rng.random((400, len(probs))) < moved).sum(axis=1)
        assert sum(bernoulli_sum_test(int(s), probs, adapted) <= alpha for s in sums) >= 380


def test_too_few_coins_see_no_bias() -> None:
    assert detectable_bias([0.5] * 10, 1e-6, 0.99) == math.inf
    assert bernoulli_sum_test(1, [0.0, 0.0]) == 0.0
    assert bernoulli_sum_test(1, [1.0, 1.0]) == 0.0
    assert bernoulli_sum_test(2, [1.0, 1.0]) == 1.0
