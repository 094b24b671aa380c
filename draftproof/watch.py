"""Where a step's wall-clock time went, part by part. Knows nothing of what is done in it."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple


class Seconds(NamedTuple):
    """Where a step's wall-clock time went: `draft` is all of the proposer's work, `verify` the target's pass, `accept`
    laws, verdicts and stop rules, `kv` pages and their copies, `schedule` planning, `other` the rest, which includes
    what the step before did for its readers (texts, outputs)."""

    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    kv: float = 0.0
    schedule: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


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
