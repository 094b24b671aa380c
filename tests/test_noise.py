"""Noise: reference outputs, independence between keys, and races against the plain argmin over all tokens.

Statistical tests have fixed seeds and a threshold of 1e-8 a comparison; there are fewer than 60, so a sound generator
fails the file with probability below 1e-6. Each says what it would see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from draftproof import noise
from draftproof.noise import ExponentialRace, Purpose, StepNoise, hashes, key, mix, uniform
from draftproof.types import Law
from draftproof.verify.enumerate import race_joint

REJECT = 1e-8
GAMMA = 0x9E3779B97F4A7C15
# Outputs of Vigna's splitmix64.c for the state 1234567, as published on Rosetta Code.
SPLITMIX = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
]  # fmt: skip


def test_reference_outputs() -> None:
    assert hashes(1234567, np.arange(5)).tolist() == SPLITMIX
    assert [mix((1234567 + (i + 1) * GAMMA) % 2**64) for i in range(5)] == SPLITMIX
    assert key(1234567) == SPLITMIX[0]


@pytest.mark.parametrize("start", [0, 1, 1234567, 2**63, 2**64 - 1])
def test_scalar_and_vector_hashes_agree(start: int) -> None:
    ids = np.array([0, 1, 2, 49_151, 2**31, 2**40])
    assert hashes(start, ids).tolist() == [mix((start + (int(i) + 1) * GAMMA) % 2**64) for i in ids]
    assert key(start) == int(hashes(start, np.array([0]))[0])


def test_keys_do_not_depend_on_the_order_of_calls() -> None:
    words = [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), ()]
    assert [key(*w) for w in words] == [key(*w) for w in reversed(words)][::-1]
    assert len({key(*w) for w in words}) == len(words)


def test_uniform_lies_in_the_half_open_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(0 <= uniform(seed, 3) < 1 for seed in range(1000))
    for word, value in ((0, 0.0), (2**64 - 1, 1 - 2.0**-53)):
        monkeypatch.setattr(noise, "key", lambda *words, word=word: word)
        assert uniform(1) == value


Source = Callable[[int, int, int, int], float]
NEIGHBOURS = {
    "seed": (1, 0, 0, 0), "origin": (0, 1, 0, 0), "offset": (0, 0, 1, 0), "purpose": (0, 0, 0, 1),
    "diagonal": (0, 1, -1, 0), "high seed": (2**40, 0, 0, 0),
}  # fmt: skip


def p_values(source: Source, shift: tuple[int, int, int, int]) -> list[float]:
    """Of uniformity in 64 bins, of 16 x 16 cells of neighbours, and of their correlation, over 21,600 keys."""
    keys = [(s, o, i, u) for s in range(30) for o in range(30) for i in range(6) for u in range(1, 5)]
    here = np.array([source(*k) for k in keys])
    there = np.array([source(*(a + b for a, b in zip(k, shift, strict=True))) for k in keys if k[2] > 0])
    pair = here[[k[2] > 0 for k in keys]]
    bins = np.histogram(here, bins=64, range=(0, 1))[0]
    cells = np.histogram2d(pair, there, bins=16, range=((0, 1), (0, 1)))[0].ravel()
    linked = 0.0 if np.ptp(there) == 0 else float(stats.pearsonr(pair, there).pvalue)
    return [float(stats.chisquare(bins).pvalue), float(stats.chisquare(cells).pvalue), linked]


@pytest.mark.parametrize("shift", NEIGHBOURS)
def test_neighbouring_keys_are_independent(shift: str) -> None:
    """Power above 0.99: one bin of 64 off by 75 %, one cell of 256 by 180 %, or a correlation of 0.07."""
    assert min(p_values(uniform, NEIGHBOURS[shift])) > REJECT


FAULTY: dict[str, tuple[Source, str]] = {
    "purpose left out": (lambda s, o, i, u: uniform(s, o, i), "purpose"),
    "position instead of origin and offset": (lambda s, o, i, u: uniform(s, o + i, u), "diagonal"),
    "seed cut to 32 bits": (lambda s, o, i, u: uniform(s % 2**32, o, i, u), "high seed"),
    "added, not hashed": (lambda s, o, i, u: (s * 0.1 + o * 0.01 + i * 0.17 + u * 0.3) % 1.0, "seed"),
    "without the last shift": (lambda s, o, i, u: ((s + 31 * o + 7 * i + u) * GAMMA % 2**64) / 2**64, "offset"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_faulty_keys_are_caught(fault: str) -> None:
    source, shift = FAULTY[fault]
    assert min(p_values(source, NEIGHBOURS[shift])) < REJECT


def test_a_step_meets_samples_and_races_of_another_but_not_its_uniforms() -> None:
    early, late, law = StepNoise(5, 10), StepNoise(5, 12), Law(50, None, np.ones(50))
    assert early.sample(3) == late.sample(1)
    assert [early.race(i + 2).winner(law) for i in range(40)] == [late.race(i).winner(law) for i in range(40)]
    for purpose in Purpose:
        assert early.uniform(3, purpose) != late.uniform(1, purpose)
        assert early.uniform(3, purpose) == StepNoise(5, 10).uniform(3, purpose) != StepNoise(6, 10).uniform(3, purpose)


# --- races ----------------------------------------------------------------------------------------------------------


def brute(start: int, law: Law) -> int:
    """argmin of -log(U)/p over all tokens, in extended precision."""
    complement = (~hashes(start, np.arange(law.vocab))).astype(np.longdouble)
    with np.errstate(divide="ignore", over="ignore"):
        return int(np.argmin(-np.log1p(-(complement + 0.5) * np.longdouble(2.0) ** -64) / law.dense()))


def _peaked(rng: np.random.Generator, vocab: int) -> Law:
    weights = np.full(vocab, 0.5 / vocab)
    weights[rng.integers(vocab)] = 0.5
    return Law(vocab, None, weights)


def _border(rng: np.random.Generator, vocab: int) -> Law:
    """Many tokens a little above and below the share at which pruning begins."""
    return Law(vocab, None, rng.uniform(0.2, 1.8, size=vocab))


def _zeros(rng: np.random.Generator, vocab: int) -> Law:
    return Law(vocab, None, rng.exponential(size=vocab) * (rng.random(vocab) < 0.1) + 1e-30 * (np.arange(vocab) == 2))


def _sparse(rng: np.random.Generator, vocab: int) -> Law:
    ids = np.sort(rng.permutation(vocab)[: vocab // 20 + 1])
    return Law(vocab, ids, rng.exponential(size=len(ids)) * (np.arange(len(ids)) % 3 != 1))


LAWS: dict[str, Callable[[np.random.Generator, int], Law]] = {
    "flat": lambda rng, vocab: Law(vocab, None, np.ones(vocab, dtype=np.float32)),
    "softmax": lambda rng, vocab: Law(vocab, None, np.exp(3 * rng.normal(size=vocab)).astype(np.float32)),
    "zipf": lambda rng, vocab: Law(vocab, None, 1 / (1 + rng.permutation(vocab)) ** 1.2),
    "tiny weights": lambda rng, vocab: Law(vocab, None, 1e-12 / (1 + rng.permutation(vocab)) ** 0.8),
    "peaked": _peaked,
    "border": _border,
    "zeros": _zeros,
    "sparse": _sparse,
    "one-hot": lambda rng, vocab: Law(vocab, None, np.eye(1, vocab, k=int(rng.integers(vocab)))[0]),
    "subnormal": lambda rng, vocab: Law(vocab, None, np.where(np.arange(vocab) == 1, 1.0, 5e-324)),
}
SIZES = {3: 60, 1_000: 60, 50_000: 20}


def mismatches(name: str, vocab: int) -> int:
    rng = np.random.default_rng(8)
    laws = [(start, LAWS[name](rng, vocab)) for start in range(SIZES[vocab])]
    return sum(ExponentialRace(key(start)).winner(law) != brute(key(start), law) for start, law in laws)


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("name", LAWS)
def test_winner_is_the_argmin_over_all_tokens(name: str, vocab: int) -> None:
    assert mismatches(name, vocab) == 0


def test_pruning_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the bound on the unlikely tokens is a third of what it must be. Seen where many are near the border."""
    monkeypatch.setattr(noise, "math", SimpleNamespace(exp=lambda x: math.exp(x / 3)))
    assert mismatches("border", 1_000) > 0


