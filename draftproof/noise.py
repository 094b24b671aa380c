"""Counter-based noise: the only randomness of the engine.

Every number is a hash of (seed, where, what for), so it does not depend on the order of calls, on batch mates or on the
clock. The hash is SplitMix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators", figure 17),
because it is a dozen integer operations that any array library can repeat bit for bit.

Two kinds of keys (see DESIGN.md, "noise"):

- a *uniform* belongs to (seed, origin, offset, purpose), where origin is the number of tokens before the step. The
  block rule looks at uniforms behind its own rejection, so a later step must not meet them again at the same position.
- a *race* or *sample* belongs to (seed, position) alone, whatever step asks: this is what makes the coupled and
  sampled rules give the same text with and without speculation.

Knows nothing of laws beyond "ids and weights", and nothing of rules.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays
from draftproof.types import Floats, Ids, Law

_GAMMA = 0x9E3779B97F4A7C15
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_LIKELY = 1e-3  # tokens above this share are raced exactly; the rest only if they can still win
_Words = NDArray[np.uint64]


class Purpose(IntEnum):
    DRAFT = 1
    ACCEPT = 2
    NEXT = 3  # the residual or bonus token
    SAMPLE = 4  # the target's own sample at an absolute position
    RACE = 5


def mix(z: int) -> int:
    """SplitMix64's output function on a Python int, modulo 2**64."""
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def key(*words: int) -> int:
    """Hash a short list of non-negative integers into a 64-bit key. Order matters."""
    state = 0
    for word in words:
        state = mix((state + _GAMMA + word) & _MASK)
    return state


def uniform(*words: int) -> float:
    """A float64 in [0, 1) with 53 random bits, owned by `words`."""
    return (key(*words) >> 11) * 2.0**-53


def hashes(start: int, ids: NDArray[np.integer]) -> _Words:
    """SplitMix64's outputs number ids + 1 of the stream that begins at `start`. Shape of `ids`."""
    words = ids.astype(np.uint64) if arrays.is_host(ids) else ids
    return _mixed((words + arrays.word(1, words)) * arrays.word(_GAMMA, words), start)


@lru_cache(maxsize=4)
def _all_steps(vocab: int) -> _Words:
    """What `hashes` makes of the ids 0 .. vocab - 1 before a start is added: a constant."""
    steps: _Words = np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    steps.flags.writeable = False
    return steps


@lru_cache(maxsize=4)
def _all_steps_there(vocab: int, place: Any) -> Any:
    """The same off the host."""
    return arrays.words_at(_all_steps(vocab), place)


def _mixed(steps: _Words, start: int) -> _Words:
    z: _Words = steps + arrays.word(start, steps)
    buffer = arrays.namespace(z).empty_like(z)  # one for all shifts: allocating costs more than computing
    for shift, factor in ((30, _MIX1), (27, _MIX2), (31, 1)):
        z ^= arrays.shifted(z, shift, buffer)
        if factor != 1:
            z *= arrays.word(factor, z)
    return z


class Race(Protocol):
    def winner(self, law: Law) -> int:
        """argmin over tokens of E(token) / law(token): a sample of the law, the same E for every law asked."""
        ...


class Noise(Protocol):
    """What a rule may use. Asking twice for the same (offset, purpose) is a fault (I5)."""

    def uniform(self, offset: int, purpose: Purpose) -> float: ...

    def sample(self, offset: int) -> float:
        """The uniform of the absolute position origin + offset, the same in whichever step it is asked for."""
        ...

    def race(self, offset: int) -> Race: ...


class ExponentialRace:
    """E(x) = -log U(x), U on (0, 1) with 64 random bits, keyed by token.

    An unlikely token can win only if its E beats the best likely token, so its logarithm is taken only then. Where the
    law is not on the host, neither are the hashes; logarithms are always taken there, so their last bits are the same.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._all: dict[Any, _Words] = {}  # by the place of the law

    def _words(self, law: Law) -> _Words:
        if law.ids is not None:
            return hashes(self._start, law.ids)
        place = arrays.place(law.weights)
        if place not in self._all:
            steps = _all_steps(law.vocab) if place is None else _all_steps_there(law.vocab, place)
            self._all[place] = _mixed(steps, self._start)
        return self._all[place]

    def winner(self, law: Law) -> int:
        if law.ids is not None and len(law.ids) == 1:
            return int(law.ids[0])
        words, weights = self._words(law), law.weights
        likely = arrays.where(weights > law.total * _LIKELY)
        if len(likely) == 0:
            likely = arrays.where(weights > 0)
        times = _times_of(words, weights, likely)
        best = int(likely[int(np.argmin(times))])
        # E < bound is U > exp(-bound): test the integers, take the logarithm of the few that pass
        bound = float(times.min()) * law.total * _LIKELY
        floor = min(int(math.exp(-bound) * 2.0**64 * (1 - 1e-12)), _MASK)
        passed = arrays.where(arrays.at_least(words, floor) & (weights > 0))
        rest = np.union1d(arrays.host(passed), [best])
        at = int(rest[int(np.argmin(_times_of(words, weights, rest)))])
        return at if law.ids is None else int(law.ids[at])


def _times_of(words: _Words, weights: Floats, some: Ids) -> NDArray[np.float64]:
    """Of a few tokens, on the host."""
    return _times(arrays.host_words(words[some]), arrays.host(weights[some]))


def _times(words: _Words, weights: Floats) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # a subnormal weight may arrive at infinity: it cannot win
        times: NDArray[np.float64] = _exponential(words) / weights
    return times


def _exponential(words: _Words) -> NDArray[np.float64]:
    """-log((w + 1/2) / 2**64), accurate at both ends: never 0, never infinite."""
    low = (words.astype(np.float64) + 0.5) * 2.0**-64
    high = ((~words).astype(np.float64) + 0.5) * 2.0**-64  # 1 - U
    return np.where(high < 0.5, -np.log1p(-np.minimum(high, 0.5)), -np.log(low))


class StepNoise:
    """The noise of one sequence in one step that begins behind `origin` tokens."""

    def __init__(self, seed: int, origin: int) -> None:
        self._seed, self._origin = seed, origin
        self._races: dict[int, ExponentialRace] = {}

    def uniform(self, offset: int, purpose: Purpose) -> float:
        return uniform(self._seed, self._origin, offset, purpose)

    def sample(self, offset: int) -> float:
        return uniform(self._seed, self._origin + offset, Purpose.SAMPLE)

    def race(self, offset: int) -> ExponentialRace:
        if offset not in self._races:
            self._races[offset] = ExponentialRace(key(self._seed, self._origin + offset, Purpose.RACE))
        return self._races[offset]
