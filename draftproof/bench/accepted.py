"""How much of the drafts was accepted: overall, by kind and by position. Knows result records; knows no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.bench.plan import Plan
from draftproof.bench.results import RequestRecord, RunRecord
from draftproof.bench.workloads import OVERALL

Cell = tuple[str, int, Sequence[RunRecord]]  # configuration, batch size, its runs


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of speculative configurations, overall and by kind. `alpha_cond[i]` is the share accepted at position i among the
    steps that reached it."""

    config: str
    batch: int
    kind: str
    alpha: float
    alpha_cond: tuple[float, ...]
    tokens_per_step: float
    proposed: int
    accepted: int


def acceptances(plan: Plan, cells: Sequence[Cell]) -> list[Acceptance]:
    """Overall only where a server counts drafts, but does not tell them of requests. What is not told has no row."""
    kinds = (OVERALL, *dict.fromkeys(p.kind for p in plan.prompts))
    kind_of = {p.id: p.kind for p in plan.prompts}
    found = []
    for config, batch, runs in cells:
        requests = [q for r in runs for q in r.requests if q.steps]
        for kind in kinds:
            mine = [q for q in requests if kind in (OVERALL, kind_of[q.prompt])]
            # answers of which the positions are told are not like those of which they are not
            if any(sum(q.reached_at) for q in mine) and all(q.reached_at for q in mine if q.proposed):
                found.append(_accepted(config, batch, kind, mine))
        drafted = [r for r in runs if r.drafted.drafts]
        if drafted and all(r.drafted.reached_at for r in drafted) and not any(q.reached_at for q in requests):
            found.append(_counted(config, batch, runs))
    return found


def _counted(config: str, batch: int, runs: Sequence[RunRecord]) -> Acceptance:
    """From counters of whole runs: every step emits one token more than it accepts."""
    requests = [q for r in runs for q in r.requests]
    tokens, told = sum(q.tokens for q in requests), [r.drafted for r in runs]
    accepted = sum(d.accepted for d in told)
    whole = RequestRecord(
        prompt="",
        ttft=0.0,
        end=0.0,
        chunks=(),
        tokens=tokens,
        finish="",
        proposed=sum(d.proposed for d in told),
        accepted=accepted,
        accepted_at=tuple(_summed([d.accepted_at for d in told])),
        reached_at=tuple(_summed([d.reached_at for d in told])),
        steps=max(tokens - accepted, 1),
    )
    return _accepted(config, batch, OVERALL, [whole])


def _accepted(config: str, batch: int, kind: str, requests: Sequence[RequestRecord]) -> Acceptance:
    accepted, reached = (_summed([getattr(q, name) for q in requests]) for name in ("accepted_at", "reached_at"))
    return Acceptance(
        config=config,
        batch=batch,
        kind=kind,
        alpha=sum(accepted) / sum(reached),
        alpha_cond=tuple(a / r for a, r in zip(accepted, reached, strict=True) if r),
        tokens_per_step=sum(q.tokens for q in requests) / sum(q.steps for q in requests),
        proposed=sum(q.proposed for q in requests),
        accepted=sum(q.accepted for q in requests),
    )


def _summed(rows: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, rows))
    return [sum(row[i] for row in rows if i < len(row)) for i in range(longest)]
