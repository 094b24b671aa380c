"""Noise that is scripted or remembers what it was asked for, to call accept rules with. Knows no rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.verify.enumerate import Fixed


class Racing:
    """Fixed noise whose races end with the likeliest token."""

    def __init__(self, noise: Fixed) -> None:
        self.uniform, self.sample = noise.uniform, noise.sample

    def race(self, offset: int) -> Racing:
        del offset
        return self

    def winner(self, law: Any) -> int:
        return int(np.argmax(law.dense()))


class Recording:
    """Seeded noise that remembers which uniforms were asked for more than once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: set[object] = set()
        self.twice: list[object] = []

    def _value(self, key: tuple[object, ...]) -> float:
        if key in self._asked:
            self.twice.append(key)
        self._asked.add(key)
        words = [self._seed, *(int(k) if isinstance(k, int) else sum(str(k).encode()) for k in key)]
        return float(np.random.default_rng(words).random())

    def uniform(self, *key: object) -> float:
        return self._value(("uniform", *key))

    def sample(self, offset: int) -> float:
        return self._value(("sample", offset))

    def race(self, offset: int) -> RecordedRace:
        return RecordedRace(self._seed, offset)


class RecordedRace:
    """One race: drafts and targets share it by design, so asking twice is no fault."""

    def __init__(self, seed: int, offset: int) -> None:
        self._key = [seed, offset, 77]

    def winner(self, law: Any) -> int:
        probs = law.dense()
        times = np.random.default_rng(self._key).exponential(size=len(probs))
        with np.errstate(divide="ignore"):
            return int(np.argmin(times / probs))
