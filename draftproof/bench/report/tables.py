"""The tables that terminal and page share, as cells of words with a tone. Knows figures and no layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from draftproof.bench.figures import ALL, OVERALL, Acceptance, Figures, Latency, Prediction, Speedup, Verdict
from draftproof.bench.report.compare import Change, Comparison

CLOSE = 0.05  # predictions are to be this close to the clock
TONES = {Verdict.FASTER: "good", Verdict.SLOWER: "bad", Verdict.FEW: "warn", Verdict.UNFINISHED: "warn"}
END_TO_END = "end to end"
_POSITIONS = 8  # told one by one


class Cell(NamedTuple):
    """`small` is said more quietly, behind or below; `tone` is good, bad, warn or nothing."""

    text: str = ""
    small: str = ""
    tone: str = ""


class Table(NamedTuple):
    """The first column names the rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def every_batch(make: Callable[[Figures, int], Table], figures: Figures) -> list[Table]:
    """Tables that have rows; the note, which is the same, stands behind the last."""
    made = [table for b in figures.plan.batches if (table := make(figures, b)).rows]
    return [*(table._replace(note="") for table in made[:-1]), *made[-1:]]


def speedup(figures: Figures, batch: int) -> Table:
    """A column for every configuration asked for; what was not measured yet is said to be so."""
    configs = [c.name for c in figures.plan.speculative]
    rows = [(kind, _by_config(figures.speedups, batch, kind, ALL)) for kind in kinds(figures)]
    lengths = dict.fromkeys(r.length for r in figures.speedups if r.length != ALL)
    rows += [(f"{length} answers", _by_config(figures.speedups, batch, OVERALL, length)) for length in lengths]
    rows.append((END_TO_END, _by_config(figures.end_to_end, batch, OVERALL, ALL)))
    cells = [(Cell(name), *(_ratio(found.get(c)) for c in configs)) for name, found in rows]
    overall = _by_config(figures.speedups, batch, OVERALL, ALL)
    verdicts = (Cell("verdict, overall"), *(_verdict(overall.get(c)) for c in configs))
    note = (
        f"Seconds a token behind the first chunk, plain over speculative, with 95 % intervals. The row {END_TO_END} "
        "takes all seconds from request to end. Whichever is the fastest here was picked afterwards: its interval does "
        "not know that."
    )
    return Table(
        _title("times as fast as plain decoding", figures, batch), ("kind", *configs), (*cells, verdicts), note
    )


def ahead(figures: Figures, batch: int) -> Table:
    """Other engines beside ours, where there are some."""
    rows, whole = (
        {r.config: r for r in found if r.batch == batch} for found in (figures.ahead, figures.ahead_end_to_end)
    )
    cells = [
        (Cell(c.name), *(_ratio(found.get(c.name)) for found in (rows, whole)), _verdict(whole.get(c.name)))
        for c in figures.plan.configs
        if c.engine and c.name in whole
    ]
    best = next((r.kind for r in whole.values()), "")
    note = (
        "Seconds a token of the other engine over ours, on the same prompts, with 95 % intervals; the verdict is of "
        f"{END_TO_END}. Which of our configurations is the fastest was found in the same data."
    )
    heads = ("than", "behind the first chunk", END_TO_END, f"verdict, {END_TO_END}")
    return Table(_title(f"times as fast as others: {best}", figures, batch), heads, tuple(cells), note)


def kinds(figures: Figures) -> list[str]:
    return [OVERALL, *dict.fromkeys(p.kind for p in figures.plan.prompts)]


def _by_config(found: Iterable[Speedup], batch: int, kind: str, length: str) -> dict[str, Speedup]:
    return {r.config: r for r in found if (r.batch, r.kind, r.length) == (batch, kind, length)}


def _ratio(found: Speedup | Change | None) -> Cell:
    if found is None:
        return Cell("–", "not measured")
    return Cell(f"{found.ratio:.2f}", interval(found.low, found.high), tone(found.verdict))


