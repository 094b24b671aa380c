"""Black box: do two samples of short sequences come from one law, when nothing but the sequences is known?

The distance is the squared maximum mean discrepancy (Gretton et al. 2012) under the product Hamming kernel
k(x, y) = prod_i (1 + [x_i = y_i]) / 2 over sequences padded to one length with an end mark. It is positive definite
as a product of such kernels and sees joint laws, not only each position's.

Two tests. *Permutations*: exact, but no p-value lies below 1 / (1 + permutations). *Bets*: pair by pair, stake on the
witness function learned from the pairs before (Shekhar and Ramdas 2021); weaker, but valid at every stopping time and
without a floor, so small levels need no fitted tail. `black_box` takes the one that the level asks for.

Knows no engine and no text: an item is any hashable thing, such as a token, a character or a word.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Verdict

Floats = NDArray[np.float64]
Kernel = NDArray[np.float32]
Sequences = Sequence[Sequence[Hashable]]

_BLOCK = 512
_STAKES = np.array([0.05, 0.1, 0.2, 0.4, 0.7])  # shares of wealth; fixed, one gambler each


@dataclass(frozen=True, slots=True)
class TwoSample:
    """`p_value`: the two samples; `aa_p_value`: the same engine twice; `bad_p_value`: a known difference.

    `power`: share of half-size splits in which the known difference was seen, so a low figure for the full size.
    `floor`: the least p-value that the method can give.
    """

    p_value: float
    aa_p_value: float
    bad_p_value: float
    alpha: float
    power: float
    statistic: float
    samples: tuple[int, int]
    method: str
    floor: float

    @property
    def verdict(self) -> Verdict:
        """Nothing is said if the engine differs from itself, nor "holds" if a known difference was missed."""
        if self.aa_p_value <= self.alpha:
            return Verdict.UNTESTED
        if self.p_value <= self.alpha:
            return Verdict.FAILS
        return Verdict.HOLDS if self.bad_p_value <= self.alpha else Verdict.UNTESTED


def gram(sequences: Sequences) -> Kernel:
    """Kernel values [n, n] in (0, 1], 1 on the diagonal. Unequal lengths differ at the shorter one's end marks.

    Powers of 1/2, so single precision is exact up to 126 items.
    """
    length = max((len(s) for s in sequences), default=0)
    ids: dict[Hashable, int] = {}
    codes = np.full((len(sequences), length), -1, dtype=np.int32)  # -1: behind the end
    for row, sequence in zip(codes, sequences, strict=True):
        row[: len(sequence)] = [ids.setdefault(item, len(ids)) for item in sequence]
    kernel = np.ones((len(sequences), len(sequences)), dtype=np.float32)
    for start in range(0, len(sequences), _BLOCK):  # blocks, as a whole matrix of comparisons would double the memory
        rows = slice(start, start + _BLOCK)
        for column in codes.T:
            kernel[rows] *= np.where(column[rows, None] == column[None, :], np.float32(1.0), np.float32(0.5))
    return kernel


def mmd(kernel: Kernel, n: int) -> float:
    """Squared discrepancy (V-statistic, >= 0) between the first `n` rows of `kernel` [n + m, n + m] and the rest."""
    weights = _weights(np.arange(len(kernel))[None, :] < n)
    return max(0.0, float(_discrepancies(kernel, weights)[0]))


def _discrepancies(kernel: Kernel, weights: Floats) -> Floats:
    """w' K w for each row w of `weights` [splits, n + m], in double precision, a block of the kernel at a time."""
    total = np.zeros(len(weights))
    for start in range(0, len(kernel), _BLOCK):
        block = slice(start, start + _BLOCK)
        part = weights @ kernel[:, block].astype(np.float64)
        total += np.einsum("ij,ij->i", part, weights[:, block])
    return total


def _weights(first: NDArray[np.bool_]) -> Floats:
    """[splits, n + m]: 1/n in the first sample, -1/m in the second."""
    n = first.sum(axis=1, keepdims=True)
    weights: Floats = np.where(first, 1.0 / n, -1.0 / (first.shape[1] - n))
    return weights


