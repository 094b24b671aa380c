"""Which draft lengths promise most: acceptance by position, seen in runs with the longest one, and the measured costs.

A prediction, which settles what is worth measuring and nothing else: where rules look ahead (block), a token's chance
also depends on the length itself. Knows result records; knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftproof.bench.plan import Plan
from draftproof.bench.results import RequestRecord, RunRecord
from draftproof.cost import expected_by_position
from draftproof.length.goodput import Inputs, goodput
from draftproof.length.profile import Profile
from draftproof.types import RequestError

_WEIGHT = 4.0  # steps that the position before counts for, where few got so far


@dataclass(frozen=True, slots=True)
class Seen:
    """Of `steps` that could draft to the full: `chances[i]` is the share where token i + 1 stood of those where the
    first i did (it may have fallen, or not have been proposed); `alpha_cond[i]` of those where it was judged;
    `proposals[i]` the share of steps that proposed more than i tokens."""

    rule: str
    prompts: int
    steps: int
    chances: tuple[float, ...]
    alpha_cond: tuple[float, ...]
    proposals: tuple[float, ...]


class Promise(NamedTuple):
    """What a step of a batch is expected to bring each sequence and to take, and how many times faster than plain
    decoding that is."""

    batch: int
    rule: str
    k: int
    tokens: float
    seconds: float
    speedup: float


def seen(plan: Plan, runs: Sequence[RunRecord], config: str) -> Seen:
    """
    Raises:
        RequestError: no answer was long enough.
    """
    k = int(plan.config(config).k)
    requests = [q for run in runs if run.config == config for q in run.requests]
    steps = [n for q in requests for n in _accepted(plan, q, k)]
    if not steps:
        raise RequestError(f"no answer was long enough to draft {k} tokens in: raise --short and --long")
    alphas = tuple(_alphas(requests, k))
    chances, raw = zip(*_chances(steps, alphas, k), strict=True)
    prompts = len({q.prompt for q in requests})
    return Seen(plan.config(config).rule, prompts, len(steps), chances, alphas, _proposals(requests, raw, alphas))


def _chances(steps: Sequence[int], alphas: Sequence[float], k: int) -> Iterator[tuple[float, float]]:
    """The chance at each position, and the bare share, which is 1 where no step got to. What the position before
    accepted counts for a few steps: a draft that began mostly goes on."""
    before = 1.0
    for i in range(k):
        reached, stood = (sum(n >= most for n in steps) for most in (i, i + 1))
        weight = _WEIGHT if i else 0.0
        before = alphas[i - 1] if 0 < i <= len(alphas) else before
        before = (stood + weight * before) / (reached + weight)
        yield before, stood / reached if reached else 1.0


def _accepted(plan: Plan, request: RequestRecord, k: int) -> Iterator[int]:
    """Of each step behind the first that had room for k tokens and one more, and did not end the answer."""
    left = next(p.max_tokens for p in plan.prompts if p.id == request.prompt)
    for number, (_, tokens) in enumerate(request.chunks):
        last = number == len(request.chunks) - 1
        if number and left > k and not (last and request.finish != "length"):
            yield tokens - 1
        left -= tokens


def _alphas(requests: Sequence[RequestRecord], k: int) -> Iterator[float]:
    """Positions that nothing reached are left out; none can be behind them."""
    for i in range(k):
        accepted, reached = (
            sum(getattr(q, name)[i] for q in requests if i < len(getattr(q, name)))
            for name in ("accepted_at", "reached_at")
        )
        if not reached:
            return
        yield accepted / reached


def _proposals(
    requests: Sequence[RequestRecord], chances: Sequence[float], alphas: Sequence[float]
) -> tuple[float, ...]:
    """P(proposed) = P(stood) / P(stood, if proposed), position by position. Where nothing ever stood, the first is the
    mean draft over the length, and one that starts goes on."""
    drafted = sum(q.proposed for q in requests) / (len(chances) * sum(max(q.steps - 1, 1) for q in requests))
    share, found = 1.0, list[float]()
    for i, chance in enumerate(chances):
        known = i < len(alphas) and alphas[i] > 0.0
        share *= min(chance / alphas[i], 1.0) if known else min(drafted, 1.0) if i == 0 else 1.0
        found.append(share)
    return tuple(found)


def promises(profile: Profile, found: Seen, batch: int) -> tuple[Promise, ...]:
    """Of every draft length from 0, plain decoding, to the longest."""
    inputs = Inputs(batch, found.chances, found.proposals, (), False)
    plain = goodput(profile, inputs, 0)
    return tuple(
        Promise(
            batch,
            found.rule,
            k,
            expected_by_position(found.chances[:k]),
            profile.seconds(batch, k, profile.proposed(found.proposals[:k])),
            goodput(profile, inputs, k) / plain,
        )
        for k in range(len(found.chances) + 1)
    )


def shortlist(told: Sequence[Promise], count: int) -> tuple[int, ...]:
    """The draft lengths above 0 that promise most under any rule, in ascending order; the shorter of equals."""
    best: Mapping[int, float] = {k: max(p.speedup for p in told if p.k == k) for k in {p.k for p in told} - {0}}
    return tuple(sorted(sorted(best, key=lambda k: (-best[k], k))[:count]))
