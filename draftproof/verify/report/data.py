"""The record that every report is made from, and its JSON form. Knows no terminal and no page."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.outcome import Kill, Outcome
from draftproof.verify.plan import Entry, plain


@dataclass(frozen=True, slots=True)
class Report:
    """`base` is the command without its output options and selections: reproduction lines begin with it."""

    outcome: Outcome
    budget: Budget
    command: str = "draftproof verify"
    base: str = "draftproof verify"
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # leg -> what its engine says of itself
    kills: tuple[Kill, ...] | None = None  # None: mutants were not asked for
    when: str = ""


def reproduce(report: Report, entry: Entry) -> str:
    """The line that shows this entry again; a witness may bring its own as `reproduce`."""
    own = (entry.result.witness or {}).get("reproduce")
    leg, check = shlex.quote(entry.leg), shlex.quote(entry.result.name)
    return str(own) if own else f"{report.base} --leg {leg} --checks {check}"


def witness_lines(entry: Entry) -> list[tuple[str, str]]:
    """The witness as names and values, its reproduction line left out."""
    told = entry.result.witness or {}
    return [(str(name).replace("_", " "), _short(value)) for name, value in told.items() if name != "reproduce"]


def lossy(report: Report) -> list[dict[str, Any]]:
    """Rules that change the law: measured results whose witness names a `rule`."""
    rows = []
    for entry in report.outcome.having(Verdict.MEASURED):
        told = entry.result.witness or {}
        if "rule" in told:
            figures = {name: told.get(name) for name in ("rule", "tv", "low", "high")}
            rows.append({**figures, "leg": entry.leg, "check": entry.result.name, "samples": entry.result.samples})
    return rows


def record(report: Report) -> dict[str, Any]:
    """One object of JSON's own types."""
    outcome = report.outcome
    told: dict[str, Any] = {
        "verdict": outcome.verdict,
        "status": outcome.status,
        "interrupted": outcome.interrupted,
        "reasons": outcome.reasons,
        "notes": outcome.notes,
        "checks": [_row(report, entry) for entry in outcome.entries],
        "lossy": lossy(report),
        "budget": report.budget,
        "versions": report.versions,
        "settings": {**report.settings, "engines": report.engines},
        "command": report.command,
        "when": report.when,
    }
    if report.kills is not None:
        told["mutants"] = report.kills
    finite: dict[str, Any] = _finite(plain(told))
    return finite


def to_json(report: Report) -> str:
    return json.dumps(record(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _row(report: Report, entry: Entry) -> dict[str, Any]:
    result, outcome = entry.result, report.outcome
    row = {name: getattr(result, name) for name in ("name", "claim", "verdict", "samples", "p_value", "detectable_tv")}
    row = {"leg": entry.leg, **row, "power": result.power, "witness": result.witness, "note": result.note}
    row |= {"seconds": result.seconds, "state": entry.state, "proposed": entry.proposed}
    row |= {"expected": outcome.expected.get(entry.key) or outcome.unexpected_passes.get(entry.key)}
    if result.verdict is Verdict.FAILS:
        row["reproduce"] = reproduce(report, entry)
    return row


def _finite(value: Any) -> Any:
    """JSON has no infinities; readers get null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return str(value) if str(value).isprintable() else ascii(str(value))
