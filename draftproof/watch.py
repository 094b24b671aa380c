"""Where a step's wall-clock time went, part by part. Knows nothing of what is done in it."""

from __future__ import annotations

from time import perf_counter

from draftproof.types import Seconds


class Stopwatch:
    """Starts when it is made; each mark gives the time since the last one to a part of `Seconds`.

    Args:
        other: seconds that count as `other` beforehand.
    """

    def __init__(self, other: float = 0.0) -> None:
        self._parts = Seconds(other=other)._asdict()
        self._last = perf_counter()

    def mark(self, part: str) -> None:
        now = perf_counter()
        self._parts[part] += now - self._last
        self._last = now

    @property
    def seconds(self) -> Seconds:
        return Seconds(**self._parts)
