"""From a result file to figures: everything that a report shows, and nothing that a report has to work out.

Knows result records; knows no terminal, page or file. A result that is not complete says so in `notes`, and decides
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftproof.bench.accepted import Acceptance, acceptances
from draftproof.bench.groups import Way
from draftproof.bench.plan import PLAIN, Plan
from draftproof.bench.prediction import Prediction, predictions
from draftproof.bench.results import Result, RunRecord
from draftproof.bench.speedups import ALL, Speedup, Verdict, Why, ahead, decode_seconds, pairs, speedups
from draftproof.bench.stats import Ratio, Spread, spread
from draftproof.bench.workloads import OVERALL

__all__ = [
    "ALL",
    "OVERALL",
    "PLAIN",
    "Acceptance",
    "Figures",
    "Flow",
    "Latency",
    "Parts",
    "Passes",
    "Prediction",
    "Ratio",
    "Speedup",
    "Spread",
    "Times",
    "Verdict",
    "figures",
    "times",
]
_SHARE = 0.02  # of the loop's time that the parts may miss
_LATE = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Times:
    """All values of one configuration and batch size, in seconds.

    `gap_chunk` are the times between two chunks; `gap_token` gives each token of a chunk its share of the gap before.
    """

    ttft: tuple[float, ...]
    per_token: tuple[float, ...]
    gap_token: tuple[float, ...]
    gap_chunk: tuple[float, ...]
    end_to_end: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of `Times` by its names. What has no value has no entry."""

    config: str
    batch: int
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the engine's time went. `seconds` of all steps, `decode` of a mean decode step without prompts, by part.

    `share` of the seconds inside of the steps that the parts account for; `sound` if that is within 2 % of all.
    """

    config: str
    batch: int
    steps: int
    seconds: Mapping[str, float]
    decode_steps: int
    decode: Mapping[str, float]
    share: float
    sound: bool


@dataclass(frozen=True, slots=True)
class Passes:
    """`count` verification passes of so many rows took `seconds` each."""

    rows: int
    seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Tokens a second of all requests together, and the most memory that the process held."""

    config: str
    batch: int
    tokens: int
    tokens_per_second: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`speedups` compare seconds a token behind the first chunk, `end_to_end` those from request to end.

    So do `ahead` and `ahead_end_to_end`, the fastest of ours with each mode of other engines.
    """

    plan: Plan
    complete: bool
    done: int
    planned: int
    notes: tuple[str, ...]
    speedups: tuple[Speedup, ...]
    end_to_end: tuple[Speedup, ...]
    latencies: tuple[Latency, ...]
    flows: tuple[Flow, ...]
    parts: tuple[Parts, ...]
    acceptance: tuple[Acceptance, ...]
    staircase: tuple[Passes, ...]
    predictions: tuple[Prediction, ...]
    ahead: tuple[Speedup, ...] = ()
    ahead_end_to_end: tuple[Speedup, ...] = ()


def figures(result: Result) -> Figures:
    parts = tuple(_parts(c, b, runs) for c, b, runs in _cells(result) if any(r.seconds for r in runs))
    return Figures(
        plan=result.plan,
        complete=result.complete,
        done=len(result.runs),
        planned=len(result.plan.runs),
        notes=tuple(_notes(result, parts)),
        speedups=speedups(result),
        end_to_end=speedups(result, Why.END_TO_END),
        latencies=tuple(Latency(c, b, _spreads(_times(runs))) for c, b, runs in _cells(result)),
        flows=tuple(_flow(c, b, runs) for c, b, runs in _cells(result)),
        parts=parts,
        acceptance=tuple(acceptances(result.plan, _cells(result))),
        staircase=_staircase(result.runs),
        predictions=predictions(result),
        ahead=ahead(result, Why.DECODE),
        ahead_end_to_end=ahead(result, Why.END_TO_END),
    )


def times(result: Result, config: str, batch: int) -> Times:
    return _times([r for c, b, runs in _cells(result) if (c, b) == (config, batch) for r in runs])


def _cells(result: Result) -> list[tuple[str, int, list[RunRecord]]]:
    """Runs by configuration and batch size, in the plan's order; cells without runs are left out."""
    plan = result.plan
    found = [
        (c.name, b, [r for r in result.runs if r.config == c.name and plan.groups[r.group].batch == b])
        for b in plan.batches
        for c in plan.configs
    ]
    return [cell for cell in found if cell[2]]


