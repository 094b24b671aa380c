"""Tests for long text that may be stopped at any token: e-processes against a law that is known token by token.

An e-process is the wealth of a gambler whom the null hypothesis gives fair odds: its mean never exceeds 1, so by
Ville's inequality it ever reaches 1 / alpha with probability alpha at most. Its p-value, 1 / (highest wealth so far),
is valid at every stopping time (Ramdas et al. 2023). Logarithms are natural, rows are laws [vocab].

Knows no engine: who teacher-forces p, draws v and decides when to stop calls `update` with what he has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SUM = 1e-4  # a float32 softmax over 50,000 tokens sums to 1 within this


class Wealth:
    """The weighted mean of several gamblers' wealth, in logarithms; each starts at 1."""

    def __init__(self, weights: Sequence[float], names: Sequence[str]) -> None:
        shares = np.asarray(weights, dtype=np.float64)
        if len(shares) != len(names) or not len(names) or not bool((shares > 0.0).all()):
            raise ValueError("one positive weight for each name, at least one")
        self.names = tuple(names)
        self._logs = np.log(shares / shares.sum())
        self._highest = 0.0

    def multiply(self, log_factors: Floats) -> None:
        """One bet's outcome for each gambler, finite or -inf (ruin)."""
        if not bool((log_factors < np.inf).all()):
            raise ValueError("a bet's outcome is NaN or infinite")
        self._logs = self._logs + log_factors
        self._highest = max(self._highest, self.log_e)

    def prove(self) -> None:
        """Something impossible was seen: nothing that follows takes it back."""
        self._highest = math.inf

    @property
    def log_e(self) -> float:
        """Logarithm of the wealth now; inf once there is proof."""
        if self._highest == math.inf:
            return math.inf
        top = float(self._logs.max())
        return top + math.log(float(np.exp(self._logs - top).sum())) if math.isfinite(top) else top

    @property
    def p_value(self) -> float:
        """min(1, 1 / highest wealth so far): stays low once low."""
        return math.exp(-self._highest)

    @property
    def leader(self) -> str:
        """The gambler, that is the suspected fault, who has won the most."""
        return self.names[int(self._logs.argmax())]


class EProcess:
    """Likelihood ratios of suspected alternatives to the target law, mixed: e = sum_j w_j prod q_j(x) / p(x).

    Against the truth q_j it grows by KL(q_j, p) nats a token, and pays log(1 / w_j) once. Texts may follow each other.
    """

    def __init__(self, weights: Sequence[float], names: Sequence[str]) -> None:
        self._wealth = Wealth(weights, names)
        self.tokens = 0

    def update(self, token: int, p: Floats, alternatives: Sequence[Floats] | Floats) -> None:
        """`token` was emitted where the law was `p` [vocab]; alternatives [names, vocab], in the order of the names.

        All must be laws fixed before `token` was known; a row that sums to more than 1 would be unfair odds and is
        refused. Each may change from token to token.
        """
        if len(alternatives) != len(self._wealth.names):
            raise ValueError(f"{len(alternatives)} alternatives for {len(self._wealth.names)} names")
        chance = _law(p)[token]
        odds = np.array([_law(row)[token] for row in alternatives])
        self.tokens += 1
        if chance == 0.0:
            self._wealth.prove()
            return
        with np.errstate(divide="ignore"):
            self._wealth.multiply(np.log(odds) - np.log(chance))

    @property
    def log_e(self) -> float:
        return self._wealth.log_e

    @property
    def p_value(self) -> float:
        return self._wealth.p_value

    @property
    def leader(self) -> str:
        return self._wealth.leader


def _law(row: Floats) -> Floats:
    """The row in float64, normalised exactly. Refuses what is no law."""
    law = np.asarray(row, dtype=np.float64)
    total = float(law.sum())
    if law.ndim != 1 or not bool((law >= 0.0).all()) or abs(total - 1.0) > _SUM:
        raise ValueError(f"not a law: shape {law.shape}, sum {total}")
    normal: Floats = law / total
    return normal


def suspects(p: Floats, q: Floats | None, before: Floats | None) -> dict[str, Floats]:
    """Laws that well-known faults emit, by name. `q`: the draft law, `before`: the row of the previous position.

    The keys depend only on which of the two are given, so that they can be the names of an `EProcess`.
    """
    bank = {"sharper": _power(p, 1.1), "much sharper": _power(p, 2.0), "flatter": _power(p, 0.9), "top half": _half(p)}
    for name, other in (("draft", q), ("previous row", before)):
        if other is not None:
            bank |= {f"{name}, {share:.0%}": share * other + (1.0 - share) * p for share in (0.03, 0.2, 0.9)}
    if q is not None:
        bank["residual |p - q|"] = 0.5 * p + 0.5 * _normal(np.abs(p - q), p)
        bank["residual (p - q)+"] = 0.9 * p + 0.1 * _normal(np.maximum(p - q, 0.0), p)
    return bank


