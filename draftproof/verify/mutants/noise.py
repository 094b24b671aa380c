"""The honest decoder's randomness: every number is a hash of what it is for.

Written apart from the engine's own noise on purpose, so that the two share no fault. Knows no rule and no request.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Floats
from draftproof.verify.mutants.laws import Law

DRAFT, ACCEPT, NEXT, SECOND = 1, 2, 3, 4  # purposes of a step's uniforms; SECOND is for second candidates
_SAMPLE, _RACE = 5, 6  # purposes of a position's noise
_MASK = (1 << 64) - 1
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = (np.uint64(n) for n in (11, 27, 30, 31))
_ORIGIN, _OFFSET, _PURPOSE, _TOKEN = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xF1357AEA2E62A9C5, 0x9E3779B97F4A7C15


def scramble(z: int) -> int:
    """Stafford's thirteenth 64-bit mixer."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Race:
    """One exponential time a token; the least time per mass wins."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._times: Floats = np.empty(0)

    def winner(self, law: Law) -> int:
        p = law.array
        if len(self._times) != len(p):
            self._times = _exponentials(self._start, len(p))
        return int((p / self._times).argmax())


@cache
def _weyl(vocab: int) -> NDArray[np.uint64]:
    return np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(_TOKEN)


def _exponentials(start: int, vocab: int) -> Floats:
    words = _weyl(vocab) + np.uint64(start)
    words ^= words >> _S30
    words *= _M1
    words ^= words >> _S27
    words *= _M2
    words ^= words >> _S31
    return np.asarray(-np.log(((words >> _S11) + 0.5) * 2.0**-53))


class Noise:
    """A step's view: uniforms belong to (seed, origin, offset, purpose), samples and races to (seed, position)."""

    __slots__ = ("_origin", "_races", "_seed")

    def __init__(self, seed: int, origin: int) -> None:
        self._seed, self._origin = seed, origin
        self._races: dict[int, Race] = {}

    def uniform(self, offset: int, purpose: int) -> float:
        return self._share(self._origin, offset, purpose)

    def sample(self, offset: int) -> float:
        return self._share(self._origin + offset, 0, _SAMPLE)

    def race(self, offset: int) -> Race:
        if offset not in self._races:
            self._races[offset] = Race(self._word(self._origin + offset, 0, _RACE))
        return self._races[offset]

    def _share(self, origin: int, offset: int, purpose: int) -> float:
        return (self._word(origin, offset, purpose) >> 11) * 2.0**-53

    def _word(self, origin: int, offset: int, purpose: int) -> int:
        return scramble((self._seed + origin * _ORIGIN + offset * _OFFSET + purpose * _PURPOSE) & _MASK)
