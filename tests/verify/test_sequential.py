"""E-processes and the transform: means and crossing probabilities worked out exactly, then power by sampling."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftproof.verify import sequential
from draftproof.verify.sequential import EProcess, Order, Pit, UniformBets, pit_value, suspects

P = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
Q = np.array([[0.2, 0.3, 0.5, 0.0], [0.4, 0.3, 0.2, 0.1], [0.6, 0.2, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])
Make = Callable[[], EProcess]


class DividesByTheDraft(EProcess):
    def update(self, token: int, p: Any, alternatives: Any) -> None:
        super().update(token, alternatives[0], [p] * len(alternatives))


class DividesByTheRowBefore(EProcess):
    before = P[2]

    def update(self, token: int, p: Any, alternatives: Any) -> None:
        super().update(token, self.before, alternatives)
        self.before = p


class PicksTheBest(EProcess):
    """The mixture's weights are chosen after the fact."""

    @property
    def log_e(self) -> float:
        return float(self._wealth._logs.max()) + math.log(len(self._wealth.names))


def alternatives(token: int) -> list[np.ndarray]:
    return [Q[token], 0.8 * P[token] + 0.2 * Q[token], P[(token + 1) % 4] * (P[token] > 0) + [0, 0, 0, P[0, 3]]]


def paths(make: type[EProcess], length: int = 4) -> list[tuple[float, float, float]]:
    """(probability under p, log e at the end, p-value) of every text; the next row depends on the token."""
    found = []
    for text in itertools.product(range(4), repeat=length):
        process, row, chance = make([2.0, 1.0], ["q", "mix"]), 0, 1.0
        for token in text:
            chance *= float(P[row, token])
            if chance:
                process.update(token, P[row], alternatives(row)[:2])
            row = token
        if chance:
            found.append((chance, process.log_e, process.p_value))
    return found


def is_fair(make: type[EProcess]) -> None:
    """The mean wealth is 1, and the p-value is at most alpha with probability alpha at most, exactly."""
    found = paths(make)
    assert math.fsum(w for w, _, _ in found) == pytest.approx(1.0)
    assert math.fsum(w * math.exp(e) for w, e, _ in found) == pytest.approx(1.0, rel=1e-9)
    for alpha in {p for _, _, p in found}:
        assert math.fsum(w for w, _, p in found if p <= alpha) <= alpha + 1e-12


def test_likelihood_ratios_are_fair_bets() -> None:
    is_fair(EProcess)


@pytest.mark.parametrize("wrong", [DividesByTheDraft, DividesByTheRowBefore, PicksTheBest])
def test_unfair_bets_are_noticed(wrong: type[EProcess]) -> None:
    with pytest.raises(AssertionError):
        is_fair(wrong)


def test_log_e_by_hand() -> None:
    process = EProcess([3.0, 1.0], ["q", "mix"])
    assert (process.log_e, process.p_value) == (pytest.approx(0.0, abs=1e-12), 1.0)
    process.update(2, P[0], [Q[0], P[0]])
    assert process.log_e == pytest.approx(math.log(0.75 * 2.5 + 0.25))
    low = process.p_value
    process.update(0, P[0], [Q[0], P[0]])
    assert process.log_e == pytest.approx(math.log(0.75 * 2.5 * 0.4 + 0.25))
    assert process.p_value == low == pytest.approx(1 / 2.125)  # the highest wealth counts
    assert process.leader == "q"
    assert process.tokens == 2


def test_the_impossible_is_proof_and_stays() -> None:
    process = EProcess([1.0], ["q"])
    process.update(3, P[0], [Q[0]])
    process.update(0, P[0], [np.array([0.0, 0.5, 0.5, 0.0])])
    assert (process.log_e, process.p_value) == (math.inf, 0.0)


def test_a_ruined_suspect_stays_ruined() -> None:
    process = EProcess([1.0, 1.0], ["never 0", "fair"])
    process.update(0, P[0], [np.array([0.0, 0.5, 0.5, 0.0]), P[0]])
    assert process.log_e == pytest.approx(-math.log(2))
    assert process.leader == "fair"
    alone = EProcess([1.0], ["never 0"])
    alone.update(0, P[0], [np.array([0.0, 0.5, 0.5, 0.0])])
    assert alone.log_e == -math.inf


