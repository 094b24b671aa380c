"""A made-up machine for policies of draft lengths: costs of a small model on two cores, in milliseconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from draftproof.length.goodput import MOST_AUTO
from draftproof.length.profile import Line, Profile
from draftproof.types import Request, SamplingParams

ROWS = ((2, 30.0), (3, 31.0), (4, 32.0), (5, 33.0), (6, 36.0), (8, 42.0), (10, 50.0), (13, 60.0), (16, 70.0))
COSTS = Profile(ROWS, ((1, Line(1.0, 1.5)),), ((1, Line(1.0, 0.2)),), min_rows=2)
REQUESTS, TOKENS = 24, 64
SEEDS = range(8)
FIXED = (1, 2, 3, 4, 6, 8)


class View:
    def __init__(self, name: int) -> None:
        self.request = Request(name, (1, 2), SamplingParams(), 0, MOST_AUTO, frozenset(), auto=True)
        self.tokens = [1, 2]

    @property
    def left(self) -> int:
        return TOKENS - (len(self.tokens) - 2)


def mean(rates: Iterable[float]) -> float:
    return statistics.fmean(rates)
