"""What changed between two result files: speed of the same prompts in the same way, and whatever else differs.

Knows result records; knows no terminal and no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.bench.figures import ALL, OVERALL, Figures, Ratio, Speedup, Verdict, figures
from draftproof.bench.groups import Load
from draftproof.bench.plan import Config, PlannedPrompt, plan_json
from draftproof.bench.results import Result, RunRecord
from draftproof.bench.speedups import decode_seconds, verdict
from draftproof.bench.stats import paired_ratio
from draftproof.types import RequestError

_APART = {"kind", "version", "created", "configs", "prompts", "groups"}  # compared by themselves, or not settings
_DEALT = (
    "{}: prompts were grouped otherwise in the two files, so that each prompt counts as one observation: those "
    "that ran side by side are more alike than that, and the intervals are too narrow"
)


@dataclass(frozen=True, slots=True)
class Change:
    """B is `ratio` times as fast as A, in seconds a token behind the first chunk, on `pairs` prompts.

    `units` are the observations: groups that are the same in both files, or else prompts. With fewer than two there is
    no spread, and the interval is from 0 to infinity.
    """

    config: str
    batch: int
    kind: str
    ratio: float
    low: float
    high: float
    verdict: Verdict
    units: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What one thing was in each file, "" where it was not."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`speedups` are over plain decoding as each file has them on all of its own prompts, A's in front."""

    changes: tuple[Change, ...]
    load: Load
    speedups: tuple[tuple[Speedup, Speedup], ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Seconds a token of one prompt in both files. Those of one unit are one observation."""

    name: tuple[str, ...]
    kind: str
    a: float
    b: float


def compare(a: Result, b: Result) -> Comparison:
    """
    Raises:
        RequestError: no prompt of the same text and answer length ran in the same way in both.
    """
    shared = _shared(a, b)
    changes, dealt_notes = list[Change](), list[str]()
    for batch in (n for n in a.plan.batches if n in b.plan.batches and a.plan.load == b.plan.load):
        dealt = _same_groups(a, b, batch, shared)
        rows = [c for config in _configs(a, b) for c in _changes(a, b, config.name, batch, shared, dealt)]
        changes += rows
        dealt_notes += [_DEALT.format(a.plan.load.called(batch))] if rows and batch > 1 and not dealt else []
    if not changes:
        raise RequestError(_refusal(a, b, shared))
    sides = figures(a), figures(b)
    notes = (*_notes(*sides), *dealt_notes)
    return Comparison(tuple(changes), a.plan.load, tuple(_advantages(*sides)), tuple(_differences(a, b)), notes)


def _shared(a: Result, b: Result) -> dict[str, PlannedPrompt]:
    """Prompts of the same id, text and most tokens."""
    theirs = {p.id: p for p in b.plan.prompts}
    return {p.id: p for p in a.plan.prompts if p.id in theirs and _what(p) == _what(theirs[p.id])}


def _what(prompt: PlannedPrompt) -> tuple[str, int]:
    return prompt.sha256, prompt.max_tokens


def _configs(a: Result, b: Result) -> list[Config]:
    return [c for c in a.plan.configs if c in b.plan.configs]


def _same_groups(a: Result, b: Result, batch: int, shared: Mapping[str, PlannedPrompt]) -> bool:
    return sorted(_groups(a, batch)) == sorted(_groups(b, batch)) and all(
        name in shared for group in _groups(a, batch) for name in group
    )


def _groups(result: Result, batch: int) -> list[tuple[str, ...]]:
    return [_names(result, n) for n, g in enumerate(result.plan.groups) if g.batch == batch]


def _names(result: Result, group: int) -> tuple[str, ...]:
    return tuple(result.plan.prompts[i].id for i in result.plan.groups[group].prompts)


def _changes(
    a: Result, b: Result, config: str, batch: int, shared: Mapping[str, PlannedPrompt], dealt: bool
) -> Iterator[Change]:
    sides = [_seconds(r, config, batch, dealt) for r in (a, b)]
    both = [key for key in sides[0] if key in sides[1] and key[1] in shared]
    units = [_Unit(unit, shared[prompt].kind, *(side[unit, prompt] for side in sides)) for unit, prompt in both]
    for kind in (OVERALL, *dict.fromkeys(p.kind for p in shared.values())):
        mine = [u for u in units if kind in (OVERALL, u.kind)]
        if mine:
            names = list(dict.fromkeys(u.name for u in mine))
            ratio = _ratio(mine, names)
            told = verdict(ratio, len(names), a.complete and b.complete)
            yield Change(config, batch, kind, *ratio, told, len(names), len(mine))


def _seconds(result: Result, config: str, batch: int, dealt: bool) -> dict[tuple[tuple[str, ...], str], float]:
    """Mean seconds a token by (unit, prompt): a group may have a prompt more than once, and so may a batch size."""
    found: dict[tuple[tuple[str, ...], str], list[float]] = {}
    for run in _runs(result, config, batch):
        for request in run.requests:
            seconds = decode_seconds(request)
            if seconds is not None:
                unit = _names(result, run.group) if dealt else (request.prompt,)
                found.setdefault((unit, request.prompt), []).append(seconds)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _runs(result: Result, config: str, batch: int) -> list[RunRecord]:
    return [r for r in result.runs if r.config == config and result.plan.groups[r.group].batch == batch]


def _ratio(units: Sequence[_Unit], names: Sequence[tuple[str, ...]]) -> Ratio:
    sums = [[sum(getattr(u, side) for u in units if u.name == name) for name in names] for side in ("a", "b")]
    if len(names) < 2:
        return Ratio(sum(sums[0]) / sum(sums[1]), 0.0, math.inf)
    return paired_ratio(sums[0], sums[1])


def _advantages(a: Figures, b: Figures) -> Iterator[tuple[Speedup, Speedup]]:
    rows = [{(r.config, r.batch): r for r in x.speedups if (r.kind, r.length) == (OVERALL, ALL)} for x in (a, b)]
    same = {c.name for c in a.plan.configs if c in b.plan.configs}
    yield from ((rows[0][key], rows[1][key]) for key in rows[0] if key in rows[1] and key[0] in same)


def _differences(a: Result, b: Result) -> Iterator[Difference]:
    """Versions, settings, weights, configurations, prompts: whatever decides a measurement and is not the same."""
    for name, first, second in _unequal(_flat(a), _flat(b)):
        yield Difference(name, first, second)
    ways = [{f"config {c.name}": f"k {c.k}, rule {c.rule}" for c in r.plan.configs} for r in (a, b)]
    for name, first, second in _unequal(*ways):
        yield Difference(name, first, second)
    shared = len(_shared(a, b))
    alone = [len(r.plan.prompts) - shared for r in (a, b)]
    if any(alone):
        yield Difference("prompts that the other does not have", *(f"{n:,}" for n in alone))


def _unequal(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*a, *b)):
        first, second = a.get(name, ""), b.get(name, "")
        if first != second:
            yield name, first, second


def _flat(result: Result) -> dict[str, str]:
    told = plan_json(result.plan)
    told["environment"] = {n: v for n, v in told["environment"].items() if n != "load"}
    return dict(_entries({n: v for n, v in told.items() if n not in _APART}, ""))


def _entries(told: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        match value:
            case dict():
                yield from _entries(value, f"{above}{name} ")
            case list() | tuple():
                yield above + name, " ".join(map(str, value))
            case _:
                yield above + name, str(value)


def _notes(a: Figures, b: Figures) -> list[str]:
    """What each file says of itself, and whether the models are the same."""
    notes = [f"{name}: {note}" for name, side in (("A", a), ("B", b)) for note in side.notes]
    for what in ("target", "draft"):
        first, second = (getattr(side.plan, what).fingerprint for side in (a, b))
        if first != second:
            notes.append(f"the {what}'s weights are not the same: two models are compared, not one on two occasions")
    return notes


def _refusal(a: Result, b: Result, shared: Mapping[str, PlannedPrompt]) -> str:
    if not shared:
        why = "no prompt has the same text and answer length in both: bench the same prompts with the same lengths"
    elif not _configs(a, b):
        why = "no configuration is the same in both: bench the same --k and --rule"
    elif a.plan.load != b.plan.load:
        why = f"requests came in another way ({a.plan.load.way.value}, {b.plan.load.way.value}), or at other rates"
    elif not set(a.plan.batches) & set(b.plan.batches):
        why = "no batch size is the same in both: bench the same --batches"
    else:
        why = "no prompt was measured in the same way in both yet: go on with the runs by --resume"
    return f"the two files cannot be compared: {why}"


def comparison_json(told: Comparison) -> dict[str, Any]:
    """Of JSON's own types; an end of an interval that is not known is null."""
    return {
        "changes": [_known(c) for c in told.changes],
        "speedups": [{"a": _known(a), "b": _known(b)} for a, b in told.speedups],
        "differences": [asdict(d) for d in told.differences],
        "notes": list(told.notes),
    }


def _known(row: Change | Speedup) -> dict[str, Any]:
    return {**asdict(row), "verdict": row.verdict.value, "high": row.high if math.isfinite(row.high) else None}
