"""Part 5 on the page: tables and pictures of time, from the bench's figures. Knows no verdict on correctness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from markupsafe import Markup

from draftproof.bench.figures import ALL, OVERALL, Figures, Parts, Speedup
from draftproof.bench.report import plots
from draftproof.bench.report import tables as bench_tables
from draftproof.bench.report.tables import Cell, Table, every_batch, interval, ms, short, tone
from draftproof.bench.results import Result


class Picture(NamedTuple):
    title: str
    keys: list[tuple[str, str]]
    picture: Markup
    caption: str = ""


def lengths(figures: Figures) -> str:
    """The fixed lengths in words."""
    plan = figures.plan
    prompts = [p.tokens for p in plan.prompts]
    answers = " and ".join(str(n) for n in dict.fromkeys(p.max_tokens for p in plan.prompts))
    exactly = "exactly" if plan.ignore_eos else "at most"
    told = f"Prompts of {min(prompts)} to {max(prompts)} tokens, answers of {exactly} {answers}"
    return f"{told}{', stop tokens ignored' if plan.ignore_eos else ''}; batches of {_listed(plan.batches)}."


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def tables(result: Result, figures: Figures) -> list[Table]:
    """For each batch size: how many times as fast, and where the time of a group went."""
    return [*every_batch(_faster, figures), *every_batch(lambda f, b: _parts(result, f, b), figures)]


def lossy_tables(figures: Figures) -> list[Table]:
    makers = (_faster, bench_tables.parts, bench_tables.acceptance)
    return [table for make in makers for table in every_batch(make, figures)]


def pictures(figures: Figures) -> list[Picture]:
    """Speed-ups with intervals, and a decode step by part; a picture of each for every batch size."""
    rows = [r for r in figures.speedups if (r.kind, r.length) == (OVERALL, ALL)]
    within = plots.reach(rows)
    return [p for b in figures.plan.batches for p in (*_ratios(rows, within, b), *_stack(figures, b))]


def _ratios(rows: Iterable[Speedup], within: tuple[float, float], batch: int) -> list[Picture]:
    mine = [replace(r, kind=r.config) for r in rows if r.batch == batch]
    drawn = plots.speedups(mine, within, f"speed-up by configuration, batch {batch}")
    return [Picture(f"Times as fast as plain decoding, batch {batch}", [], drawn)] if mine else []


def _stack(figures: Figures, batch: int) -> list[Picture]:
    mine = [p for p in figures.parts if p.batch == batch and p.decode]
    names = _names(mine)
    rows = [(p.config, [p.decode.get(name, 0.0) for name in names]) for p in mine]
    keys = [(name, plots.ink_of(i)) for i, name in enumerate(names)]
    drawn = plots.stack(rows, f"parts of a decode step, batch {batch}")
    return [Picture(f"A decode step by part, batch {batch}", keys, drawn)] if mine else []


def _names(parts: Iterable[Parts]) -> list[str]:
    return list(dict.fromkeys(name for p in parts for name in p.seconds))


def _faster(figures: Figures, batch: int) -> Table:
    plan = figures.plan
    found = {(r.config, r.length): r for r in figures.speedups if (r.batch, r.kind) == (batch, OVERALL)}
    whole = {r.config: r for r in figures.end_to_end if (r.batch, r.kind, r.length) == (batch, OVERALL, ALL)}
    sizes = [n for n in plan.output_tokens if any(length == n for _, length in found)]
    rows = []
    for config in plan.speculative:
        row = found.get((config.name, ALL))
        cells = [_ratio([row] if row else [])]
        cells += [_ratio([r for r in (found.get((config.name, n)),) if r]) for n in sizes]
        cells.append(_ratio([whole[config.name]] if config.name in whole else []))
        verdict = Cell(short(row.verdict), f"{row.groups} groups", tone(row.verdict)) if row else Cell("not measured")
        rows.append((Cell(config.name), *cells, verdict))
    heads = ("config", "overall", *(f"{n} answers" for n in sizes), bench_tables.END_TO_END, "verdict")
    note = (
        "Seconds a token behind the first chunk, plain over speculative, with 95 % intervals; end to end: from request "
        "to end. The verdict is on the overall ratio."
    )
    return Table(f"times as fast as plain decoding, batch {batch}", heads, tuple(rows), note)


def _ratio(rows: Sequence[Speedup]) -> Cell:
    told = [Cell(f"{r.ratio:.2f}", interval(r.low, r.high), tone(r.verdict)) for r in rows]
    return told[0] if told else Cell("–", "not measured")


def _parts(result: Result, figures: Figures, batch: int) -> Table:
    """Milliseconds from the first request of a group to its last end, the reading of the prompts included."""
    mine = [p for p in figures.parts if p.batch == batch]
    names = _names(mine)
    rows = []
    for p in mine:
        runs = [r for r in result.runs if r.config == p.config and result.plan.groups[r.group].batch == batch]
        count, wall = len(runs), sum(r.wall for r in runs)
        told = [Cell(ms(p.seconds.get(name, 0.0) / count)) for name in names]
        share = Cell(f"{p.share:.1%}", tone="" if p.sound else "bad")
        rows.append((Cell(p.config), *told, Cell(ms(wall / count)), Cell(str(count)), share))
    note = (
        "Milliseconds, mean of groups, the reading of the prompts included. Whole is the clock; the last column is the "
        "share of the time inside of steps that the parts account for."
    )
    title = f"end to end by part, batch {batch}"
    return Table(title, ("config", *names, "whole", "groups", "of steps"), tuple(rows), note)
