"""Acceptance figures from a request's steps. Knows no clock and no text; see DESIGN.md for the words.

A step that only read a part of the prompt or only brought the stop token emitted nothing: it counts in the seconds, and
is left out of the ratios, for plain and speculative decoding alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftproof.types import Kind, StepTrace
from draftproof.watch import Seconds


@dataclass(frozen=True, slots=True)
class Stats:
    """`alpha` is accepted / (accepted + rejections), None if nothing was proposed. `alpha_cond[i]` is the share of
    accepted tokens at draft position i among the steps that reached it."""

    steps: int
    tokens: int
    proposed: int
    accepted: int
    tokens_per_step: float
    alpha: float | None
    alpha_cond: tuple[float, ...]
    numerical: int  # residuals without mass, see Verdict
    tv: float  # mean TV a step, 0 for exact rules
    seconds: Seconds


def summary(steps: Iterable[StepTrace]) -> Stats:
    every = list(steps)
    steps = [s for s in every if s.emitted]
    accepted = sum(s.accepted for s in steps)
    rejected = sum(_rejected(s) for s in steps)
    passed, reached = positions(steps)
    tokens = sum(len(s.emitted) for s in steps)
    return Stats(
        steps=len(steps),
        tokens=tokens,
        proposed=sum(len(s.proposed) for s in steps),
        accepted=accepted,
        tokens_per_step=tokens / len(steps) if steps else 0.0,
        alpha=accepted / (accepted + rejected) if accepted + rejected else None,
        alpha_cond=tuple(p / r for p, r in zip(passed, reached, strict=True) if r),
        numerical=sum(s.numerical for s in steps),
        tv=sum(s.tv for s in steps) / len(steps) if steps else 0.0,
        seconds=Seconds(*(sum(part) for part in zip(*(s.seconds for s in every), strict=True))),
    )


def positions(steps: Sequence[StepTrace]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many steps accepted at each draft position, and how many reached it."""
    places = range(max((len(s.proposed) for s in steps), default=0))
    reached = tuple(sum(s.accepted > i or (s.accepted == i and _rejected(s)) for s in steps) for i in places)
    return tuple(sum(s.accepted > i for s in steps) for i in places), reached


def _rejected(step: StepTrace) -> bool:
    return step.accepted < len(step.proposed) and step.kind is Kind.RESIDUAL


def trim(steps: Sequence[StepTrace], tokens: int) -> tuple[StepTrace, ...]:
    """The steps of the first `tokens` emitted tokens: what a stop string took back is not counted."""
    kept: list[StepTrace] = []
    for step in steps:
        emitted = step.emitted[: max(tokens, 0)]
        tokens -= len(step.emitted)
        if len(emitted) < len(step.emitted):
            accepted = min(step.accepted, len(emitted))
            kind = Kind.ACCEPTED if emitted else step.kind
            step = replace(step, emitted=emitted, accepted=accepted, proposed=step.proposed[:accepted], kind=kind)
        kept.append(step)
    return tuple(kept)