def _verdict(found: Speedup | Change | None) -> Cell:
    return Cell("not measured", tone="warn") if found is None else Cell(short(found.verdict), tone=tone(found.verdict))


def tone(verdict: Verdict) -> str:
    return TONES.get(verdict, "")


def short(verdict: Verdict) -> str:
    return verdict.value.partition(":")[0]


def interval(low: float, high: float) -> str:
    return f"{low:.2f}–{high:.2f}" if math.isfinite(high) else "no interval"


def latency(figures: Figures, batch: int) -> Table:
    """Percentiles in milliseconds, throughput and memory, a row for every configuration."""
    named = {
        "ttft": "first token",
        "per_token": "a token",
        "gap_token": "gap a token",
        "gap_chunk": "gap a chunk",
        "end_to_end": END_TO_END,
    }
    flows = {f.config: f for f in figures.flows if f.batch == batch}
    rows = []
    for row in (r for r in figures.latencies if r.batch == batch):
        flow = flows[row.config]
        rest = (
            Cell(f"{flow.tokens_per_second:,.1f}"),
            Cell(f"{flow.peak_bytes / 2**20:,.0f}" if flow.peak_bytes else "–"),
        )
        rows.append((Cell(row.config), *(_percentiles(row, name) for name in named), *rest))
    note = (
        "Milliseconds: p50 / p90 / p99. A gap a token is a chunk's share for each of its tokens, a gap a chunk the "
        "time between two chunks. MiB is the most memory that the process held."
    )
    return Table(_title("latency", figures, batch), ("config", *named.values(), "tokens/s", "MiB"), tuple(rows), note)


def _percentiles(row: Latency, name: str) -> Cell:
    found = row.spreads.get(name)
    return Cell("–") if found is None else Cell(" / ".join(ms(v) for v in (found.p50, found.p90, found.p99)))


def parts(figures: Figures, batch: int) -> Table:
    """Milliseconds of a mean decode step by part, and how much of the clock the parts account for."""
    mine = [p for p in figures.parts if p.batch == batch]
    names = list(dict.fromkeys(name for p in mine for name in p.decode))
    rows = []
    for p in mine:
        told = (Cell(ms(p.decode[n]) if n in p.decode else "–") for n in names)
        whole = Cell(ms(sum(p.decode.values())) if p.decode else "–")
        share = Cell(f"{p.share:.1%}", tone="" if p.sound else "bad")
        rows.append((Cell(p.config), *told, whole, Cell(f"{p.decode_steps:,}"), share))
    note = (
        "Milliseconds of a mean decode step in which no prompt is read. The last column checks the sum of all parts "
        "over all steps against the clock."
    )
    return Table(
        _title("a step by part", figures, batch), ("config", *names, "step", "steps", "of clock"), tuple(rows), note
    )


def acceptance(figures: Figures, batch: int) -> Table:
    rows = []
    for a in (a for a in figures.acceptance if (a.batch, a.kind) == (batch, OVERALL)):
        cells = (f"{a.alpha:.3f}", f"{a.tokens_per_step:.2f}", f"{a.accepted:,} / {a.proposed:,}", positions(a))
        rows.append((Cell(a.config), *map(Cell, cells)))
    note = "alpha is accepted / (accepted + rejections); by position: the share accepted among steps that reached it."
    heads = ("config", "alpha", "tokens a step", "accepted / proposed", "by position")
    return Table(_title("acceptance", figures, batch), heads, tuple(rows), note)


def acceptance_by_kind(figures: Figures, batch: int) -> Table:
    found = {(a.config, a.kind): a for a in figures.acceptance if a.batch == batch}
    configs = list(dict.fromkeys(name for name, _ in found))
    rows = [(Cell(kind), *(_accepted(found.get((c, kind))) for c in configs)) for kind in kinds(figures)]
    note = "alpha, and tokens a step."
    return Table(_title("acceptance by kind", figures, batch), ("kind", *configs), tuple(rows) if configs else (), note)