def test_rows_that_are_no_laws_are_refused() -> None:
    process = EProcess([1.0], ["q"])
    for row in (Q[0] * 1.1, np.array([1.5, -0.5, 0.0, 0.0]), np.array([math.nan, 1.0, 0.0, 0.0])):
        with pytest.raises(ValueError, match="not a law"):
            process.update(0, P[0], [row])
        with pytest.raises(ValueError, match="not a law"):
            process.update(0, row, [P[0]])
    with pytest.raises(ValueError, match="alternatives"):
        process.update(0, P[0], [Q[0], Q[0]])
    for weights, names in (([], []), ([1.0, 0.0], ["a", "b"]), ([1.0], ["a", "b"])):
        with pytest.raises(ValueError, match="weight"):
            EProcess(weights, names)


def text_law(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(16), size=16), rng.dirichlet(np.ones(16), size=16)


FAULTS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "10 % draft": lambda p, q, before: 0.9 * p + 0.1 * q,
    "temperature": lambda p, q, before: p**1.2 / (p**1.2).sum(),
    "row before": lambda p, q, before: 0.7 * p + 0.3 * before,
    "residual": lambda p, q, before: (
        np.minimum(p, q) + np.abs(p - q) / np.abs(p - q).sum() * (1 - np.minimum(p, q).sum())
    ),
}


def evidence(fault: Callable[..., np.ndarray] | None, seed: int, tokens: int) -> tuple[EProcess, Pit]:
    p, q = text_law(7)
    rng = np.random.default_rng(seed)
    process, pit = None, Pit()
    row, before = 0, p[0]
    for _ in range(tokens):
        bank = suspects(p[row], q[row], before)
        process = process or EProcess([1.0] * len(bank), list(bank))
        law = fault(p[row], q[row], before) if fault else p[row]
        token = int(rng.choice(16, p=law))
        process.update(token, p[row], list(bank.values()))
        pit.update(token, p[row], float(rng.random()))
        row, before = token, p[row]
    assert process is not None
    return process, pit


@pytest.mark.parametrize("fault", FAULTS)
def test_known_faults_are_found_in_long_text(fault: str) -> None:
    process, _ = evidence(FAULTS[fault], 11, 4000)
    assert process.p_value < 1e-8


def test_a_strong_fault_shows_in_the_transform_and_names_an_order() -> None:
    _, pit = evidence(lambda p, q, before: p**2 / (p**2).sum(), 12, 1500)
    assert pit.p_value < 1e-8
    assert pit.leader.startswith("order by mass")


def test_honest_text_gives_no_evidence() -> None:
    """60 texts, two p-values each. By Ville's inequality P(p <= .05) <= .05; more than 16 of 60 has P < 1e-8."""
    found = [evidence(None, 100 + i, 150) for i in range(60)]
    for p_values in ([a.p_value for a, _ in found], [b.p_value for _, b in found]):
        assert min(p_values) > 1e-6
        assert sum(p <= 0.05 for p in p_values) <= 16


# --- the transform ------------------------------------------------------------------------------------------------


def is_uniform(value: Callable[[np.ndarray, int, float, Order], float]) -> None:
    """The tokens' intervals have the length of their probability and tile [0, 1)."""
    for order, p in itertools.product(Order, P):
        spans = sorted((value(p, x, 0.0, order), value(p, x, 1.0, order), p[x]) for x in range(4) if p[x] > 0)
        assert spans[0][0] == 0.0
        assert spans[-1][1] == pytest.approx(1.0)
        for low, high, chance in spans:
            assert high - low == pytest.approx(chance)
        assert all(a[1] == pytest.approx(b[0]) for a, b in itertools.pairwise(spans))


def test_the_transform_is_uniform() -> None:
    is_uniform(pit_value)
    assert pit_value(P[1], 0, 0.5, Order.ID) == pytest.approx(0.05)
    assert pit_value(P[1], 0, 0.5, Order.MASS) == pytest.approx(0.95)
    assert pit_value(P[2], 3, 1.0, Order.MASS) < 1.0
    with pytest.raises(ValueError, match="probability 0"):
        pit_value(P[0], 3, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, x, v, order: pit_value(p, x, 1.0 - v / 2, order),
        lambda p, x, v, order: min(float(p[: x + 1].sum()) + v * float(p[x]), 1.0),  # F(x) for F(x-)
        lambda p, x, v, order: float(p[p > p[x]].sum()) + v * float(p[x]),  # equals share a place
        lambda p, x, v, order: pit_value(np.roll(p, 1), x, v, order) if np.roll(p, 1)[x] else 0.0,
    ],
)
def test_a_wrong_transform_is_noticed(wrong: Any) -> None:
    with pytest.raises(AssertionError):
        is_uniform(wrong)


