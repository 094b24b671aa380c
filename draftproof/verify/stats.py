"""Error budgets: how a run's false-alarm rate is spent over looks and claims. Also the one door to the tests.

Rates are probabilities (1e-6, not percent). Knows no engine, no check and no sample: numbers in, decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from draftproof.verify.fit import CellFit, Fit, detectable_tv, goodness_of_fit, pool, power_at, sample_size
from draftproof.verify.tails import (
    bernoulli_sum_test,
    binomial_test,
    chi2_isf,
    chi2_power,
    chi2_sf,
    detectable_bias,
    noncentrality,
    normal_quantile,
)

__all__ = [
    "CellFit",
    "Fit",
    "Looks",
    "bernoulli_sum_test",
    "binomial_test",
    "chi2_isf",
    "chi2_power",
    "chi2_sf",
    "detectable_bias",
    "detectable_tv",
    "goodness_of_fit",
    "holm",
    "noncentrality",
    "normal_quantile",
    "pool",
    "power_at",
    "sample_size",
]


@dataclass(frozen=True, slots=True)
class Looks:
    """When to look at a growing sample, and what each look may spend of `alpha`.

    Look i sees the first `fractions[i]` of all samples and rejects at `alpha * shares[i]`. The shares sum to 1, so the
    looks together reject an honest engine with probability `alpha` at most (union bound), however they depend on each
    other. Most is kept for the last look: an honest engine has to run to the end anyway, a bad one is seen early.
    """

    alpha: float
    fractions: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0)
    shares: tuple[float, ...] = (0.02, 0.05, 0.13, 0.8)

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha must lie between 0 and 1, not {self.alpha}")
        ends = (0.0, *self.fractions)
        if len(self.fractions) != len(self.shares) or ends[-1] != 1.0 or list(ends) != sorted(set(ends)):
            raise ValueError("fractions must rise to 1, with one share each")
        if min(self.shares) <= 0.0 or not math.isclose(math.fsum(self.shares), 1.0, abs_tol=1e-9):
            raise ValueError("shares must be positive and sum to 1: alpha is spent once")

    def __len__(self) -> int:
        return len(self.fractions)

    def alpha_at(self, i: int) -> float:
        return self.alpha * self.shares[i]

    def sizes(self, samples: int) -> tuple[int, ...]:
        """Samples that each look has seen; the last has seen all."""
        return tuple(math.ceil(f * samples) for f in self.fractions)

    def adjusted(self, i: int, p_value: float) -> float:
        """The look's p-value on the scale of the whole test: below `alpha` exactly if this look rejects.

        The smallest over all looks is the test's p-value.
        """
        return min(1.0, p_value / self.shares[i])

    def samples_for(self, cells: int, power: float, tv: float) -> int:
        """All samples needed so that the last look alone sees every law `tv` away with `power`."""
        return sample_size(cells, self.alpha_at(len(self) - 1), power, tv)


def holm(p_values: Mapping[str, float], alpha: float) -> set[str]:
    """Names rejected by Holm's step-down procedure (1979).

    The probability that any true claim is among them is at most `alpha`, however the tests depend on each other.
    """
    if any(not 0.0 <= p <= 1.0 for p in p_values.values()):
        raise ValueError("a p-value lies outside 0 .. 1 or is NaN")
    rejected: set[str] = set()
    for rank, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        rejected.add(name)
    return rejected
