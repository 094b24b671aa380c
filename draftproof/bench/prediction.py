"""The cost model, fed with the measured parts, against the clock: what it predicts for prompts that it has not seen.

A token takes (T_draft + T_verify + ... + T_other) / E seconds: the mean seconds of a decode step over the tokens that a
step emits. The step's seconds are those of all *other* groups; E is the request's own, since it is a property of the
text. What is left out, is what the model misses. Knows result records; knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.bench.plan import PLAIN
from draftproof.bench.results import RequestRecord, Result, RunRecord
from draftproof.bench.speedups import decode_seconds
from draftproof.bench.stats import spread
from draftproof.cost import expected_tokens


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over requests, in seconds a token. `error` is predicted / measured - 1.

    Half of the requests, and nine in ten, are off by no more than `error_p50` and `error_p90` each. Means come close to
    each other more easily: what one request's steps have too much, another one's have too little.

    measured - predicted = steps + outside. `steps`: these groups' own steps took longer than those of others (long
    contexts, the machine's moods). `outside`: the clock saw what no decode step accounts for (reading other prompts of
    the batch, handing out tokens). `independence`: what is added where E is 1 + alpha + ... + alpha^k instead of
    measured, as if every draft token were accepted on its own; 0 where k varies. Speed-ups are those that the
    seconds make.
    """

    config: str
    batch: int
    requests: int
    predicted: float
    measured: float
    error: float
    error_p50: float
    error_p90: float
    steps: float
    outside: float
    independence: float
    speedup_predicted: float
    speedup_measured: float


@dataclass(frozen=True, slots=True)
class _One:
    group: int
    place: int
    predicted: float
    own: float
    measured: float


def predictions(result: Result) -> tuple[Prediction, ...]:
    """For every configuration and batch size of which at least two groups have decode steps."""
    found = []
    for batch in result.plan.batches:
        plain = _ones(result, PLAIN, batch)
        for config in result.plan.configs:
            ones = _ones(result, config.name, batch)
            both = {(o.group, o.place) for o in plain} & {(o.group, o.place) for o in ones}
            if both:
                found.append(_prediction(result, config.name, batch, _only(ones, both), _only(plain, both)))
    return tuple(found)


def _only(ones: Sequence[_One], wanted: set[tuple[int, int]]) -> list[_One]:
    return [o for o in ones if (o.group, o.place) in wanted]


def _prediction(result: Result, config: str, batch: int, ones: Sequence[_One], plain: Sequence[_One]) -> Prediction:
    n, off = len(ones), spread([abs(o.predicted / o.measured - 1.0) for o in ones])
    predicted, own, measured = (sum(getattr(o, name) for o in ones) / n for name in ("predicted", "own", "measured"))
    return Prediction(
        config=config,
        batch=batch,
        requests=n,
        predicted=predicted,
        measured=measured,
        error=predicted / measured - 1.0,
        error_p50=off.p50,
        error_p90=off.p90,
        steps=own - predicted,
        outside=measured - own,
        independence=predicted * (_independence(result, config, batch) - 1.0),
        speedup_predicted=sum(o.predicted for o in plain) / n / predicted,
        speedup_measured=sum(o.measured for o in plain) / n / measured,
    )


def _ones(result: Result, config: str, batch: int) -> list[_One]:
    runs = [r for r in result.runs if r.config == config and result.plan.groups[r.group].batch == batch]
    runs = [r for r in runs if r.decode.steps]
    spent, steps = sum(map(_spent, runs)), sum(r.decode.steps for r in runs)
    found = []
    for run in runs if len(runs) > 1 else ():
        others = (spent - _spent(run)) / (steps - run.decode.steps)
        mine = _spent(run) / run.decode.steps
        for place, request in enumerate(run.requests):
            emitted, measured = tokens_a_step(request), decode_seconds(request)
            if emitted is not None and measured is not None:
                found.append(_One(run.group, place, others / emitted, mine / emitted, measured))
    return found


def _spent(run: RunRecord) -> float:
    return sum(run.decode.seconds.values())


def tokens_a_step(request: RequestRecord) -> float | None:
    """E behind the first step. None if there was but one."""
    return (request.tokens - request.first) / (request.steps - 1) if request.steps > 1 else None


def _independence(result: Result, config: str, batch: int) -> float:
    """E as measured over E by the formula."""
    k = result.plan.config(config).k
    runs = [r for r in result.runs if r.config == config and result.plan.groups[r.group].batch == batch]
    requests = [q for r in runs for q in r.requests if q.steps > 1]
    reached = sum(sum(q.reached_at) for q in requests)
    if k == "auto" or not reached:
        return 1.0
    alpha = sum(sum(q.accepted_at) for q in requests) / reached
    measured = sum(q.tokens - q.first for q in requests) / sum(q.steps - 1 for q in requests)
    return measured / expected_tokens(alpha, k)