class LooksAhead(UniformBets):
    def update(self, u: float) -> None:
        for counts, (bins, _, memory) in zip(self._counts, sequential._GAMBLERS, strict=True):
            if not memory:
                counts[0, int(u * bins)] += 1.0
        super().update(u)


def bets_fairly(make: type[UniformBets]) -> None:
    """Whatever came before, the mean factor over one further uniform number is 1; 16 bins make that a sum."""
    rng = np.random.default_rng(3)
    for length in (0, 1, 5, 200):
        bets = make()
        for u in rng.random(length) ** 2:
            bets.update(float(u))
        before, after = bets.log_e, []
        for k in range(16):
            other = copy.deepcopy(bets)
            other.update((k + 0.5) / 16)
            after.append(other.log_e)
        assert np.mean(np.exp(np.array(after) - before)) == pytest.approx(1.0, rel=1e-9)


def test_bets_on_uniform_numbers_are_fair() -> None:
    bets_fairly(UniformBets)
    with pytest.raises(AssertionError):
        bets_fairly(LooksAhead)


def wealth(numbers: np.ndarray) -> UniformBets:
    bets = UniformBets()
    for u in numbers:
        bets.update(float(u))
    return bets


def test_bets_win_on_what_is_not_uniform_or_not_independent() -> None:
    u = np.random.default_rng(8).random(3000)
    assert wealth(u).p_value > 1e-3
    assert wealth(u**1.3).p_value < 1e-8
    again = wealth(np.repeat(u[:300], 2))  # each number twice: uniform, but not independent
    assert again.p_value < 1e-8
    assert "by the value before" in again.leader


def test_memory_ends_with_the_text() -> None:
    bets = UniformBets()
    for u in np.random.default_rng(9).random(1000):
        bets.restart()
        bets.update(float(u))
        bets.update(float(u))
        bets.restart()
    fresh = UniformBets()
    for u in np.random.default_rng(9).random(1000):
        fresh.restart()
        fresh.update(float(u))
    assert bets.p_value < 1e-8
    assert fresh.log_e == pytest.approx(log_e_without_memory(9), abs=1e-9)


def log_e_without_memory(seed: int) -> float:
    """log e of the same numbers when the gamblers with memory never bet."""
    logs = []
    for bins, prior, memory in sequential._GAMBLERS:
        counts, total = np.full(bins, prior), 0.0
        for u in np.random.default_rng(seed).random(1000):
            if not memory:
                total += math.log(bins * counts[int(u * bins)] / counts.sum())
                counts[int(u * bins)] += 1
        logs.append(total)
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))


def test_numbers_outside_the_unit_interval_are_refused() -> None:
    for u in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\)"):
            UniformBets().update(u)


def test_both_orders_are_averaged_and_the_impossible_is_proof() -> None:
    pit = Pit()
    pit.update(1, P[1], 0.3)
    pit.update(2, P[1], 0.6)
    both = [wealth(np.array([pit_value(P[1], 1, 0.3, o), pit_value(P[1], 2, 0.6, o)])).log_e for o in Order]
    assert pit.log_e == pytest.approx(float(np.logaddexp(*both)) - math.log(2))
    pit.update(3, P[0], 0.5)
    pit.restart()
    pit.update(0, P[0], 0.5)
    assert (pit.log_e, pit.p_value) == (math.inf, 0.0)


def test_the_bank_holds_laws_under_fixed_names() -> None:
    p, q = text_law(1)
    names = list(suspects(p[0], q[0], p[1]))
    assert names == list(suspects(p[3], p[3], p[3]))  # q = p: the residual is empty
    assert "previous row, 20%" not in suspects(p[0], q[0], None)
    for law in (*suspects(p[0], q[0], p[1]).values(), *suspects(P[0], Q[0], P[3]).values()):
        assert law.sum() == pytest.approx(1.0)
        assert law.min() >= 0.0
