"""What an acceptance comes to: two verdicts that do not know each other, six parts, and an exit status.

Knows what was found; knows no file, no terminal and no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftproof.acceptance.manifest import same_work, weightless
from draftproof.acceptance.parts import PARTS, Part, Row, Shown, Standing, checked, shown
from draftproof.acceptance.run import TOY, Speed, other_weights
from draftproof.bench.figures import Figures
from draftproof.bench.report import words as speed_words
from draftproof.bench.speedups import Verdict
from draftproof.bench.summary import summary
from draftproof.verify.report import words
from draftproof.verify.report.data import Report

TOO_SLOW = 4  # exit status
_CLOCK = 0.02  # of the steps' time that their parts may miss


@dataclass(frozen=True, slots=True)
class Required:
    """A speed-up that was asked for, `ratio` 0 if none was, of one configuration that no result picks.

    `lows` are the low ends of its intervals by batch size; those that decide nothing are left out.
    """

    ratio: float
    config: str
    lows: Mapping[int, float]
    met: bool


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`manifest` as it is in the folder; `lossy` names rules that have a page of their own."""

    manifest: Mapping[str, Any]
    report: Report
    speed: Speed
    required: Required
    parts: tuple[Shown, ...]
    lossy: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """That of correctness. Where it is 0, speed has a say if it was interrupted or something was required."""
        if self.report.outcome.status:
            return self.report.outcome.status
        return 130 if self.speed.interrupted else 0 if self.required.met else TOO_SLOW


def accepted(
    manifest: Mapping[str, Any], report: Report, speed: Speed, ratio: float = 0.0, lossy: tuple[str, ...] = ()
) -> Acceptance:
    own = {1: lambda p: shown(p, _settled(manifest, report, speed)), 5: lambda p: _measured(p, speed)}
    entries = report.outcome.entries
    parts = tuple(own[p.number](p) if p.number in own else checked(p, entries) for p in PARTS)
    return Acceptance(manifest, report, speed, required(speed.figures, ratio), parts, lossy)


def required(figures: Figures, ratio: float) -> Required:
    """Of k=auto, or else of the first draft length: the low end of its interval at every batch size."""
    ways = figures.plan.speculative
    config = next((c.name for c in ways if c.k == "auto"), ways[0].name)
    undecided = {Verdict.FEW, Verdict.UNFINISHED}
    rows = [r for r in speed_words.overall(figures) if r.config == config and r.verdict not in undecided]
    lows = {r.batch: r.low for r in rows}
    met = all(lows.get(b, 0.0) >= ratio for b in figures.plan.batches)
    return Required(ratio, config, lows, met)


def _settled(manifest: Mapping[str, Any], report: Report, speed: Speed) -> list[Row]:
    """Part 1: what was written down is what ran."""
    plan, weights = speed.result.plan, manifest["weights"]
    target, draft = weights["target"]["fingerprint"], weights["draft"]["fingerprint"]
    same = (target, draft) == (plan.target.fingerprint, plan.draft.fingerprint)
    same = same and not other_weights(report.engines, target)
    known = bool(target) and (bool(draft) or weightless(plan.draft))
    gaps = ["a fingerprint is not known"] * (not known)
    gaps += ["nothing was verified on the model"] * all(leg.startswith(TOY) for leg in report.engines)
    said = Standing.MISSING if gaps else Standing.HOLDS
    work = Standing.HOLDS if same_work(manifest, speed.result) else Standing.FAILS
    return [
        Row(
            "manifest/weights",
            "both suites ran on the weights whose fingerprints are written down",
            said if same else Standing.FAILS,
            note="; ".join(gaps) if same else "other weights ran",
        ),
        Row("manifest/workload", "what was measured is the workload that is written down", work),
    ]


def _measured(part: Part, speed: Speed) -> Shown:
    """Part 5: whether there are figures and whether they stand. Whether they please is the verdict on speed."""
    found = shown(part, _timed(speed))
    if found.standing is Standing.FAILS:
        return found
    if not speed.figures.complete:
        return replace(found, standing=Standing.MISSING)  # nothing is decided
    return replace(found, standing=Standing.MEASURED) if found.standing is Standing.HOLDS else found


def _timed(speed: Speed) -> list[Row]:
    figures = speed.figures
    wrong = [f"{p.config}, batch {p.batch}: {p.share:.1%}" for p in figures.parts if not p.sound]
    clock = Standing.FAILS if wrong else Standing.HOLDS if figures.parts else Standing.MISSING
    whole = Standing.HOLDS if figures.complete else Standing.MISSING
    count = f"{figures.done:,} of {figures.planned:,} runs"
    about = f"the parts of a step add up to the clock around it, within {_CLOCK:.0%}"
    return [
        Row(
            "bench/complete",
            "every planned run was measured",
            whole,
            note="; ".join(filter(None, (count, speed.trouble))),
        ),
        Row("bench/parts", about, clock, note=", ".join(wrong)),
    ]


def record(found: Acceptance) -> dict[str, Any]:
    """One object for other programs."""
    outcome, told = found.report.outcome, summary(found.speed.figures)
    return {
        "model": found.manifest["model"],
        "draft": found.manifest["draft"],
        "status": found.status,
        "correctness": {
            "verdict": outcome.verdict.value,
            "status": outcome.status,
            "interrupted": outcome.interrupted,
            "reasons": list(outcome.reasons),
            "notes": list(outcome.notes),
        },
        "speed": {
            "verdict": speed_words.headline(found.speed.figures).words,
            "complete": found.speed.figures.complete,
            "trouble": found.speed.trouble,
            "notes": told["notes"],
            "by_batch": {b: rows["overall"] for b, rows in told["speedup"]["by_batch"].items()},
            "required": asdict(found.required),
        },
        "parts": [
            {
                "part": s.part.number,
                "title": s.part.title,
                "standing": s.standing.value,
                "checks": {row.name: row.standing.value for row in s.rows},
            }
            for s in found.parts
        ],
    }


def sentences(found: Acceptance) -> list[str]:
    """The two verdicts and the six parts, a line each."""
    outcome, headline = found.report.outcome, speed_words.headline(found.speed.figures)
    lines = [f"Correctness: {words.HEADLINES[outcome.verdict]}.", *(f"  {reason}" for reason in outcome.reasons)]
    lines += [f"  {words.shown(found.report)}"] * bool(outcome.entries)
    lines += [f"Speed: {headline.words}.", *(f"  {line}" for line in headline.lead.splitlines())]
    lines += [f"  {line}" for line in loud(found)]
    return [*lines, *(f"{s.part.number}. {s.part.title}: {s.standing}" for s in found.parts)]


def loud(found: Acceptance) -> list[str]:
    """What must be known beside the verdict on speed."""
    asked = found.required
    lines = [*filter(None, (found.speed.trouble,)), *speed_words.loud(found.speed.figures)]
    if asked.ratio:
        met = "met" if asked.met else "not met"
        lines.append(f"required: {asked.config} at least {asked.ratio:g} times as fast at every batch size: {met}")
    return lines
