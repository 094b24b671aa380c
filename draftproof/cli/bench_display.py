"""How far a bench has come, on a terminal or in a log. Knows no bench."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

from draftproof.bench.measure import Progress


@contextmanager
def display(err: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left on a terminal; a line every tenth elsewhere."""
    if not err.is_terminal:
        told: set[int] = set()

        def line(at: Progress) -> None:
            tenth = 10 * at.done // at.total
            if tenth not in told:
                told.add(tenth)
                err.print(f"measuring {at.done / at.total:.0%}", soft_wrap=True)

        yield line
        return
    what = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn())
    with bars.Progress(*what, bars.TimeElapsedColumn(), bars.TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda at: bar.update(task, description=at.what, completed=at.done, total=at.total)
