"""What a server counts of its drafts at /metrics, before and after a run. Knows no connection."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from draftproof.bench.results import Drafted

# a line of Prometheus' text format, as in vllm:spec_decode_num_drafts_total{engine="0"} 12.0
_LINE = re.compile(
    r"^(?P<prefix>\w+[:_])?spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"(?:_total)?(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>[0-9.eE+]+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over all engines of a server; `told` is False where it has no such counters."""

    told: bool = False
    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_at: dict[int, int] = field(default_factory=dict)


def counters(text: str) -> Counters:
    """From Prometheus' text. Of several prefixes, which count the same twice, the first."""
    sums: dict[str, int] = defaultdict(int)
    at: dict[int, int] = defaultdict(int)
    lines = list(_LINE.finditer(text))
    for line in lines:
        if line["prefix"] != lines[0]["prefix"]:
            continue
        value, position = int(float(line["value"])), _POSITION.search(line["labels"] or "")
        if line["name"] != "accepted_tokens_per_pos":
            sums[line["name"]] += value
        elif position:
            at[int(position[1])] += value
    return Counters(bool(lines), sums["drafts"], sums["draft_tokens"], sums["accepted_tokens"], dict(at))


def between(before: Counters, after: Counters) -> Drafted:
    """What was counted meanwhile. Empty if nothing is counted, or if the counters began anew."""
    drafts, proposed, accepted = (getattr(after, n) - getattr(before, n) for n in ("drafts", "proposed", "accepted"))
    if not (before.told and after.told) or min(drafts, proposed, accepted) < 0:
        return Drafted()
    at = tuple(after.accepted_at[i] - before.accepted_at.get(i, 0) for i in sorted(after.accepted_at))
    # where all drafts are of one length, a position is reached by what was accepted at the one before
    reached = (drafts, *at[:-1]) if at and proposed == drafts * len(at) else ()
    return Drafted(drafts, proposed, accepted, at if reached else (), reached)
