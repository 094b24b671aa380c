"""Runs a group in this process's engine, and writes down when tokens came and where the time went.

Knows the engine's public names. Knows no plan and no file.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from draftproof.bench.environment import load, peak_bytes, reset_peak
from draftproof.bench.measure import Asked
from draftproof.bench.plan import Config
from draftproof.bench.results import Decode, RequestRecord, RunRecord
from draftproof.engine import Engine
from draftproof.model.base import ModelInfo, TargetModel
from draftproof.stats import positions
from draftproof.types import Chunk, Forward, Output, RequestError, StepTrace
from draftproof.watch import Seconds

Clock = Callable[[], float]
Step = Sequence[StepTrace]  # the traces of one step, one for each sequence in it


class EngineRunner:
    """Takes the engine over: verification passes are counted, and nobody else may use it meanwhile."""

    def __init__(self, engine: Engine, clock: Clock = perf_counter) -> None:
        self._engine, self._clock = engine, clock
        self._passes = Passes(engine.target, clock)
        engine.target = self._passes

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        """See Runner."""
        gc.collect()  # garbage of the run before is not this one's
        reset_peak()
        self._passes.clear()
        ran = _Ran()
        began = self._clock()
        names: list[int] = []
        try:
            for each in asked:
                names.append(self._engine.add(each.tokens, each.params))
            self._loop(ran, began)
        finally:
            for name in names:
                self._engine.abort(name)
        wall = self._clock() - began
        records = [_request(each, ran, name) for each, name in zip(asked, names, strict=True)]
        outputs = [ran.outputs[name] for name in names]
        emitting = sum(r.steps for r in records)
        every = _steps(outputs, ran.steps)
        return RunRecord(
            group=group,
            config=config.name,
            wall=wall,
            peak_bytes=peak_bytes(),
            load1=load()[0],
            requests=tuple(records),
            steps=ran.steps,
            seconds=_total(step[0].seconds for step in every),
            loop=ran.loop,
            decode=_decode(every, outputs),
            rows=self._passes.rows,
            tokens_per_step=sum(r.tokens for r in records) / emitting if emitting else 0.0,
        )

    def _loop(self, ran: _Ran, began: float) -> None:
        while self._engine.busy:
            before = self._clock()
            events = self._engine.step()
            now = self._clock()
            ran.loop += now - before
            ran.steps += 1
            for event in events:
                if event.tokens:
                    ran.chunks.setdefault(event.request, []).append((now - began, len(event.tokens)))
                if event.output is not None:
                    ran.outputs[event.request], ran.ends[event.request] = event.output, now - began


@dataclass(slots=True)
class _Ran:
    """What a run came to so far, by request."""

    loop: float = 0.0
    steps: int = 0
    chunks: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    outputs: dict[int, Output] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)


class Passes:
    """A target whose passes are counted, by their rows."""

    def __init__(self, target: TargetModel, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self.clear()

    def clear(self) -> None:
        self._counts = Counter[int]()
        self._spent: dict[int, float] = {}

    @property
    def info(self) -> ModelInfo:
        return self._target.info

    @property
    def rows(self) -> tuple[tuple[int, float, int], ...]:
        return tuple((rows, self._spent[rows], self._counts[rows]) for rows in sorted(self._counts))

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        rows, began = sum(len(c.tokens) for c in chunks), self._clock()
        out = self._target.forward(chunks)
        self._spent[rows] = self._spent.get(rows, 0.0) + self._clock() - began
        self._counts[rows] += 1
        return out

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._target.copy_pages(pairs)

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        self._target.move_slots(pages, moves)


def _request(asked: Asked, ran: _Ran, name: int) -> RequestRecord:
    output, chunks, end = ran.outputs[name], ran.chunks.get(name, []), ran.ends[name]
    if output.error is not None:
        raise RequestError(f"prompt {asked.prompt} failed: {output.error}")
    emitting = [s for s in output.steps if s.emitted]
    accepted_at, reached_at = positions(emitting)
    return RequestRecord(
        prompt=asked.prompt,
        ttft=chunks[0][0] if chunks else end,
        end=end,
        chunks=tuple(chunks),
        tokens=len(output.tokens),
        finish=output.finish.value,
        proposed=sum(len(s.proposed) for s in emitting),
        accepted=sum(s.accepted for s in emitting),
        accepted_at=accepted_at,
        reached_at=reached_at,
        steps=len(emitting),
        first=len(emitting[0].emitted) if emitting else 0,
    )


def _steps(outputs: Sequence[Output], count: int) -> list[Step]:
    """Traces by step: those of one step share its Seconds, the very object."""
    found: dict[int, list[StepTrace]] = {}
    for output in outputs:
        for trace in output.steps:
            found.setdefault(id(trace.seconds), []).append(trace)
    if len(found) != count:
        raise AssertionError(f"{count} steps left traces of {len(found)}: seconds would be counted wrongly")
    return list(found.values())


def _decode(steps: Sequence[Step], outputs: Sequence[Output]) -> Decode:
    first = {o.request: next((id(s) for s in o.steps if s.emitted), 0) for o in outputs}
    pure = [s for s in steps if all(t.emitted and id(t) != first[t.request] for t in s)]
    traces = [trace for step in pure for trace in step]
    return Decode(len(pure), len(traces), sum(len(t.emitted) for t in traces), _total(step[0].seconds for step in pure))


def _total(seconds: Iterator[Seconds]) -> dict[str, float]:
    total = dict.fromkeys(Seconds._fields, 0.0)
    for each in seconds:
        for part, spent in each._asdict().items():
            total[part] += spent
    return total
