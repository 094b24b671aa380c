"""Runs a case, and every check that fails once more: with a fresh seed, and with speculation off.

Knows how runs follow each other and what a case's standing is; nothing of engines, checks and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from draftproof.audit.cases import Case, narrowed
from draftproof.verify.adapters.registry import Promise
from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.outcome import Outcome, Overall, conclude
from draftproof.verify.plan import Leg, fingerprint
from draftproof.verify.run import Progress, Ran, run_plan
from draftproof.verify.store import Store

_FRESH = 7_919  # what a repetition adds to the seed
NOT_THERE = "no such mode"


class Standing(StrEnum):
    """What the audit says of a case."""

    AS_PROMISED = "as promised"
    CHANGED = "speculation changes the output"  # again with a fresh seed, and not with speculation off
    APART = "differs without speculation as well"
    ONCE = "did not come again"
    CONTROL = "control failed"  # no speculation was not exact, or a lossy setting was not seen
    UNTESTED = "could not be tested"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A check that failed, with a fresh seed and with speculation off. Words of a verdict."""

    check: str
    again: str
    off: str


@dataclass(frozen=True, slots=True)
class Finding:
    case: Case
    outcome: Outcome
    engines: Mapping[str, Mapping[str, str]]
    confirmations: tuple[Confirmation, ...]
    standing: Standing


@dataclass(frozen=True, slots=True)
class How:
    """What all runs of an audit share. Stores lie in `folder`."""

    budget: Budget
    versions: Mapping[str, str]
    folder: Path
    timeout: float
    progress: Callable[[Progress], None] = lambda _: None


def audit(case: Case, how: How) -> Finding:
    ran = _run(case, case.legs, "first", how, how.budget)
    outcome = conclude(ran, how.budget)
    failing = [entry.result.name for entry in outcome.having(Verdict.FAILS)]
    confirmations = _confirmed(case, failing, how) if failing and case.promise is Promise.EXACT else ()
    return Finding(case, outcome, ran.engines, confirmations, standing(case.promise, outcome.verdict, confirmations))


def standing(promise: Promise, verdict: Overall, confirmations: Sequence[Confirmation]) -> Standing:
    if verdict is Overall.UNTESTED:
        return Standing.UNTESTED
    if promise is not Promise.EXACT:
        wanted = Overall.NOT_EXACT if promise is Promise.APPROXIMATE else Overall.EXACT
        return Standing.AS_PROMISED if verdict is wanted else Standing.CONTROL
    if verdict is Overall.EXACT:
        return Standing.AS_PROMISED
    repeated = [c for c in confirmations if c.again == Verdict.FAILS]
    if not repeated:
        return Standing.ONCE
    # without a mode to compare with, only what failed twice is left to go by
    blamed = any(c.off in (Verdict.HOLDS, NOT_THERE) for c in repeated)
    return Standing.CHANGED if blamed else Standing.APART


def _confirmed(case: Case, checks: Sequence[str], how: How) -> tuple[Confirmation, ...]:
    fresh = replace(how.budget, seed=how.budget.seed + _FRESH)
    again = _verdicts(_run(case, narrowed(case.legs, checks, "fresh seed"), "again", how, fresh), fresh)
    off = _verdicts(_run(case, narrowed(case.off, checks, "speculation off"), "off", how, how.budget), how.budget)
    return tuple(Confirmation(c, again.get(c, NOT_THERE), off.get(c, NOT_THERE)) for c in dict.fromkeys(checks))


def _verdicts(ran: Ran, budget: Budget) -> dict[str, str]:
    """Verdict of each check; a failure on any leg counts."""
    found: dict[str, str] = {}
    for entry in conclude(ran, budget).entries:
        if found.get(entry.result.name) != Verdict.FAILS:
            found[entry.result.name] = str(entry.result.verdict)
    return found


def _run(case: Case, legs: Sequence[Leg], what: str, how: How, budget: Budget) -> Ran:
    if not legs:
        return Ran()
    header = {"case": case.name, "plan": fingerprint(legs), "versions": how.versions, **asdict(budget)}
    how.folder.mkdir(parents=True, exist_ok=True)
    path = how.folder / f"{case.engine}-{case.mode}-{budget.seed}-{what}.jsonl"
    with Store(path, header) as store:
        ran = run_plan(legs, budget, store=store, timeout=how.timeout, progress=how.progress)
    if ran.interrupted:
        raise KeyboardInterrupt  # what was obtained is kept in the store
    return ran
