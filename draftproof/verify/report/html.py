"""One self-contained HTML page: verdict on top, claims, plots, kill matrix, and how to repeat it all.

Knows no check and nothing of frame and style, which are those of every page.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from draftproof.page import render
from draftproof.verify.contract import Verdict
from draftproof.verify.outcome import Overall
from draftproof.verify.plan import Entry
from draftproof.verify.report import words
from draftproof.verify.report.data import Report, lossy, reproduce, witness_lines
from draftproof.verify.report.limits import LIMITS
from draftproof.verify.report.plots import draw, known

_MOST_BYTES = 1_500_000  # of pictures; the page stays under 2 MB
_TONES = {Overall.EXACT: "good", Overall.NOT_EXACT: "bad", Overall.UNTESTED: "warn"}
_PILLS = {
    "holds": "good",
    "fails": "bad",
    "fails as expected": "warn",
    "holds unexpectedly": "bad",
    "not tested": "warn",
    "measured": "info",
}


def to_html(report: Report) -> str:
    return render(Path(__file__).with_name("page.html.j2"), _context(report))


def _context(report: Report) -> dict[str, Any]:
    outcome = report.outcome
    failing, untested = outcome.having(Verdict.FAILS), outcome.having(Verdict.UNTESTED)
    figures, left_out = _figures(report)
    return {
        "when": report.when,
        "command": report.command,
        "outcome": outcome,
        "tone": _TONES[outcome.verdict],
        "headline": words.HEADLINES[outcome.verdict],
        "lead": words.shown(report),
        "tiles": _tiles(report),
        "failures": [_failure(report, entry) for entry in failing],
        "legs": [(leg, [_row(report, e) for e in outcome.entries if e.leg == leg]) for leg in _legs(outcome.entries)],
        "untested": [_row(report, entry) for entry in untested],
        "limits": LIMITS,
        "figures": figures,
        "left_out": left_out,
        "lossy": [{**row, "tv": words.share(row["tv"]), "interval": _interval(row)} for row in lossy(report)],
        "kills": report.kills,
        "facts": _facts(report),
    }


def _legs(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(e.leg for e in entries))


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """(figure, what it counts, tone)"""
    outcome = report.outcome
    failing, untested = len(outcome.having(Verdict.FAILS)), len(outcome.having(Verdict.UNTESTED))
    total = sum(e.result.seconds for e in outcome.entries)
    tiles = [
        (f"{len(outcome.having(Verdict.HOLDS))}", "claims hold", "good"),
        (f"{failing}", "fail", "bad" if failing else ""),
        (f"{untested}", "not tested", "warn" if untested else ""),
        (f"{sum(e.result.samples for e in outcome.entries):,}", "samples", ""),
        (words.seconds(total).removesuffix(" min") or "0", "seconds" if total < 60 else "minutes", ""),
    ]
    if report.kills is not None:
        killed = sum(k.killed for k in report.kills)
        tone = "good" if killed == len(report.kills) else "bad"
        tiles.append((f"{killed}/{len(report.kills)}", "planted faults killed", tone))
    return tiles


def _row(report: Report, entry: Entry) -> dict[str, Any]:
    result, outcome = entry.result, report.outcome
    label = words.label(entry, outcome)
    excuse = outcome.expected.get(entry.key) or outcome.unexpected_passes.get(entry.key)
    return {
        "leg": entry.leg,
        "name": result.name,
        "claim": result.claim,
        "label": label,
        "tone": _PILLS[label],
        "note": "; ".join(filter(None, (result.note, excuse and f"expected to fail: {excuse}"))),
        "samples": words.samples(entry),
        "p": words.p_value(entry),
        "tv": words.share(result.detectable_tv),
        "power": words.share(result.power),
        "seconds": words.seconds(result.seconds),
    }


def _failure(report: Report, entry: Entry) -> dict[str, Any]:
    return {**_row(report, entry), "witness": witness_lines(entry), "again": reproduce(report, entry)}


def _figures(report: Report) -> tuple[list[dict[str, Any]], int]:
    """Pictures of failing claims first, as many as the page may hold, and how many were left out."""
    order = sorted(report.outcome.entries, key=lambda e: e.result.verdict is not Verdict.FAILS)
    figures: list[dict[str, Any]] = []
    size = left_out = 0
    for entry in order:
        if size > _MOST_BYTES:
            left_out += len(known(entry.result.plots))
            continue
        for title, caption, picture in draw(entry.result.plots):
            size += len(picture)
            if size > _MOST_BYTES:
                left_out += 1
                continue
            figures.append({**_row(report, entry), "title": title, "caption": caption, "picture": Markup(picture)})
    return figures, left_out


def _interval(row: dict[str, Any]) -> str:
    return "" if row["low"] is None else f"{words.share(row['low'])} to {words.share(row['high'])}"


def _facts(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    budget = report.budget
    told = [
        ("level", budget.level),
        ("seed", str(budget.seed)),
        ("family-wise error", f"{budget.alpha:g}"),
        ("smallest TV to be seen", f"{budget.tv:g}"),
        ("power", f"{budget.power:g}"),
    ]
    groups = [("Budget", told), ("Versions", _told(report.versions)), ("Settings", _told(report.settings))]
    groups += [(leg, _told(said)) for leg, said in report.engines.items()]
    return [(name, rows) for name, rows in groups if rows]


def _told(mapping: Any) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in mapping.items()]
