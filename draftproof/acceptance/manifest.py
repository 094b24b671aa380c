"""What an acceptance is of, written down before anything runs, and compared when the same command goes on.

Knows files and plans; runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.acceptance.parts import PARTS, names
from draftproof.bench.plan import Plan, Weights
from draftproof.bench.results import Result
from draftproof.types import RequestError
from draftproof.verify.contract import Budget
from draftproof.verify.plan import matches

VERSION = 1
_FREE = {"created", "command"}  # what may differ when the same acceptance goes on
_CORRECTNESS = (
    "Exact if no check fails at the family-wise error of the budget, judged by Holm over all checks, and no essential "
    "check is missing."
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is accepted. `plan` is that of the exact rules; `lossy` names rules that are only measured."""

    model: str
    draft: str
    plan: Plan
    budget: Budget
    versions: Mapping[str, str]
    checks: Sequence[str]
    rules: Sequence[str]
    lossy: Sequence[str]
    stop_tokens: Sequence[int]
    context: int


def manifest(subject: Subject) -> dict[str, Any]:
    """In JSON's own types."""
    plan = subject.plan
    told = {
        "version": VERSION,
        "created": plan.created,
        "command": plan.command,
        "model": subject.model,
        "draft": subject.draft,
        "weights": {"target": asdict(plan.target), "draft": asdict(plan.draft)},
        "versions": subject.versions,
        "environment": {name: value for name, value in plan.environment.items() if name != "load"},
        "sampling": _sampling(subject),
        "stops": _stops(subject),
        "workload": workload(plan),
        "budget": asdict(subject.budget),
        "decision": {"correctness": _CORRECTNESS, "speed": plan.decision},
        "parts": [{"part": p.number, "title": p.title, "checks": _named(subject.checks, p.checks)} for p in PARTS],
        "rules that change the law": list(subject.lossy),
    }
    found: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return found


def workload(plan: Plan) -> dict[str, Any]:
    """What is decoded while time is measured, in JSON's own types."""
    told = {
        "prompts": [asdict(p) for p in plan.prompts],
        "output tokens": plan.output_tokens,
        "batch sizes": plan.batches,
        "configurations": [asdict(c) for c in plan.configs],
        "groups": len(plan.groups),
    }
    found: dict[str, Any] = json.loads(json.dumps(told))
    return found


def _sampling(subject: Subject) -> dict[str, Any]:
    plan = subject.plan
    told = {name: getattr(plan, name) for name in ("temperature", "top_p", "top_k", "seed")}
    measured = names(c.rule for c in plan.speculative)
    lengths = names(str(c.k) for c in plan.speculative)
    return {"verified rules": list(subject.rules), "measured rules": measured, "draft lengths": lengths, **told}


def _stops(subject: Subject) -> dict[str, Any]:
    ignored = "ignored while time is measured, so that answers have a fixed length"
    return {
        "stop tokens": list(subject.stop_tokens),
        "stop tokens in part 5": ignored if subject.plan.ignore_eos else "end an answer",
        "most tokens in part 5": subject.plan.output_tokens,
        "context": subject.context,
        "in part 4": "stop tokens, stop strings, least and most tokens, and the context's end",
    }


def _named(checks: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in checks if matches(name, patterns)]


def weightless(draft: Weights) -> bool:
    """Drafts that only look at the text have nothing to take a fingerprint of."""
    return draft.name.partition(":")[0] in {"ngram", "suffix"}


def same_work(told: Mapping[str, Any], result: Result) -> bool:
    """Whether a result file is of the manifest's workload."""
    return bool(told["workload"] == workload(result.plan))


def settle(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest, or read the one that is there.

    Raises:
        RequestError: what is there is of another acceptance, or no manifest.
    """
    if not path.exists():
        _write(path, wanted)
    stored = _read(path)
    other = [n for n in names((*stored, *wanted)) if n not in _FREE and stored.get(n) != wanted.get(n)]
    if other:
        raise RequestError(
            f"{path} is of another acceptance (other: {', '.join(other)}): give the options of its command, or "
            "another --out"
        )
    return stored


def _read(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        told["version"], told["workload"], told["weights"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is no manifest of draftproof accept ({error}): give another --out") from error
    return told


def _write(path: Path, told: Mapping[str, Any]) -> None:
    """All or nothing: a manifest that is there is whole."""
    draft = path.with_suffix(".part")
    try:
        draft.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror or error}") from error
