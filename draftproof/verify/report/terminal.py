"""The outcome on a terminal: a table a leg, witnesses of what failed, what was not shown. Knows rich, not HTML."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.verify.contract import Verdict
from draftproof.verify.outcome import Kill, Overall
from draftproof.verify.plan import Entry
from draftproof.verify.report import words
from draftproof.verify.report.data import Report, lossy, reproduce, witness_lines

_STYLES = {
    "holds": "green",
    "fails": "bold red",
    "fails as expected": "yellow",
    "holds unexpectedly": "bold red",
    "not tested": "yellow",
    "measured": "cyan",
}
_COLUMNS = ("claim", "verdict", "samples", "p", "TV seen", "power", "s")
_BANNERS = {Overall.EXACT: "bold green", Overall.NOT_EXACT: "bold red", Overall.UNTESTED: "bold yellow"}


def show(report: Report, console: Console) -> None:
    for leg in dict.fromkeys(e.leg for e in report.outcome.entries):
        console.print(_table(report, leg))
    for entry in report.outcome.having(Verdict.FAILS):
        _witness(report, entry, console)
    _lossy(report, console)
    if report.kills is not None:
        kills(report.kills, console)
    _verdict(report, console)


def _table(report: Report, leg: str) -> Table:
    table = Table(title=Text(leg, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [_cells(report, entry) for entry in report.outcome.entries if entry.leg == leg]
    told = [i for i in range(len(_COLUMNS)) if i < 2 or any(row[i] for row in rows)]  # room is short
    for i in told:
        table.add_column(_COLUMNS[i], ratio=None if i else 1, justify="right" if i > 1 else "left", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(row[i] for i in told))
    return table


def _cells(report: Report, entry: Entry) -> list[Text | str]:
    result, verdict = entry.result, words.label(entry, report.outcome)
    claim = Text(result.claim)
    claim.append(f"  {result.name}", style="dim")
    remarks = (result.note, report.outcome.expected.get(entry.key), report.outcome.unexpected_passes.get(entry.key))
    for remark in filter(None, remarks):
        claim.append(f"\n{remark}", style="yellow" if result.verdict is Verdict.UNTESTED else "dim")
    figures = (words.samples(entry), words.p_value(entry), words.share(result.detectable_tv), words.share(result.power))
    return [claim, Text(verdict, style=_STYLES[verdict]), *figures, words.seconds(result.seconds)]


def _witness(report: Report, entry: Entry, console: Console) -> None:
    style = _STYLES[words.label(entry, report.outcome)]
    console.print(Text(f"{entry.key}: {words.label(entry, report.outcome)}", style=style))
    table = Table.grid(padding=(0, 2))
    for name, value in witness_lines(entry):
        table.add_row(Text(f"  {name}", style="dim"), Text(value))
    table.add_row(Text("  again", style="dim"), Text(reproduce(report, entry), overflow="fold"))
    console.print(table)
    console.print()


def _lossy(report: Report, console: Console) -> None:
    rows = lossy(report)
    if not rows:
        return
    title = Text("rules that change the law (measured, not judged)", style="bold")
    table = Table("rule", "TV a step", "interval", "subject", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for row in rows:
        interval = f"{words.share(row['low'])} to {words.share(row['high'])}" if row["low"] is not None else ""
        table.add_row(*(Text(str(t)) for t in (row["rule"], words.share(row["tv"]), interval, row["leg"])))
    console.print(table)


def kills(found: tuple[Kill, ...], console: Console) -> None:
    """The kill matrix."""
    title = Text("planted faults", style="bold")
    table = Table("fault", "must be seen by", "was seen by", "", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for kill in found:
        name = Text(kill.name).append(f"  {kill.what}", style="dim")
        mark = Text("killed", style="green") if kill.killed else Text("survived", style="bold red")
        table.add_row(name, Text(kill.expected_check), Text(kill.killed_by or ""), mark)
    console.print(table)
    console.print(f"{sum(k.killed for k in found)} of {len(found)} planted faults were killed by the check they name")


def _verdict(report: Report, console: Console) -> None:
    outcome = report.outcome
    console.print(Text(f"\nverdict: {outcome.verdict}", style=_BANNERS[outcome.verdict]))
    console.print(Text(words.shown(report)))
    for reason in outcome.reasons:
        console.print(Text(f"  {reason}"))
    for note in outcome.notes:
        console.print(Text(f"  note: {note}", style="yellow"))
    missing = [e for e in outcome.having(Verdict.UNTESTED) if not any(e.key in r for r in outcome.reasons)]
    if missing:
        console.print(Text(f"not shown: {', '.join(e.key for e in missing)}", style="yellow"))