@pytest.mark.parametrize("name", ["softmax", "zipf", "zeros", "border"])
def test_dense_and_sparse_forms_of_a_law_have_one_winner(name: str) -> None:
    rng = np.random.default_rng(9)
    for start in range(100):
        law, race = LAWS[name](rng, 2_000), ExponentialRace(key(start, 1))
        ids = np.flatnonzero(law.weights)
        shrunk = Law(2_000, ids, law.weights[ids])
        assert race.winner(law) == race.winner(shrunk) == ExponentialRace(key(start, 1)).winner(shrunk)


def test_ends_of_the_exponential_are_finite_and_positive() -> None:
    ends = noise._exponential(np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64))
    assert ends == pytest.approx(
        [65 * math.log(2), 64 * math.log(2) - math.log(1.5), math.log(2), math.log(2), 2.0**-65]
    )


def test_winners_follow_the_law() -> None:
    """20,000 races. Power above 0.99: a token of probability 0.2 that wins a tenth more or less often."""
    weights = np.array([0.5, 0.2, 0.2, 0.0, 0.0995, 0.0005])
    wins = np.bincount([ExponentialRace(key(10, i)).winner(Law(6, None, weights)) for i in range(20_000)], minlength=6)
    assert wins[3] == 0
    assert stats.chisquare(wins[weights > 0], 20_000 * weights[weights > 0]).pvalue > REJECT


def test_winners_of_a_large_law_follow_it() -> None:
    """2,000 races of 50,000 tokens. Power above 0.99: pruned tokens, half of the law, that win a fifth too seldom."""
    law = Law(50_000, None, np.r_[np.full(25_000, 0.5 / 25_000), np.full(10, 0.05), np.zeros(24_990)])
    wins = np.array([ExponentialRace(key(11, i)).winner(law) for i in range(2_000)])
    groups = np.histogram(wins, bins=[0, 6_250, 12_500, 18_750, 25_000, 25_005, 25_010, 50_000])[0]
    assert groups[-1] == 0
    assert stats.chisquare(groups[:-1], 2_000 * np.r_[[0.125] * 4, [0.25] * 2]).pvalue > REJECT


def test_two_winners_of_one_race_follow_their_joint_law() -> None:
    """10,000 races. Power above 0.99: independent winners, whose cells differ by more than a half."""
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.2, 0.0, 0.6])
    counts = np.zeros((4, 4))
    for i in range(10_000):
        race = ExponentialRace(key(12, i))
        counts[race.winner(Law(4, None, p)), race.winner(Law(4, None, q))] += 1
    joint = race_joint(p, q)
    assert counts[joint == 0].sum() == 0
    assert stats.chisquare(counts[joint > 0], 10_000 * joint[joint > 0]).pvalue > REJECT
    apart = np.outer(p, q)[joint > 0]
    assert stats.chisquare(counts[joint > 0], counts.sum() * apart / apart.sum()).pvalue < REJECT