def permutation_test(kernel: Kernel, n: int, permutations: int, rng: np.random.Generator) -> float:
    """p = (1 + number of relabelled discrepancies as large) / (1 + permutations): P(p <= a) <= a under one law.

    The 1 is the labelling at hand. The least p-value is 1 / (1 + permutations).
    """
    size = len(kernel)
    at_hand = mmd(kernel, n) * (1.0 - 1e-9) - 1e-12  # one that changes nothing counts, whatever the rounding
    as_large = 0
    for start in range(0, permutations, _BLOCK):
        block = min(_BLOCK, permutations - start)
        first = rng.permuted(np.tile(np.arange(size) < n, (block, 1)), axis=1)
        as_large += int((_discrepancies(kernel, _weights(first)) >= at_hand).sum())
    return (1 + as_large) / (1 + permutations)


def betting_test(kernel: Kernel, n: int) -> float:
    """Anytime-valid p-value from pairs (x_t, y_t), t < min(n, m), in the order given. No floor; needs no randomness.

    The payoff of pair t is w(x_t) - w(y_t) for the witness w(z) = mean k(x_s, z) - mean k(y_s, z) over s < t, divided
    by three root mean squares of the payoffs before and clipped to [-1, 1]. Under one law the pair can be swapped,
    which flips its sign, so its mean is 0 whatever came before.
    """
    pairs = min(n, len(kernel) - n)
    x, y = slice(0, pairs), slice(n, n + pairs)
    seen = np.maximum(np.arange(pairs), 1)
    xx, xy, yx, yy = kernel[x, x], kernel[x, y], kernel[y, x], kernel[y, y]
    gain = np.array(
        [float((xx[t, :t] - xy[t, :t] - yx[t, :t] + yy[t, :t]).sum(dtype=np.float64)) for t in range(pairs)]
    )
    gain /= seen
    spread = 3.0 * np.sqrt(np.append(0.0, np.cumsum(gain[:-1] ** 2)) / seen)
    payoff = np.clip(np.divide(gain, spread, out=np.zeros_like(gain), where=spread > 0), -1.0, 1.0)
    wealth = np.exp(np.cumsum(np.log1p(_STAKES[:, None] * payoff), axis=1)).mean(axis=0)
    return 1.0 / max(1.0, float(wealth.max(initial=1.0)))


def achieved_power(
    x: Sequences, bad: Sequences, alpha: float, splits: int = 50, permutations: int = 9999, seed: int = 1
) -> float:
    """Share of random half-size splits of `x` and `bad`, which are known to differ, that are rejected at `alpha`.

    Splits overlap, so this is an estimate, and a low one for the full size.
    """
    rng = np.random.default_rng(seed)
    kernel = gram([*x, *bad])
    rejected = 0
    for _ in range(splits):
        a = rng.permutation(len(x))[: len(x) // 2]
        b = len(x) + rng.permutation(len(bad))[: len(bad) // 2]
        both = np.concatenate([a, b])
        rejected += _p_value(kernel[np.ix_(both, both)], len(a), alpha, permutations, rng) <= alpha
    return rejected / splits


def _by_permutations(alpha: float, permutations: int) -> bool:
    """Whether labels can be permuted often enough for `alpha`: at least ten times as often as the floor needs."""
    return alpha * (1 + permutations) >= 10.0


def _p_value(kernel: Kernel, n: int, alpha: float, permutations: int, rng: np.random.Generator) -> float:
    if _by_permutations(alpha, permutations):
        return permutation_test(kernel, n, permutations, rng)
    return betting_test(kernel, n)


def black_box(
    x: Sequences,
    y: Sequences,
    aa: Sequences,
    bad: Sequences,
    alpha: float,
    permutations: int = 9999,
    splits: int = 50,
    seed: int = 1,
) -> TwoSample:
    """Compare `x` (plain decoding) with `y` (speculative), with controls.

    `aa` is a second sample of what made `x`: an engine that differs from itself can show nothing. `bad` comes from a
    law that is known to differ as little as must be seen: missing it means that the samples are too few. All four are
    independent draws for the same prompt, or for the same prompts in random order.
    """
    if min(len(x), len(y), len(aa), len(bad)) < 2:
        raise ValueError("each of the four samples needs at least two sequences")
    rng = np.random.default_rng(seed)
    kernel = gram([*x, *y])
    own, same, known = (_p_value(gram([*x, *other]), len(x), alpha, permutations, rng) for other in (y, aa, bad))
    labels = _by_permutations(alpha, permutations)
    return TwoSample(
        p_value=own,
        aa_p_value=same,
        bad_p_value=known,
        alpha=alpha,
        power=achieved_power(x, bad, alpha, splits, permutations, seed),
        statistic=mmd(kernel, len(x)),
        samples=(len(x), len(y)),
        method="permutations" if labels else "bets",
        floor=1.0 / (1 + permutations) if labels else 0.0,
    )
