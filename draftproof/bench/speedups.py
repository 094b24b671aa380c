"""How many times faster than plain decoding, on the same prompts, and what may be said of it by the plan's rule.

Knows result records; knows no file and no part of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from draftproof.bench.groups import LEAST_GROUPS
from draftproof.bench.plan import PLAIN
from draftproof.bench.results import RequestRecord, Result
from draftproof.bench.stats import Ratio, paired_ratio
from draftproof.bench.workloads import OVERALL

ALL = "all"  # both output lengths together


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"
    FEW = "too few to say"
    UNFINISHED = "not decided: the run is not complete"


class Why(StrEnum):
    """Which seconds a token are compared."""

    DECODE = "behind the first chunk"
    END_TO_END = "from request to end"


@dataclass(frozen=True, slots=True)
class Speedup:
    """`kind` may be OVERALL, `length` ALL. `groups` are the observations; `pairs` are the prompts' runs in them.

    With fewer than two groups there is no spread, and the interval is from 0 to infinity.
    """

    config: str
    batch: int
    kind: str
    length: str
    ratio: float
    low: float
    high: float
    verdict: Verdict
    groups: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt of one group: seconds a token with plain decoding and with the configuration."""

    group: int
    kind: str
    length: str
    plain: float
    other: float


def decode_seconds(request: RequestRecord) -> float | None:
    """Seconds a token behind the first chunk. None if nothing came behind it."""
    tokens = sum(n for _, n in request.chunks[1:])
    return (request.chunks[-1][0] - request.chunks[0][0]) / tokens if tokens else None


def whole_seconds(request: RequestRecord) -> float | None:
    """Seconds a token from request to end, the reading of the prompt included. None without tokens."""
    return request.end / request.tokens if request.tokens else None


_MEASURES: dict[Why, Callable[[RequestRecord], float | None]] = {
    Why.DECODE: decode_seconds,
    Why.END_TO_END: whole_seconds,
}


def pairs(result: Result, config: str, batch: int, why: Why = Why.DECODE, base: str = PLAIN) -> list[Pair]:
    """Of all groups that ran under both. A prompt that has no seconds a token under one of them makes no pair."""
    return list(_pairs(result, (base, config), batch, _MEASURES[why]))


def _pairs(
    result: Result, names: tuple[str, str], batch: int, measure: Callable[[RequestRecord], float | None]
) -> Iterator[Pair]:
    runs = {(run.group, run.config): run for run in result.runs}
    for number, group in enumerate(result.plan.groups):
        sides = [runs.get((number, name)) for name in names]
        if group.batch != batch or sides[0] is None or sides[1] is None:
            continue
        for index, a, b in zip(group.prompts, sides[0].requests, sides[1].requests, strict=True):
            plain, other, prompt = measure(a), measure(b), result.plan.prompts[index]
            if plain is not None and other is not None:
                yield Pair(number, prompt.kind, prompt.length, plain, other)


def speedups(result: Result, why: Why = Why.DECODE) -> tuple[Speedup, ...]:
    """Every configuration and batch size, overall and by kind, both lengths together and apart.

    What has no pair has no row.
    """
    kinds = (OVERALL, *dict.fromkeys(p.kind for p in result.plan.prompts))
    lengths = (ALL, *dict.fromkeys(p.length for p in result.plan.prompts))
    found = []
    for config in result.plan.speculative:
        for batch in result.plan.batches:
            every = pairs(result, config.name, batch, why)
            for kind in kinds:
                for length in lengths if len(lengths) > 2 else lengths[:1]:
                    mine = [p for p in every if kind in (OVERALL, p.kind) and length in (ALL, p.length)]
                    if mine:
                        found.append(_speedup(mine, config.name, batch, kind, length, result))
    return tuple(found)


def ahead(result: Result, why: Why) -> tuple[Speedup, ...]:
    """How many times as fast the fastest of our own configurations is as each of the other engines': `kind` names ours.

    Empty without other engines. Ours is picked from the same data, which its intervals do not know.
    """
    ours, others = ([c.name for c in result.plan.configs if bool(c.engine) is foreign] for foreign in (False, True))
    found = []
    for batch in result.plan.batches if others else ():
        rated = {name: _rate(result, name, batch) for name in ours}
        best = max(rated, key=lambda name: rated[name])
        for name in others:
            every = pairs(result, best, batch, why, base=name)
            if every:
                found.append(_speedup(every, name, batch, best, ALL, result))
    return tuple(found)


def _rate(result: Result, config: str, batch: int) -> float:
    """Tokens a second of requests one by one, from request to end."""
    every = [
        q for r in result.runs if r.config == config and result.plan.groups[r.group].batch == batch for q in r.requests
    ]
    return sum(q.tokens for q in every) / sum(q.end for q in every) if every else 0.0


def _speedup(mine: list[Pair], config: str, batch: int, kind: str, length: str, result: Result) -> Speedup:
    names = list(dict.fromkeys(p.group for p in mine))
    sums = [[sum(getattr(p, side) for p in mine if p.group == g) for g in names] for side in ("plain", "other")]
    ratio = _ratio(sums[0], sums[1])
    told = verdict(ratio, len(names), result.complete)
    return Speedup(config, batch, kind, length, *ratio, told, len(names), len(mine))


def _ratio(plain: list[float], other: list[float]) -> Ratio:
    if len(plain) < 2:
        return Ratio(sum(plain) / sum(other), 0.0, math.inf)
    return paired_ratio(plain, other)


def verdict(ratio: Ratio, groups: int, complete: bool) -> Verdict:
    """The plan's decision rule."""
    if not complete:
        return Verdict.UNFINISHED
    if groups < LEAST_GROUPS:
        return Verdict.FEW
    if ratio.low > 1.0:
        return Verdict.FASTER
    return Verdict.SLOWER if ratio.high < 1.0 else Verdict.SAME
