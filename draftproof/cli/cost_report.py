"""A cost scenario as one JSON object or as tables. Each says that it is a scenario. Knows no option and no file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof import cost

NOTE = "analytical scenario, not a measurement"
NOTE_MEASURED = f"{NOTE}: measured times, modelled acceptance"
ALPHAS = (0.2, 0.4, 0.6, 0.8, 0.9)
SHORT = 12
_STEP_MEASURED = "(T_draft(k, B) + T_verify(k, B) + T_other(k, B)) / T_plain(B)"
_FORMULA = {
    "expected_tokens": "1 + alpha + ... + alpha^k",
    "step_cost": "1 + k draft_cost",
    "speedup": "expected_tokens / step_cost",
    "operations_factor": "(k + 1 + k draft_operations) / expected_tokens",
    "break_even_alpha": "the smallest alpha with expected_tokens >= step_cost; null: there is none",
    "break_even_draft_cost": "the largest draft_cost with step_cost <= expected_tokens; null: any, there is no draft",
    "best_k": "the draft length with the largest speedup, 0 among the candidates",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was asked, checked. `lengths` are those of the curves over k, `batches` those of --measured."""

    alpha: float
    k: int
    costs: cost.Costs
    share: cost.Share
    lengths: Sequence[int]
    inputs: Mapping[str, object]
    batches: Mapping[int, cost.Measured]

    @property
    def note(self) -> str:
        return NOTE_MEASURED if self.batches else NOTE

    @property
    def given(self) -> str:
        """The inputs in words."""
        hidden = ("draft_operations", "draft_operations_given")
        return ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in self.inputs.items() if name not in hidden)

    @property
    def formula(self) -> dict[str, str]:
        return {**_FORMULA, "step_cost": _STEP_MEASURED} if self.batches else _FORMULA

    @property
    def point(self) -> cost.Point:
        return cost.point(self.alpha, self.k, self.costs, self.share)

    @property
    def over_k(self) -> Sequence[cost.Point]:
        return cost.over_k(self.alpha, self.lengths, self.costs, self.share)


def report(asked: Scenario) -> dict[str, object]:
    """What --json prints. Numbers that are infinite are null."""
    told: dict[str, object] = {
        "scenario": asked.note,
        "formula": asked.formula,
        "inputs": dict(asked.inputs),
        **_finite(asked.point),
        **_best(asked.alpha, asked.costs),
        "over_k": [_finite(point) for point in asked.over_k],
        "over_alpha": [
            {**_finite(point), **_best(point.alpha, asked.costs)}
            for point in cost.over_alpha(ALPHAS, asked.k, asked.costs, asked.share)
        ],
    }
    if asked.batches:
        told["over_batch"] = [{"batch": b, **_best(asked.alpha, costs)} for b, costs in asked.batches.items()]
    return told


def _finite(point: cost.Point) -> dict[str, object]:
    return {name: value if math.isfinite(value) else None for name, value in point._asdict().items()}


def _best(alpha: float, costs: cost.Costs) -> dict[str, object]:
    best = cost.best(alpha, costs)
    return {"best_k": best.k, "best_speedup": best.speedup}


def show(asked: Scenario, out: Console) -> None:
    """What is printed without --json."""
    out.print(Text(f"{asked.note}\n{asked.given}\n", style="bold"))
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(asked):
        facts.add_row(Text(name, style="dim"), value)
    out.print(facts)
    out.print(_table_over_k(asked))
    out.print(_table_over_alpha(asked))
    if asked.batches:
        out.print(_table_over_batch(asked))


def _facts(asked: Scenario) -> list[tuple[str, str]]:
    point, best = asked.point, cost.best(asked.alpha, asked.costs)
    share = "as given" if asked.inputs["draft_operations_given"] else "as its share of time"
    return [
        ("expected tokens a step", f"{point.expected_tokens:.4f}"),
        ("step cost", f"{point.step_cost:.4f} plain steps"),
        ("speed-up", _times(point.speedup)),
        ("best draft length", f"{_length(best.k)}, {_times(best.speedup)}"),
        ("pays from alpha", _pays_from(point, "none: slower at any acceptance")),
        ("pays to draft cost", _pays_to(point)),
        ("operations", f"{point.operations_factor:.4f} × those of plain decoding"),
        ("draft's operations", f"{asked.share(asked.k):.4g} of the target's a token, {share}"),
    ]


def _table_over_k(asked: Scenario) -> Table:
    best = cost.best(asked.alpha, asked.costs).k
    title = f"over k at alpha {asked.alpha:g}; pays from: the alpha where it breaks even"
    table = Table("k", "tokens", "step cost", "speed-up", "pays from", "operations", "", title=title)
    for p in asked.over_k:
        if p.k <= SHORT or p.k in (asked.k, best):
            mark = ", ".join(word for word, at in (("asked", asked.k), ("best", best)) if p.k == at)
            times = (f"{n:.4f}" for n in (p.expected_tokens, p.step_cost, p.speedup))
            cells = (str(p.k), *times, _pays_from(p, "never"), f"{p.operations_factor:.4f}", mark)
            table.add_row(*cells, style="bold" if mark else None)
    return _laid_out(table)


def _table_over_alpha(asked: Scenario) -> Table:
    title = f"over alpha: k {asked.k}, and the best k"
    table = Table("alpha", f"speed-up at k {asked.k}", "best k", "speed-up at the best k", title=title)
    for p in cost.over_alpha(ALPHAS, asked.k, asked.costs, asked.share):
        best = cost.best(p.alpha, asked.costs)
        table.add_row(f"{p.alpha:g}", f"{p.speedup:.4f}", _length(best.k), f"{best.speedup:.4f}")
    return _laid_out(table)


def _table_over_batch(asked: Scenario) -> Table:
    table = Table("batch", "best k", "speed-up at the best k", title=f"over batch sizes at alpha {asked.alpha:g}")
    for batch, costs in asked.batches.items():
        best = cost.best(asked.alpha, costs)
        table.add_row(str(batch), _length(best.k), f"{best.speedup:.4f}")
    return _laid_out(table)


def _laid_out(table: Table) -> Table:
    table.box, table.title_justify = box.SIMPLE, "left"
    for column in table.columns:
        column.justify = "right" if column.header else "left"
    return table


def _times(speedup: float) -> str:
    return f"{speedup:.4f} ×" + (", slower than plain decoding" if round(speedup, 4) < 1.0 else "")


def _length(k: int) -> str:
    return {0: "0 (do not speculate)", cost.LONGEST: f"{k} (the longest tried)"}.get(k, str(k))


def _pays_from(point: cost.Point, never: str) -> str:
    alpha = f"{point.break_even_alpha:.4f}" if math.isfinite(point.break_even_alpha) else never
    return alpha if point.k else "no draft"


def _pays_to(point: cost.Point) -> str:
    largest = point.break_even_draft_cost
    paid = f"{largest:.4f} plain steps" if largest >= 0.0 else "none: not even a draft for nothing pays"
    return paid if point.k else "no draft"
