"""An audit as one JSON object, which the page is made from. Knows no page and runs nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.audit.run import Finding
from draftproof.verify.contract import Budget
from draftproof.verify.plan import VerifyError, plain
from draftproof.verify.report.data import Report, record

_FORMAT = 1
_KEPT = ("leg", "name", "claim", "verdict", "samples", "p_value", "detectable_tv", "power", "witness", "note")


def to_record(
    findings: Sequence[Finding], budget: Budget, versions: Mapping[str, str], command: str, when: str
) -> dict[str, Any]:
    found = [_finding(finding, budget) for finding in findings]
    told = {"draftproof audit": _FORMAT, "budget": budget, "versions": versions, "command": command, "when": when}
    whole: dict[str, Any] = plain({**told, "findings": found})
    return whole


def _finding(finding: Finding, budget: Budget) -> dict[str, Any]:
    case = finding.case
    base = shlex.join(["draftproof", "verify", *case.command, *_budget(budget)])
    told = record(Report(finding.outcome, budget, base=base, engines=finding.engines))
    kept = (*_KEPT, "state", "proposed", "seconds", "reproduce")
    rows = [{name: row[name] for name in kept if name in row} for row in told["checks"]]
    return {
        **{name: getattr(case, name) for name in ("engine", "mode", "what", "promise")},
        "verdict": finding.outcome.verdict,
        "standing": finding.standing,
        "reasons": finding.outcome.reasons,
        "notes": finding.outcome.notes,
        "settings": finding.engines,
        "command": base,
        "confirmations": finding.confirmations,
        "checks": rows,
    }


def _budget(budget: Budget) -> list[str]:
    level = [f"--{budget.level}"] * (budget.level != "default")
    return [*level, "--tv", f"{budget.tv:g}", "--seed", str(budget.seed)]


def to_json(audits: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(audits, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """The audits of a file.

    Raises:
        VerifyError: it cannot be read, or is none.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VerifyError(f"{path} cannot be read: {error}") from error
    if not isinstance(told, list) or not all(
        isinstance(a, dict) and a.get("draftproof audit") == _FORMAT for a in told
    ):
        raise VerifyError(f"{path} is no result of draftproof audit --json: give another file")
    return told
