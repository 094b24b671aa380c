"""The page with both verdicts, and the page of rules that change the law. Knows what was found and decides nothing.

Frame and style are those of every page, tables and pictures of time those of the bench.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from draftproof.acceptance import times
from draftproof.acceptance.parts import Row, Shown, Standing
from draftproof.acceptance.run import TOY, Speed
from draftproof.acceptance.verdicts import Acceptance, loud
from draftproof.bench import report as bench_report
from draftproof.bench.report import words as speed_words
from draftproof.page import render
from draftproof.verify.contract import Verdict
from draftproof.verify.outcome import Overall
from draftproof.verify.report import words
from draftproof.verify.report.data import Report, lossy
from draftproof.verify.report.limits import LIMITS

_HERE = Path(__file__).parent
_TONES = {Overall.EXACT: "good", Overall.NOT_EXACT: "bad", Overall.UNTESTED: "warn"}
_PILLS = {
    Standing.HOLDS: "good",
    Standing.FAILS: "bad",
    Standing.PARTLY: "warn",
    Standing.MISSING: "warn",
    Standing.MEASURED: "info",
}
_LIMITS = (
    *LIMITS[:-2],
    ("Quality", "A useless draft is exact, and a bad model may be fast: whether answers are good is not judged."),
    LIMITS[-1],
    ("Other work", "Time was measured on this machine, for these prompts, lengths and batch sizes."),
)


def index(found: Acceptance) -> str:
    told = found.manifest
    context = {
        "headline": f"Acceptance of {told['model']}",
        "tone": "info",
        "lead": f"Draft: {told['draft']}. Correctness and speed are two verdicts; neither stands for the other.",
        "when": told["created"],
        "command": shlex.join(told["command"]),
        "verdicts": [_correctness(found.report), _speed(found)],
        "parts": [_part(found, s) for s in found.parts],
        "lossy": found.lossy,
        "missing": _missing(found.report),
        "limits": _LIMITS,
        "facts": _facts(told),
        "shared": _style(),
    }
    return render(_HERE / "index.html.j2", context)


def lossy_page(manifest: Mapping[str, Any], report: Report, speed: Speed) -> str:
    """Rules that change the law: how far, and what that brings. Measured, not judged."""
    rows = lossy(report)
    unmeasured = [*report.outcome.reasons, *(f"{e.result.name}: {e.result.note}" for e in _untested(report))]
    context = {
        "headline": "Rules that change the law",
        "tone": "warn",
        "lead": f"{manifest['model']}, draft {manifest['draft']}. Measured, not judged: whoever names such a rule asks "
        "for another law. What is faster here is not the same text.",
        "when": manifest["created"],
        "command": shlex.join(manifest["command"]),
        "loud": [*filter(None, (speed.trouble,)), *speed_words.loud(speed.figures)],
        "rules": [{**row, "tv": words.share(row["tv"]), "interval": _interval(row)} for row in rows],
        "unmeasured": [] if rows else unmeasured or ["not measured"],
        "speed": speed_words.headline(speed.figures).lead,
        "tables": times.lossy_tables(speed.figures),
        "facts": [("Rules", [("asked for", ", ".join(manifest["rules that change the law"]))])],
        "shared": _style(),
    }
    return render(_HERE / "lossy.html.j2", context)


def _style() -> Markup:
    """Of the bench's pictures and tables."""
    return Markup((Path(bench_report.__file__).with_name("page.css")).read_text(encoding="utf-8"))


def _correctness(report: Report) -> dict[str, Any]:
    outcome = report.outcome
    return {
        "title": "Correctness",
        "word": words.HEADLINES[outcome.verdict],
        "tone": _TONES[outcome.verdict],
        "lead": words.shown(report) if outcome.entries else "",
        "loud": [*outcome.reasons, *outcome.notes],
        "links": [("every check", "verify.html"), ("as JSON", "verify.json")],
    }


def _speed(found: Acceptance) -> dict[str, Any]:
    headline = speed_words.headline(found.speed.figures)
    return {
        "title": "Speed",
        "word": headline.words,
        "tone": headline.tone,
        "lead": headline.lead,
        "loud": loud(found),
        "links": [("every figure", "bench.html"), ("as JSON", "bench.json"), ("all runs", "bench.jsonl")],
    }


def _part(found: Acceptance, told: Shown) -> dict[str, Any]:
    timed, settled = told.part.number == 5, told.part.number == 1
    figures = found.speed.figures
    return {
        "number": told.part.number,
        "title": told.part.title,
        "about": told.part.about,
        "word": told.standing.value,
        "tone": _PILLS[told.standing],
        "rows": [_row(row) for row in told.rows],
        "counted": not (timed or settled),
        "lead": times.lengths(figures) if timed else "",
        "pictures": times.pictures(figures) if timed else [],
        "tables": times.tables(found.speed.result, figures) if timed else [],
        "facts": _settled(found.manifest) if settled else [],
    }


def _row(row: Row) -> dict[str, Any]:
    where = ["toys"] * any(leg.startswith(TOY) for leg in row.held)
    where += ["the model"] * any(not leg.startswith(TOY) for leg in row.held)
    return {
        "name": row.name,
        "claim": row.claim,
        "word": row.standing.value,
        "tone": _PILLS[row.standing],
        "note": row.note,
        "held": f"{len(row.held)} of {row.subjects}" if row.subjects else "",
        "where": ", ".join(where),
        "samples": f"{row.samples:,}" if row.samples else "",
        "p": "".join("proof" if p == 0.0 else f"{p:.2g}" for p in row.p_value),
        "tv": "".join(map(words.share, row.tv)),
        "power": "".join(map(words.share, row.power)),
    }


def _untested(report: Report) -> Sequence[Any]:
    return report.outcome.having(Verdict.UNTESTED)


def _missing(report: Report) -> list[dict[str, str]]:
    return [
        {"claim": e.result.claim, "name": e.result.name, "leg": e.leg, "why": e.result.note} for e in _untested(report)
    ]


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["low"] is None else f"{words.share(row['low'])} to {words.share(row['high'])}"


def _settled(told: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    work = told["workload"]
    kinds = {p["kind"] for p in work["prompts"]}
    workload = [
        ("prompts", f"{len(work['prompts'])} of {len(kinds)} kinds, named in manifest.json with their SHA-256"),
        ("prompt tokens", _range([p["tokens"] for p in work["prompts"]])),
        ("answer tokens", ", ".join(f"{n} ({name})" for name, n in work["output tokens"].items())),
        ("batch sizes", ", ".join(map(str, work["batch sizes"]))),
        ("groups", str(work["groups"])),
    ]
    weights = [
        (f"Weights of the {side}", [("name", w["name"]), ("fingerprint", w["fingerprint"] or "none")])
        for side, w in told["weights"].items()
    ]
    return [*weights, ("Sampling", _told(told["sampling"])), ("Stops", _told(told["stops"])), ("Workload", workload)]


def _range(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}"


def _facts(told: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    names = {"Versions": "versions", "Budget of the checks": "budget", "Decision rules": "decision"}
    return [(title, _told(told[name])) for title, name in names.items()]


def _told(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _short(value)) for name, value in mapping.items()]


def _short(value: Any) -> str:
    match value:
        case str():
            return value
        case list():
            return ", ".join(map(_short, value)) or "none"
        case dict():
            return ", ".join(f"{name}: {_short(item)}" for name, item in value.items())
    return json.dumps(value)
