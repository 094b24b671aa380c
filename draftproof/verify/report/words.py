"""Figures and verdicts in the words that the terminal and the page share. Knows no layout."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.verify.contract import Verdict
from draftproof.verify.outcome import Outcome, Overall
from draftproof.verify.plan import Entry
from draftproof.verify.report.data import Report

HEADLINES = {
    Overall.EXACT: "Exact",
    Overall.NOT_EXACT: "Not exact",
    Overall.UNTESTED: "Could not be tested",
}


def label(entry: Entry, outcome: Outcome) -> str:
    if entry.key in outcome.expected:
        return "fails as expected"
    if entry.key in outcome.unexpected_passes:
        return "holds unexpectedly"
    return "not tested" if entry.result.verdict is Verdict.UNTESTED else str(entry.result.verdict)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def samples(entry: Entry) -> str:
    return f"{entry.result.samples:,}" if entry.result.samples else ""


def p_value(entry: Entry) -> str:
    result = entry.result
    if result.verdict not in (Verdict.HOLDS, Verdict.FAILS) or (result.p_value == 1.0 and not entry.statistical):
        return ""
    if result.p_value == 0.0:
        return "proof"
    return _short(f"{result.p_value:.2g}")


def share(value: float | None) -> str:
    """A probability or a distance; as many nines as matter."""
    if value is None:
        return ""
    return f"{value:.4f}".rstrip("0").rstrip(".") if value < 0.99995 else ">0.9999" if value < 1 else "1"


def seconds(value: float) -> str:
    if value == 0.0:
        return ""
    if value < 60:
        return f"{value:.1f}"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}:{rest:02d} min"


def shown(report: Report) -> str:
    """What the run has shown and with which power, in one or two sentences."""
    outcome = report.outcome
    tested = outcome.having(Verdict.HOLDS, Verdict.FAILS)
    holding = outcome.having(Verdict.HOLDS)
    legs = len({entry.leg for entry in tested})
    hold = "holds" if len(tested) == 1 else "hold"
    text = f"{len(holding)} of {count(len(tested), 'tested claim')} {hold}, on {count(legs, 'subject')}."
    missing = len(outcome.having(Verdict.UNTESTED))
    silent = f"{count(missing, 'claim')} {'was' if missing == 1 else 'were'} not tested." if missing else ""
    strength = _strength(holding)
    chance = _short(f"{report.budget.alpha:g}")
    alpha = f"An honest engine fails such a run with probability {chance} at most."
    return " ".join(filter(None, (text, silent, strength, alpha)))


def _short(exponent: str) -> str:
    return exponent.replace("e-0", "e-")


def _strength(entries: Sequence[Entry]) -> str:
    """The weakest of the statistical claims, in words."""
    seen = [e.result for e in entries if e.result.detectable_tv is not None]
    if not seen:
        return ""
    widest = max(r.detectable_tv for r in seen if r.detectable_tv is not None)
    powers = [r.power for r in seen if r.power is not None]
    power = f" with probability {share(min(powers))} or more" if powers else ""
    finest = min(r.detectable_tv for r in seen if r.detectable_tv is not None)
    reach = f"TV {share(widest)}" if finest == widest else f"TV {share(finest)} to {share(widest)}, by claim,"
    return f"Where laws were tested, a change of {reach} would have been seen{power}."