def _accepted(found: Acceptance | None) -> Cell:
    return Cell("–") if found is None else Cell(f"{found.alpha:.3f}", f"{found.tokens_per_step:.2f} a step")


def positions(found: Acceptance) -> str:
    told = [f"{v:.2f}" for v in found.alpha_cond[:_POSITIONS]]
    return " ".join(told) + (" …" if len(found.alpha_cond) > _POSITIONS else "")


def predicted(figures: Figures, batch: int) -> Table:
    rows = tuple(_predicted(p) for p in figures.predictions if p.batch == batch)
    missed = ("slower steps", "outside steps", "independence")
    heads = ("config", "predicted", "measured", "off by", "each off by", *missed, "speed-up")
    note = (
        "Milliseconds a token: the cost model, fed with the measured parts of other prompts, against the clock. "
        "Each off by: half of the answers no more than the first, nine in ten no more than the second. "
        "Measured less predicted is what steps of these prompts took longer, and what lies outside of steps. "
        "Independence: what would be added if every draft token were accepted on its own with probability alpha. "
        "Speed-up: predicted / measured."
    )
    return Table(_title("predicted against measured", figures, batch), heads, rows, note)


def _predicted(p: Prediction) -> tuple[Cell, ...]:
    off = Cell(f"{p.error:+.1%}", tone="good" if abs(p.error) <= CLOSE else "bad")
    each = Cell(f"{p.error_p50:.1%} / {p.error_p90:.1%}")
    missed = (Cell(signed(v)) for v in (p.steps, p.outside, p.independence))
    speedups = Cell(f"{p.speedup_predicted:.2f} / {p.speedup_measured:.2f}")
    return (Cell(p.config), Cell(ms(p.predicted)), Cell(ms(p.measured)), off, each, *missed, speedups)


def changes(told: Comparison) -> Table:
    """How many times as fast B is as A: a row for every kind, a column for every configuration and batch size."""
    ways = list(dict.fromkeys((c.config, c.batch) for c in told.changes))
    found = {(c.config, c.batch, c.kind): c for c in told.changes}
    names = dict.fromkeys(c.kind for c in told.changes)
    rows = [(Cell(kind), *(_ratio(found.get((*way, kind))) for way in ways)) for kind in names]
    overall = (_verdict(found.get((*way, OVERALL))) for way in ways)
    heads = ("kind", *(f"{config}, {told.load.called(batch)}" for config, batch in ways))
    note = "Seconds a token behind the first chunk, A over B, on prompts that are the same, with 95 % intervals."
    return Table("B times as fast as A", heads, (*rows, (Cell("verdict, overall"), *overall)), note)


def advantages(told: Comparison) -> Table:
    rows = tuple((Cell(f"{a.config}, {told.load.called(a.batch)}"), _ratio(a), _ratio(b)) for a, b in told.speedups)
    note = "Each on all prompts of its own file."
    return Table("times as fast as plain decoding, overall", ("config", "A", "B"), rows, note)


def ms(seconds: float) -> str:
    """Milliseconds, in three digits or all in front of the point."""
    value = seconds * 1e3
    if abs(value) < 5e-5:
        return "0"
    return f"{value:,.{min(max(2 - math.floor(math.log10(abs(value))), 0), 4)}f}"


def signed(seconds: float) -> str:
    told = ms(seconds)
    return f"+{told}" if seconds > 0 and told != "0" else told


def _title(subject: str, figures: Figures, batch: int) -> str:
    return f"{subject}, {figures.plan.load.called(batch)}"


def columns(table: Table, chosen: Sequence[int]) -> Table:
    """The table with the first column and those chosen."""
    kept = (0, *chosen)
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return table._replace(heads=tuple(table.heads[i] for i in kept), rows=rows)
