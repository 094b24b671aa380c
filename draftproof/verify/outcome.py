"""Entries -> one verdict on the engine, by Holm over the whole family, and whether the run went as expected.

Knows neither how checks run nor how verdicts are shown.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.plan import Entry, State, VerifyError, matches
from draftproof.verify.run import Ran
from draftproof.verify.stats import holm


class Overall(StrEnum):
    EXACT = "exact"
    NOT_EXACT = "not exact"
    UNTESTED = "could not be tested"


@dataclass(frozen=True, slots=True)
class Expected:
    """A failure that the user knows of. Names may be patterns; without a leg it stands for all legs."""

    check: str
    reason: str
    leg: str = "*"

    def of(self, entry: Entry) -> bool:
        return matches(entry.result.name, (self.check,)) and matches(entry.leg, (self.leg,))


@dataclass(frozen=True, slots=True)
class Kill:
    """A planted fault and the check that saw it. `killed` only if it was the check that the mutant names."""

    name: str
    what: str
    expected_check: str
    killed_by: str | None
    killed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict` is about the engine alone; `status` also knows what was expected.

    `expected` and `unexpected_passes` map an entry's key to the reason that the user's file gives.
    """

    verdict: Overall
    entries: tuple[Entry, ...]
    reasons: tuple[str, ...]  # why the verdict is not "exact", and why the run fails
    notes: tuple[str, ...] = ()  # what a reader must know besides
    expected: Mapping[str, str] = field(default_factory=dict)
    unexpected_passes: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    status: int = 0  # of the process: 0 every claim holds, 1 not exact, 3 could not be tested, 130 interrupted

    def having(self, *verdicts: Verdict) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.result.verdict in verdicts)


def read_expected(path: Path) -> tuple[Expected, ...]:
    """The user's file of expected failures.

    Raises:
        VerifyError: it cannot be read or an item is not as it must be.
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise VerifyError(f"{path} cannot be read: {error}") from error
    items = told.get("expected", [])
    strange = sorted(set(told) - {"expected"})
    if strange or not isinstance(items, list):
        raise VerifyError(
            f"{path}: only [[expected]] tables are known here, not {', '.join(strange) or 'expected = ...'}"
        )
    return tuple(_item(path, number, item) for number, item in enumerate(items, 1))


def _item(path: Path, number: int, item: object) -> Expected:
    where = f"{path}, [[expected]] number {number}"
    if not isinstance(item, dict) or not {"check", "reason"} <= set(item) <= {"check", "reason", "leg"}:
        raise VerifyError(f"{where}: give check, reason and, if you like, leg")
    for name, value in item.items():
        if not isinstance(value, str) or not value.strip():
            raise VerifyError(f"{where}: {name} must be a text that is not empty")
    return Expected(**item)


def conclude(ran: Ran, budget: Budget, expected: Sequence[Expected] = ()) -> Outcome:
    """Holm over all p-values can only add failures to those that checks saw within their own shares."""
    entries = _judged(ran.entries, budget)
    failing = [e for e in entries if e.result.verdict is Verdict.FAILS]
    excused = {e.key: x.reason for e in failing for x in expected if x.of(e)}
    holding = [e for e in entries if e.result.verdict is Verdict.HOLDS]
    passes = {e.key: x.reason for e in holding for x in expected if x.of(e)}
    surprises = [e for e in failing if e.key not in excused]
    blocked = _blocked(entries)
    verdict = Overall.NOT_EXACT if failing else Overall.UNTESTED if blocked or ran.interrupted else Overall.EXACT
    reasons = [f"{e.key} fails" for e in surprises] + [f"{k} fails, as expected: {why}" for k, why in excused.items()]
    reasons += [f"{k} holds but was expected to fail ({why}): take it off the list" for k, why in passes.items()]
    reasons += [*blocked, *["the run was interrupted"] * ran.interrupted]
    status = 130 if ran.interrupted else 1 if surprises or passes else 3 if blocked else 0
    notes = (*_notes(entries), *_unmatched(entries, expected))
    return Outcome(verdict, entries, tuple(reasons), notes, excused, passes, ran.interrupted, status)


def _judged(entries: Sequence[Entry], budget: Budget) -> tuple[Entry, ...]:
    family = {e.key: e.result.p_value for e in entries if e.statistical and e.result.verdict is not Verdict.MEASURED}
    rejected = holm(family, budget.alpha) if family else set()
    return tuple(_failed(e) if e.key in rejected and e.result.verdict is Verdict.HOLDS else e for e in entries)


def _failed(entry: Entry) -> Entry:
    note = "; ".join(filter(None, (entry.result.note, "rejected by Holm's procedure over the whole run")))
    return replace(entry, result=replace(entry.result, verdict=Verdict.FAILS, note=note))


def _blocked(entries: Sequence[Entry]) -> list[str]:
    """Why these entries cannot add up to "exact"."""
    silent = [e for e in entries if e.result.verdict is Verdict.UNTESTED]
    why = [
        f"{e.key} could not be tested: {e.result.note or 'no reason was given'}"
        for e in silent
        if e.state is State.BROKE or (e.essential and e.state is not State.UNRUN)
    ]
    for leg in dict.fromkeys(e.leg for e in entries):
        own = [e for e in entries if e.leg == leg]
        if all(e in silent and e.state is not State.UNRUN for e in own):
            why.append(f"{leg}: not one claim was tested")
        if sum(e.drafted for e in own) and sum(e.proposed or 0 for e in own) == 0 and _counts(own):
            why.append(f"{leg}: nothing was speculated, so that its checks only saw plain decoding")
    if not any(e.result.verdict in (Verdict.HOLDS, Verdict.FAILS) for e in entries):
        why.append("not one claim was tested")
    return why


def _counts(entries: Sequence[Entry]) -> bool:
    return any(e.proposed is not None for e in entries)


def _notes(entries: Sequence[Entry]) -> list[str]:
    legs = {leg: [e for e in entries if e.leg == leg] for leg in dict.fromkeys(e.leg for e in entries)}
    mute = [leg for leg, own in legs.items() if sum(e.drafted for e in own) and not _counts(own)]
    return [f"{leg}: the engine reports no counts, so that it is not shown whether it speculated" for leg in mute]


def _unmatched(entries: Sequence[Entry], expected: Sequence[Expected]) -> list[str]:
    idle = [x for x in expected if not any(x.of(e) for e in entries)]
    return [f"expected failure of {x.check!r} on {x.leg!r}: no check of this run has that name" for x in idle]
