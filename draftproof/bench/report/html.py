"""One self-contained HTML page: the verdict on top, then tables and pictures, then how to repeat it all.

Knows figures and the times behind them; frame and common style are those of every page.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from draftproof.bench.figures import ALL, OVERALL, Figures, times
from draftproof.bench.report import plots, tables, words
from draftproof.bench.report.tables import Table, every_batch
from draftproof.bench.results import Result
from draftproof.page import render

_MOST_BYTES = 3_000_000  # of pictures; the page stays under 5 MB
_TIMES = {
    "ttft": ("Time to first token", "time to first token"),
    "per_token": ("Time a token, by answer", "time a token behind the first chunk"),
    "gap_token": ("Gaps a token", "share of a gap"),
    "gap_chunk": ("Gaps a chunk", "gap between two chunks"),
    "end_to_end": ("End to end", "time from request to end"),
}
Keys = list[tuple[str, str]]  # (name, class) of a legend


class Picture(NamedTuple):
    title: str
    keys: Keys
    picture: Markup
    caption: str = ""


class Section(NamedTuple):
    title: str
    lead: str
    tables: list[Table]
    pictures: list[Picture]


def page(figures: Figures, result: Result) -> str:
    """The page of `figures`, which were computed from `result`."""
    headline = words.headline(figures)
    sections, left_out = _fitted([s for s in _sections(figures, result) if s.tables or s.pictures])
    context = {
        "when": figures.plan.created,
        "command": shlex.join(figures.plan.command),
        "headline": headline.words,
        "tone": headline.tone,
        "lead": headline.lead,
        "loud": words.loud(figures),
        "tiles": _tiles(figures),
        "sections": sections,
        "left_out": left_out,
        "facts": [(name, rows) for name, rows in _facts(figures) if rows],
    }
    return render(Path(__file__).with_name("page.html.j2"), context)


def _fitted(sections: Sequence[Section]) -> tuple[list[Section], int]:
    """Sections with as many of their pictures as the page may hold, and how many were left out."""
    size = left_out = 0
    fitted = []
    for section in sections:
        kept = []
        for picture in section.pictures:
            size += len(picture.picture)
            kept += [picture] if size <= _MOST_BYTES else []
        left_out += len(section.pictures) - len(kept)
        fitted.append(section._replace(pictures=kept))
    return fitted, left_out


def _tiles(figures: Figures) -> list[tuple[str, str, str]]:
    """(figure, what it counts, tone)"""
    plan = figures.plan
    best = [max(rows, key=lambda r: r.ratio) for b in plan.batches if (rows := _overall(figures, b))]
    tiles = [(f"{r.ratio:.2f}×", f"{r.config}, {plan.load.called(r.batch)}", tables.tone(r.verdict)) for r in best]
    runs = f"{figures.done:,}" if figures.complete else f"{figures.done:,} of {figures.planned:,}"
    tiles.append((runs, "runs done", "" if figures.complete else "bad"))
    return [*tiles, (f"{len(plan.prompts):,}", "prompts", ""), (f"{len(plan.speculative)}", "configurations", "")]


def _overall(figures: Figures, batch: int) -> list[Any]:
    return [r for r in words.overall(figures) if r.batch == batch]


def _sections(figures: Figures, result: Result) -> list[Section]:
    batches = figures.plan.batches
    return [
        *(_speedups(figures, b) for b in batches),
        *([Section("Beside other engines", "", made, [])] if (made := every_batch(tables.ahead, figures)) else []),
        Section(
            "Where a step goes",
            "",
            every_batch(tables.parts, figures),
            [p for b in batches for p in _stack(figures, b)],
        ),
        Section("What a pass costs", "", [], _staircase(figures)),
        Section(
            "Acceptance",
            "",
            [*every_batch(tables.acceptance, figures), *every_batch(tables.acceptance_by_kind, figures)],
            [p for b in batches for p in _acceptance(figures, b)],
        ),
        Section(
            "Latency",
            "",
            every_batch(tables.latency, figures),
            [p for b in batches for p in _latency(figures, result, b)],
        ),
        Section(
            "Predicted against measured",
            "",
            every_batch(tables.predicted, figures),
            [p for b in batches for p in _predicted(figures, b)],
        ),
    ]


def _speedups(figures: Figures, batch: int) -> Section:
    mine = [r for r in figures.speedups if r.batch == batch and r.length == ALL]
    within = plots.reach(mine)
    pictures = []
    for config in dict.fromkeys(r.config for r in mine):
        rows = [r for r in mine if r.config == config]
        drawn = plots.speedups(rows, within, f"speed-up by kind of {config}, {figures.plan.load.called(batch)}")
        pictures.append(Picture(f"{config}, {figures.plan.load.called(batch)}", [], drawn))
    title = f"Times as fast as plain decoding, {figures.plan.load.called(batch)}"
    lead = figures.plan.decision if batch == figures.plan.batches[0] else ""
    return Section(title, lead, [tables.speedup(figures, batch)._replace(title="")], pictures)


def _stack(figures: Figures, batch: int) -> list[Picture]:
    mine = [p for p in figures.parts if p.batch == batch and p.decode]
    if not mine:
        return []
    names = list(dict.fromkeys(name for p in mine for name in p.decode))
    rows = [(p.config, [p.decode.get(name, 0.0) for name in names]) for p in mine]
    keys = [(name, plots.ink_of(i)) for i, name in enumerate(names)]
    return [
        Picture(
            f"A decode step by part, {figures.plan.load.called(batch)}",
            keys,
            plots.stack(rows, f"parts of a step, {figures.plan.load.called(batch)}"),
        )
    ]


def _staircase(figures: Figures) -> list[Picture]:
    if not figures.staircase:
        return []
    caption = (
        "Mean of all verification passes with so many rows, all configurations together. Larger dots: more passes."
    )
    drawn = plots.staircase(figures.staircase, "seconds of a verification pass over its rows")
    return [Picture("Verification: time over rows", [], drawn, caption)]


def _acceptance(figures: Figures, batch: int) -> list[Picture]:
    mine = {a.config: a.alpha_cond for a in figures.acceptance if (a.batch, a.kind) == (batch, OVERALL)}
    lines, keys = _lines(figures, mine)
    drawn = (
        plots.acceptance(lines, f"acceptance by draft position, {figures.plan.load.called(batch)}")
        if lines
        else Markup("")
    )
    return [Picture(f"Acceptance by position, {figures.plan.load.called(batch)}", keys, drawn)] if lines else []


def _latency(figures: Figures, result: Result, batch: int) -> list[Picture]:
    spreads = {r.config: r.spreads for r in figures.latencies if r.batch == batch}
    found = {config: times(result, config, batch) for config in spreads}
    pictures = []
    for name, (title, axis) in _TIMES.items():
        lines, keys = _lines(figures, {config: getattr(t, name) for config, t in found.items()})
        high = max((s[name].p99 for s in spreads.values() if name in s), default=0.0) * 1.05
        if lines:
            drawn = plots.cumulative(lines, high, axis, f"distribution of {axis}, {figures.plan.load.called(batch)}")
            pictures.append(Picture(f"{title}, {figures.plan.load.called(batch)}", keys, drawn))
    return pictures


def _lines(figures: Figures, values: Mapping[str, Sequence[float]]) -> tuple[list[plots.Line], Keys]:
    """Lines in the colours of their configurations, and the legend."""
    drawn = [(i, c.name) for i, c in enumerate(figures.plan.configs) if values.get(c.name)]
    return [plots.Line(i, values[name]) for i, name in drawn], [(name, plots.ink_of(i)) for i, name in drawn]


def _predicted(figures: Figures, batch: int) -> list[Picture]:
    mine = [p for p in figures.predictions if p.batch == batch]
    drawn = plots.predictions(mine, f"predicted over measured time a token, {figures.plan.load.called(batch)}")
    caption = "The band is ±5 %. Behind: predicted / measured milliseconds a token."
    return (
        [Picture(f"Predicted against measured, {figures.plan.load.called(batch)}", [], drawn, caption)] if mine else []
    )


def _facts(figures: Figures) -> list[tuple[str, list[tuple[str, str]]]]:
    plan, environment = figures.plan, dict(figures.plan.environment)
    versions = environment.pop("versions", {})
    names = ("temperature", "top_p", "top_k", "ignore_eos", "seed", "limit")
    settings = [(name, str(getattr(plan, name))) for name in names]
    settings += [(f"most tokens, {length}", str(n)) for length, n in plan.output_tokens.items()]
    settings += [
        ("load", f"{plan.load.way.value}: {', '.join(map(plan.load.called, plan.batches))}"),
        ("groups", f"{len(plan.groups):,}"),
    ]
    ways = [(c.name, f"k {c.k}, rule {c.rule}{'' if c.exact else ', changes the law'}") for c in plan.configs]
    weights = [
        (
            title,
            [("name", w.name), ("fingerprint", w.fingerprint or "not known"), *_told(_but(w.settings, "fingerprint"))],
        )
        for title, w in (("Target", plan.target), ("Draft", plan.draft))
    ]
    decision = [("rule", plan.decision)]
    versions = [("draftproof", plan.draftproof), *_told(_but(versions, "draftproof"))]
    return [
        ("Decision rule, fixed before measuring", decision),
        ("Configurations", ways),
        ("Settings and seed", settings),
        *weights,
        ("Versions", versions),
        ("Environment", _told(environment)),
    ]


def _but(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Without what has been told already."""
    return {n: v for n, v in mapping.items() if n != name}


def _told(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), _short(value)) for name, value in mapping.items()]


def _short(value: Any) -> str:
    match value:
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(_short, value))
    return str(value)
