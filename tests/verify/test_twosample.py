"""Two samples: the kernel, exact validity over all relabellings and swaps, controls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftproof.verify import twosample
from draftproof.verify.contract import Verdict
from draftproof.verify.twosample import achieved_power, betting_test, black_box, gram, mmd, permutation_test

Text = tuple[int, ...]


def texts(n: int, seed: int, mixed: float = 0.0, length: int = 3) -> list[Text]:
    """A chain over 6 tokens; `mixed` is the share of another chain."""
    made = np.random.default_rng(77)
    p, q = made.dirichlet(np.ones(6), size=6), made.dirichlet(np.ones(6), size=6)
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        text: Text = (0,)
        for _ in range(length):
            text += (int(rng.choice(6, p=(1 - mixed) * p[text[-1]] + mixed * q[text[-1]])),)
        found.append(text[1:])
    return found


def test_the_kernel_by_hand() -> None:
    kernel = gram([(1, 2), (1, 3), (1,), (), ("a", "b")])
    assert kernel[0].tolist() == [1.0, 0.5, 0.5, 0.25, 0.25]
    assert kernel[2].tolist() == [0.5, 0.5, 1.0, 0.5, 0.25]  # one token, then both ended or not
    assert (kernel == kernel.T).all()
    assert gram([(0, 1), (1, 0)])[0, 1] == 0.25  # places matter, not which tokens occur
    assert gram(["ab", "ac"])[0, 1] == 0.5  # text works as well


def test_the_kernel_is_positive_definite_and_sees_joint_laws() -> None:
    kernel = gram([*itertools.product(range(3), repeat=2), (0,), (1,), ()])
    assert np.linalg.eigvalsh(kernel.astype(float)).min() > 0.01
    alike, crossed = [(0, 0), (1, 1)] * 20, [(0, 1), (1, 0)] * 20  # equal at each place, not together
    assert mmd(gram([*alike, *crossed]), 40) > 0.1
    assert mmd(gram([*alike, *alike]), 40) == pytest.approx(0.0, abs=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = texts(50, 1)
    kernel = gram(sample)
    distance = mmd(kernel, 20)
    monkeypatch.setattr(twosample, "_BLOCK", 7)
    assert (gram(sample) == kernel).all()
    assert mmd(kernel, 20) == pytest.approx(distance, rel=1e-12)


def explicit(kernel: np.ndarray, n: int) -> float:
    k = kernel.astype(float)
    return float(k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean())


def test_the_discrepancy_by_its_definition() -> None:
    kernel = gram([*texts(30, 1), *texts(20, 2, 0.5)])
    assert mmd(kernel, 30) == pytest.approx(explicit(kernel, 30), rel=1e-9)


Permuted = Callable[..., float]


def level_holds(test: Permuted) -> None:
    """1,500 honest pairs of samples, 19 permutations: P(p <= a) <= a at a = .01, .05, .2.

    At .01 none may be rejected, as the floor is .05. At .05 and .2 the rate is a at most; the bounds are six standard
    deviations away.
    """
    rng = np.random.default_rng(5)
    p_values = np.array([test(gram(texts(16, seed, length=2)), 8, 19, rng) for seed in range(1500)])
    assert p_values.min() >= 1 / 20
    for alpha in (0.01, 0.05, 0.2):
        assert (p_values <= alpha).mean() <= alpha + 6 * np.sqrt(alpha * (1 - alpha) / 1500)
    assert (p_values <= 0.2).mean() > 0.1


def without_the_one(kernel: Any, n: int, permutations: int, rng: np.random.Generator) -> float:
    return permutation_test(kernel, n, permutations, rng) * (1 + permutations) / permutations - 1 / permutations


def test_permutations_hold_their_level() -> None:
    level_holds(permutation_test)


def test_permutations_without_the_one_are_noticed() -> None:
    with pytest.raises(AssertionError):
        level_holds(without_the_one)


def test_ties_count_against_a_difference() -> None:
    same = gram([(1, 2)] * 12)
    assert permutation_test(same, 6, 99, np.random.default_rng(1)) == 1.0
    assert betting_test(same, 6) == 1.0


def swaps_are_fair(test: Callable[[np.ndarray, int], float]) -> None:
    """Under one law every swap within pairs is as likely. Over all 2**9 of them, P(p <= alpha) <= alpha, exactly."""
    n = 9
    for seed in (1, 2, 3):
        sample = [*texts(n, seed, length=2), *texts(n, seed + 50, 0.9, length=2)]
        p_values = []
        for swap in itertools.product((False, True), repeat=n):
            order = [i + n * s for i, s in enumerate(swap)] + [i + n * (not s) for i, s in enumerate(swap)]
            p_values.append(test(gram([sample[i] for i in order]), n))
        found = np.array(p_values)
        for alpha in found:
            assert (found <= alpha * (1 + 1e-9)).mean() <= alpha * (1 + 1e-9)


def knows_the_pair(kernel: np.ndarray, n: int) -> float:
    """The witness has seen the pair that it is asked about: the payoff is never negative."""
    x, y = slice(0, n), slice(n, 2 * n)
    parts = np.tri(n) * (kernel[x, x] - kernel[x, y] - kernel[y, x] + kernel[y, y])
    gain = parts.sum(axis=1) / np.arange(1, n + 1)
    return float(1 / max(1.0, np.prod(1 + 0.5 * np.clip(gain, -1, 1))))


def test_bets_on_pairs_are_fair() -> None:
    swaps_are_fair(betting_test)


@pytest.mark.parametrize("wrong", [knows_the_pair, lambda kernel, n: betting_test(kernel, n) ** 4])
def test_unfair_bets_on_pairs_are_noticed(wrong: Callable[[np.ndarray, int], float]) -> None:
    with pytest.raises(AssertionError):
        swaps_are_fair(wrong)


def test_bets_go_far_below_the_floor_of_permutations() -> None:
    kernel = gram([*texts(1500, 1), *texts(1500, 2, 0.4)])
    assert betting_test(kernel, 1500) < 1e-8
    assert permutation_test(kernel, 1500, 99, np.random.default_rng(1)) == 0.01
    assert betting_test(gram(texts(3000, 3)), 1500) > 1e-3


@pytest.mark.parametrize(("alpha", "method", "floor"), [(0.01, "permutations", 1 / 1100), (1e-6, "bets", 0.0)])
def test_a_difference_is_found_by_the_method_that_the_level_asks_for(alpha: float, method: str, floor: float) -> None:
    x, y, aa, bad = texts(800, 1), texts(800, 2, 0.6), texts(800, 3), texts(800, 4, 0.7)
    found = black_box(x, y, aa, bad, alpha, permutations=1099, splits=10)
    assert (found.method, found.floor, found.samples) == (method, floor, (800, 800))
    assert found.verdict is Verdict.FAILS
    assert found.p_value <= alpha < found.aa_p_value
    honest = black_box(x, texts(800, 5), aa, bad, alpha, permutations=1099, splits=10)
    assert honest.verdict is Verdict.HOLDS
    assert honest.power >= 0.8
    assert honest.statistic < found.statistic


def test_failed_controls_say_nothing() -> None:
    x, same, other = texts(200, 1), texts(200, 2), texts(200, 3, 0.9)
    unstable = black_box(x, same, other, other, 0.01, permutations=999, splits=2)
    assert unstable.verdict is Verdict.UNTESTED
    blind = black_box(x, same, texts(200, 4), texts(200, 5), 0.01, permutations=999, splits=2)
    assert blind.verdict is Verdict.UNTESTED
    assert blind.power <= 0.5
    with pytest.raises(ValueError, match="two sequences"):
        black_box(x, [], same, other, 0.01)


def test_power_grows_with_the_difference() -> None:
    x = texts(300, 1)
    powers = [achieved_power(x, texts(300, 2, mixed), 0.05, 20, 199) for mixed in (0.0, 0.3, 0.9)]
    assert powers[0] <= 0.5
    assert powers[0] <= powers[1] <= powers[2] == 1.0
