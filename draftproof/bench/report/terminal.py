"""The figures of a bench on a terminal. Knows rich, not HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from draftproof.bench.figures import Figures
from draftproof.bench.report import tables, words
from draftproof.bench.report.compare import Comparison
from draftproof.bench.report.tables import Cell, Table, columns, every_batch

_SUBJECTS = (tables.speedup, tables.ahead, tables.latency, tables.parts, tables.acceptance, tables.predicted)
_BETWEEN = 3  # cells between two columns
_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "info": "cyan", "": ""}


def show(figures: Figures, console: Console) -> None:
    """Tables of everything, no configuration left out. What must be known first stands before them and behind them."""
    _loud(words.loud(figures), console)
    for make in _SUBJECTS:
        for table in every_batch(make, figures):
            show_table(table, console)
    headline = words.headline(figures)
    console.print(Text(headline.words, style=f"bold {_STYLES[headline.tone]}"))
    console.print(Text(headline.lead))
    console.print(Text(figures.plan.decision, style="dim"))
    _loud(words.loud(figures), console)


def show_changes(told: Comparison, console: Console) -> None:
    """What differs between two files first, since it may be why."""
    _loud(told.notes, console)
    console.print(Text("What differs", style="bold"))
    for row in told.differences:
        console.print(Text(f"  {row.name}: {row.a or 'nothing'} → {row.b or 'nothing'}"))
    console.print("" if told.differences else "  nothing that the files tell")
    for table in (tables.changes(told), tables.advantages(told)):
        if table.rows:
            show_table(table, console)
    _loud(told.notes, console)


def _loud(lines: Iterable[str], console: Console) -> None:
    for line in lines:
        console.print(Text(f"! {line}", style="bold red"))


def show_table(table: Table, console: Console) -> None:
    """In as many pieces as the width asks for: a column is never left out and never cut."""
    for n, piece in enumerate(_pieces(table, console.width)):
        title = Text(f"{table.title}, continued" if n else table.title, style="bold")
        drawn = rich_table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for i, head in enumerate(piece.heads):
            drawn.add_column(Text(head), justify="right" if i else "left", overflow="fold")
        for row in piece.rows:
            drawn.add_row(*map(_text, row))
        console.print(drawn)
    if table.note:
        console.print(Text(table.note, style="dim"), end="\n\n")


def _text(cell: Cell) -> Text:
    text = Text(cell.text, style=_STYLES[cell.tone])
    return text.append(f" ({cell.small})", style="dim") if cell.small else text


def _pieces(table: Table, width: int) -> Iterator[Table]:
    wide = [max(len(h), *(_text(row[i]).cell_len for row in table.rows)) + _BETWEEN for i, h in enumerate(table.heads)]
    chosen: list[int] = []
    for i in range(1, len(table.heads)):
        if chosen and wide[0] + sum(wide[j] for j in chosen) + wide[i] > width:
            yield columns(table, chosen)
            chosen = []
        chosen.append(i)
    yield columns(table, chosen)
