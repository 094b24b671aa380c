"""Several engines in one plan: each configuration runs where it belongs, in the order that was drawn.

Knows runners and engines that answer in one piece; knows no server, no adapter and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

from draftproof.bench.environment import load
from draftproof.bench.measure import Asked, Runner
from draftproof.bench.plan import Config
from draftproof.bench.results import RequestRecord, RunRecord

Clock = Callable[[], float]


class Side(NamedTuple):
    """Where a configuration runs, and what it is called there."""

    runner: Runner
    config: Config


@dataclass(frozen=True, slots=True)
class SideBySide:
    """`sides` by the plan's names of configurations; all others are `ours`."""

    ours: Runner
    sides: Mapping[str, Side]

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        """See Runner."""
        if config.name not in self.sides:
            return self.ours.run(group, config, asked)
        side = self.sides[config.name]
        return replace(side.runner.run(group, side.config, asked), config=config.name)


class Answered(NamedTuple):
    """What an engine says of one answer that came in one piece."""

    tokens: int
    finish: str
    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class WholeRunner:
    """An engine that answers one request after the other, each in one piece: only whole times can be told."""

    answer: Callable[[Asked], Answered]
    clock: Clock = perf_counter

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        """See Runner."""
        began, records = self.clock(), list[RequestRecord]()
        for each in asked:
            told = self.answer(each)
            end = self.clock() - began
            records.append(_record(each, told, end))
        tokens = sum(r.tokens for r in records)
        steps = tokens - sum(r.accepted for r in records)
        return RunRecord(
            group=group,
            config=config.name,
            wall=self.clock() - began,
            peak_bytes=0,
            load1=load()[0],
            requests=tuple(records),
            tokens_per_step=tokens / steps if any(r.proposed for r in records) and steps > 0 else 0.0,
        )


def _record(asked: Asked, told: Answered, end: float) -> RequestRecord:
    return RequestRecord(
        prompt=asked.prompt,
        ttft=end,
        end=end,
        chunks=((end, told.tokens),),
        tokens=told.tokens,
        finish=told.finish,
        proposed=told.proposed,
        accepted=told.accepted,
        accepted_at=(),
        reached_at=(),
        steps=0,
        first=told.tokens,
    )