def _power(p: Floats, exponent: float) -> Floats:
    raised: Floats = np.power(p, exponent)
    return _normal(raised, p)


def _half(p: Floats) -> Floats:
    """p mixed with p cut to the smallest set that holds half the mass."""
    order = np.argsort(-p, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 1]
    cut = np.zeros_like(p)
    cut[kept] = p[kept]
    return 0.9 * p + 0.1 * _normal(cut, p)


def _normal(mass: Floats, otherwise: Floats) -> Floats:
    total = float(mass.sum())
    return mass / total if total > 0.0 else otherwise


class Order(StrEnum):
    """How tokens are lined up for the probability integral transform."""

    ID = "id"
    MASS = "mass"  # most probable first; equals by id


def pit_value(p: Floats, token: int, v: float, order: Order = Order.ID) -> float:
    """u = F(x-) + v p(x), F the cumulative law in the given order, v uniform on [0, 1) and independent of the text.

    Uniform on [0, 1), and independent of all before, exactly if `token` was drawn from `p` (Rosenblatt 1952; randomised
    by Brockwell 2007). A token of probability 0 has no value and raises; `Pit` takes it as proof.
    """
    law = _law(p)
    if law[token] == 0.0:
        raise ValueError(f"token {token} has probability 0")
    if order is Order.ID:
        below = float(law[:token].sum())
    else:
        ahead = law > law[token]
        below = float(law[ahead].sum() + law[:token][law[:token] == law[token]].sum())
    return min(below + v * float(law[token]), math.nextafter(1.0, 0.0))


# (bins, prior counts per bin, whether the previous value's bin is the context). A large prior bets carefully: little
# is lost under the null, little is won early on.
_GAMBLERS = [(b, a, memory) for memory in (False, True) for b in (2, 4, 16) for a in (0.5, 10.0, 200.0)]


class UniformBets:
    """Betting that numbers are not independent and uniform on [0, 1): Dirichlet predictives over equal bins, mixed.

    A gambler's factor is bins * (predicted probability of the bin that came), which has mean 1 under the null whatever
    came before (Krichevsky and Trofimov 1981 for prior 1/2). Gamblers with memory see dependence that leaves each value
    uniform, such as noise that is used twice.
    """

    def __init__(self) -> None:
        names = [f"{b} bins, prior {a:g}{', by the value before' if m else ''}" for b, a, m in _GAMBLERS]
        self._wealth = Wealth([1.0] * len(names), names)
        self._counts = [np.full((b if memory else 1, b), a) for b, a, memory in _GAMBLERS]
        self._before: float | None = None

    def restart(self) -> None:
        """A new text begins: its first value has none before it."""
        self._before = None

    def update(self, u: float) -> None:
        if not 0.0 <= u < 1.0:
            raise ValueError(f"{u} is not in [0, 1)")
        self._wealth.multiply(np.log([self._bet(i, u) for i in range(len(_GAMBLERS))]))
        self._before = u

    def _bet(self, i: int, u: float) -> float:
        bins, _, memory = _GAMBLERS[i]
        if memory and self._before is None:
            return 1.0
        counts = self._counts[i][int((self._before or 0.0) * bins) if memory else 0]
        factor = bins * counts[int(u * bins)] / counts.sum()
        counts[int(u * bins)] += 1.0
        return float(factor)

    @property
    def log_e(self) -> float:
        return self._wealth.log_e

    @property
    def p_value(self) -> float:
        return self._wealth.p_value

    @property
    def leader(self) -> str:
        return self._wealth.leader


class Pit:
    """The randomised transform in both orders, each bet on: log_e is that of their mean, itself an e-process."""

    def __init__(self) -> None:
        self._bets: Mapping[Order, UniformBets] = {order: UniformBets() for order in Order}
        self._highest = 0.0

    def restart(self) -> None:
        for bets in self._bets.values():
            bets.restart()

    def update(self, token: int, p: Floats, v: float) -> None:
        """`token` was emitted where the law was `p` [vocab]; `v` uniform on [0, 1), fresh for each token."""
        if _law(p)[token] == 0.0:
            self._highest = math.inf
            return
        for order, bets in self._bets.items():
            bets.update(pit_value(p, token, v, order))
        self._highest = max(self._highest, self.log_e)

    @property
    def log_e(self) -> float:
        if self._highest == math.inf:
            return math.inf
        a, b = (bets.log_e for bets in self._bets.values())
        return max(a, b) + math.log1p(math.exp(-abs(a - b))) - math.log(2.0)

    @property
    def p_value(self) -> float:
        return math.exp(-self._highest)

    @property
    def leader(self) -> str:
        """The order and the gambler that have won the most."""
        order = max(self._bets, key=lambda o: self._bets[o].log_e)
        return f"order by {order}: {self._bets[order].leader}"
