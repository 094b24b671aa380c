"""The figures as JSON for other programs. Knows no arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from draftproof.bench.figures import Figures
from draftproof.bench.speedups import ALL, Speedup
from draftproof.bench.workloads import OVERALL


def summary(figures: Figures) -> dict[str, Any]:
    """`speedup` holds the first batch size under `overall` and `by_kind`, and every one under `by_batch`.

    An end of an interval that is not known is null.
    """
    plan = figures.plan
    by_batch = {str(b): _speedup(figures, b) for b in plan.batches}
    first = plan.batches[0]
    return {
        "complete": figures.complete,
        "runs": {"done": figures.done, "planned": figures.planned},
        "notes": list(figures.notes),
        "decision": plan.decision,
        "speedup": {"batch": first, **by_batch[str(first)], "by_batch": by_batch},
        **({"ahead": _ahead(figures)} if figures.ahead_end_to_end else {}),
        "load": {"way": plan.load.way.value, "batches": {str(b): plan.load.called(b) for b in plan.batches}},
        "configs": [asdict(c) for c in plan.configs],
        "seconds": _by_cell(figures.parts),
        "latency": _by_cell(figures.latencies, lambda row: {n: s._asdict() for n, s in row.spreads.items()}),
        "throughput": _by_cell(figures.flows),
        "acceptance": _by_cell(r for r in figures.acceptance if r.kind == OVERALL),
        "staircase": [asdict(p) for p in figures.staircase],
        "predicted": _by_cell(figures.predictions),
        "settings": {
            name: getattr(plan, name)
            for name in ("draftproof", "created", "command", "seed", "temperature", "top_p", "top_k", "ignore_eos")
        },
        "output_tokens": dict(plan.output_tokens),
        "prompts": len(plan.prompts),
        "environment": dict(plan.environment),
        "target": asdict(plan.target),
        "draft": asdict(plan.draft),
    }


def _speedup(figures: Figures, batch: int) -> dict[str, Any]:
    def rows(kind: str, length: str) -> dict[str, Any]:
        mine = [r for r in figures.speedups if (r.batch, r.kind, r.length) == (batch, kind, length)]
        whole = {r.config: r for r in figures.end_to_end if (r.batch, r.kind, r.length) == (batch, kind, length)}
        return {r.config: {**_row(r), "end_to_end": _row(whole[r.config])} for r in mine}

    kinds = dict.fromkeys(r.kind for r in figures.speedups if r.kind != OVERALL)
    lengths = dict.fromkeys(r.length for r in figures.speedups if r.length != ALL)
    return {
        "overall": rows(OVERALL, ALL),
        "by_kind": {kind: rows(kind, ALL) for kind in kinds},
        "by_length": {length: rows(OVERALL, length) for length in lengths},
    }


def _ahead(figures: Figures) -> dict[str, dict[str, Any]]:
    """By batch size and mode of another engine: how many times as fast the fastest of ours is, which `ours` names."""
    found: dict[str, dict[str, Any]] = {}
    behind = {(r.batch, r.config): _row(r) for r in figures.ahead}
    for row in figures.ahead_end_to_end:
        told = {"ours": row.kind, "decode": behind.get((row.batch, row.config)), "end_to_end": _row(row)}
        found.setdefault(str(row.batch), {})[row.config] = told
    return found


def _row(row: Speedup) -> dict[str, Any]:
    high = row.high if math.isfinite(row.high) else None
    told = {"ratio": row.ratio, "low": row.low, "high": high, "verdict": row.verdict.value}
    return {**told, "groups": row.groups, "pairs": row.pairs}


def _by_cell(rows: Iterable[Any], told: Any = asdict) -> dict[str, dict[str, Any]]:
    """By batch size and configuration."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        fields = {name: value for name, value in told(row).items() if name not in {"batch", "config", "kind"}}
        found.setdefault(str(row.batch), {})[row.config] = fields
    return found