def _times(runs: Sequence[RunRecord]) -> Times:
    requests = [q for r in runs for q in r.requests]
    gaps = [(b[0] - a[0], b[1]) for q in requests for a, b in pairwise(q.chunks)]
    per_token = [decode_seconds(q) for q in requests]
    return Times(
        ttft=tuple(q.ttft for q in requests if q.chunks),
        per_token=tuple(t for t in per_token if t is not None),
        gap_token=tuple(gap / n for gap, n in gaps for _ in range(n)),
        gap_chunk=tuple(gap for gap, _ in gaps),
        end_to_end=tuple(q.end for q in requests),
    )


def _spreads(found: Times) -> dict[str, Spread]:
    values = {name: getattr(found, name) for name in Times.__dataclass_fields__}
    return {name: spread(v) for name, v in values.items() if v}


def _flow(config: str, batch: int, runs: Sequence[RunRecord]) -> Flow:
    tokens = sum(q.tokens for r in runs for q in r.requests)
    return Flow(config, batch, tokens, tokens / sum(r.wall for r in runs), max(r.peak_bytes for r in runs))


def _parts(config: str, batch: int, runs: Sequence[RunRecord]) -> Parts:
    names = list(dict.fromkeys(part for r in runs for part in r.seconds))
    seconds = {part: sum(r.seconds.get(part, 0.0) for r in runs) for part in names}
    steps = sum(r.decode.steps for r in runs)
    decode = {part: sum(r.decode.seconds.get(part, 0.0) for r in runs) / steps for part in names} if steps else {}
    share = sum(seconds.values()) / sum(r.loop for r in runs)
    return Parts(config, batch, sum(r.steps for r in runs), seconds, steps, decode, share, abs(share - 1.0) <= _SHARE)


def _staircase(runs: Sequence[RunRecord]) -> tuple[Passes, ...]:
    every = [row for r in runs for row in r.rows]
    found = []
    for rows in sorted({row[0] for row in every}):
        mine = [row for row in every if row[0] == rows]
        count = sum(n for _, _, n in mine)
        found.append(Passes(rows, sum(s for _, s, _ in mine) / count, count))
    return tuple(found)


def _notes(result: Result, parts: Sequence[Parts]) -> list[str]:
    """What a reader must know before any figure."""
    plan, notes = result.plan, list[str]()
    if not result.complete:
        notes.append(
            f"the run is not complete: {len(result.runs)} of {len(plan.runs)} runs are done; nothing is decided"
        )
    if result.resumed:
        notes.append(f"the run was interrupted and gone on with, {result.resumed} times in all")
    notes += [
        f"{p.config}, {plan.load.called(p.batch)}: the parts account for {p.share:.1%} of the steps' time, not for "
        "98 to 102 %"
        for p in parts
        if not p.sound
    ]
    cores, most = int(plan.environment.get("cores", 1)), max((r.load1 for r in result.runs), default=0.0)
    if most > cores + 0.5 and plan.load.way == Way.TOGETHER:  # else it is the server that loads the machine
        notes.append(f"the load rose to {most:.1f} on {cores} cores: something else was running")
    late = max((q.late for r in result.runs for q in r.requests), default=0.0)
    if late > _LATE:
        notes.append(f"a request was sent {late:.2f} s behind its time: this machine could not keep up with the load")
    return notes + _unpaired(result)


def _unpaired(result: Result) -> list[str]:
    """Prompts that are in no ratio, because an answer ended with its first chunk."""
    notes = []
    for config in result.plan.speculative:
        for batch in result.plan.batches:
            found = pairs(result, config.name, batch)
            runs = [r for c, b, runs in _cells(result) if (c, b) == (config.name, batch) for r in runs]
            both = {r.group for r in result.runs if r.config == PLAIN} & {r.group for r in runs}
            missing = sum(len(result.plan.groups[g].prompts) for g in both) - len(found)
            if missing:
                where = f"{config.name}, {result.plan.load.called(batch)}"
                notes.append(f"{where}: {missing} answers ended with their first chunk: not compared")
    return notes
