"""The page of an audit: who stands as promised, engines by claims, and what was seen where something does not.

Made from the JSON alone, so that it can be made again from a stored one. Frame and style are those of every page. Knows
no engine and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.audit.run import Standing
from draftproof.page import render
from draftproof.verify.contract import Verdict
from draftproof.verify.report import words
from draftproof.verify.report.limits import LIMITS

Audits = Sequence[Mapping[str, Any]]
_TONES = {Standing.AS_PROMISED: "good", Standing.CHANGED: "bad", Standing.CONTROL: "bad"}
_CELLS = {Verdict.HOLDS: "good", Verdict.FAILS: "bad", Verdict.UNTESTED: "", Verdict.MEASURED: "info"}
_LONG = 220  # characters of a value in a witness
_SHOWN = 3  # witnesses of a case


def to_html(audits: Audits) -> str:
    return render(Path(__file__).with_name("page.html.j2"), _context(audits))


def _context(audits: Audits) -> dict[str, Any]:
    cases = _cases(audits)
    changed = [name for name, seen in cases.items() if any(f["standing"] == Standing.CHANGED for _, f in seen)]
    engines = sorted({f["engine"] for audit in audits for f in audit["findings"]})
    agree = all(len({f["verdict"] for _, f in seen}) == 1 for seen in cases.values())
    return {
        "headline": f"Audit of {words.count(len(engines), 'engine')}",
        "tone": "info",
        "lead": f"{words.count(len(cases), 'mode')} of {', '.join(engines)}, each against what it promises. "
        + ("Runs with different seeds agree on every verdict." if agree else "Runs with different seeds disagree."),
        "when": audits[0]["when"] if audits else "",
        "command": "\n".join(dict.fromkeys(audit["command"] for audit in audits)),
        "tiles": [
            (str(len(cases)), "modes", "info"),
            (str(sum(_settled(seen) for seen in cases.values())), "stand as promised", "good"),
            (str(len(changed)), "change the output by speculation", "bad" if changed else "good"),
        ],
        "standings": [_standing(name, seen) for name, seen in cases.items()],
        "grid": _grid(cases),
        "failures": [_failure(name, *seen[0]) for name, seen in cases.items() if not _settled(seen)],
        "limits": LIMITS,
        "facts": _facts(audits, cases),
    }


Seen = list[tuple[int, Mapping[str, Any]]]  # (seed, finding)


def _cases(audits: Audits) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for audit in audits:
        for finding in audit["findings"]:
            found.setdefault(f"{finding['engine']} {finding['mode']}", []).append((audit["budget"]["seed"], finding))
    return found


def _settled(seen: Seen) -> bool:
    return all(f["standing"] == Standing.AS_PROMISED for _, f in seen)


def _standing(name: str, seen: Seen) -> dict[str, Any]:
    told = dict.fromkeys(f["standing"] for _, f in seen)
    verdicts = dict.fromkeys(f["verdict"] for _, f in seen)
    return {
        "name": name,
        "what": seen[0][1]["what"],
        "promise": seen[0][1]["promise"],
        "verdict": " / ".join(verdicts),
        "seeds": ", ".join(str(seed) for seed, _ in seen),
        "standing": " / ".join(told),
        "tone": _TONES.get(Standing(next(iter(told))), "warn"),
    }


def _grid(cases: Mapping[str, Seen]) -> dict[str, Any]:
    """Claims by cases, of the first run of each. Where a check met no draft at all, it says so."""
    names = dict.fromkeys(row["name"] for seen in cases.values() for row in seen[0][1]["checks"])
    rows = []
    for check in names:
        cells = [_cell([r for r in seen[0][1]["checks"] if r["name"] == check], seen[0][1]) for seen in cases.values()]
        rows.append([{"text": check}, *cells])
    note = (
        "Samples, and the smallest total variation distance that would have been seen, with probability 0.99. A dash: "
        "the engine does not offer what the check needs. No draft: the check ran, but nothing was proposed in it."
    )
    return {"heads": ["claim", *cases], "rows": rows, "note": note}


def _cell(rows: Sequence[Mapping[str, Any]], finding: Mapping[str, Any]) -> dict[str, str]:
    """One check of a case; the worst of its legs."""
    tested = [r for r in rows if r["verdict"] != Verdict.UNTESTED]
    if not tested:
        broke = any(r["state"] == "broke" for r in rows)
        return {"text": "broke" if broke else "–", "small": "", "tone": "warn" if broke else ""}
    worst = next((r for r in tested if r["verdict"] == Verdict.FAILS), tested[0])
    idle = finding["promise"] != "plain" and all(r["proposed"] == 0 for r in tested)
    figures = [f"{worst['samples']:,}" if worst["samples"] else "", f"TV {words.share(worst['detectable_tv'])}"]
    small = " · ".join([f for f in figures if f not in ("", "TV ")] + ["no draft"] * idle)
    return {"text": worst["verdict"], "small": small, "tone": "" if idle else _CELLS[Verdict(worst["verdict"])]}


def _failure(name: str, seed: int, finding: Mapping[str, Any]) -> dict[str, Any]:
    failing = [r for r in finding["checks"] if r["verdict"] == Verdict.FAILS]
    return {
        "name": name,
        "standing": finding["standing"],
        "tone": _TONES.get(Standing(finding["standing"]), "warn"),
        "reasons": finding["reasons"],
        "confirmations": finding["confirmations"],
        "seed": seed,
        "witnesses": [
            {"name": r["name"], "claim": r["claim"], "again": r.get("reproduce", ""), "lines": _lines(r["witness"])}
            for r in failing[:_SHOWN]
        ],
    }


def _lines(witness: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), str(value)[:_LONG]) for name, value in (witness or {}).items()]


def _facts(audits: Audits, cases: Mapping[str, Seen]) -> list[tuple[str, list[tuple[str, str]]]]:
    budgets = dict.fromkeys(
        (a["budget"]["level"], f"{a['budget']['tv']:g}", str(a["budget"]["seed"]), f"{a['budget']['alpha']:g}")
        for a in audits
    )
    told = [(f"level {level}, seed {seed}", f"TV {tv}, error {alpha} a mode") for level, tv, seed, alpha in budgets]
    groups = [("Budget", told), ("Versions", [(n, str(v)) for n, v in audits[0]["versions"].items()] if audits else [])]
    for name, seen in cases.items():
        settings: Mapping[str, str] = next(iter(seen[0][1]["settings"].values()), {})
        groups.append((name, [(n, str(v)) for n, v in settings.items()]))
    return [(name, rows) for name, rows in groups if rows]
