"""I8: alone, batched, in any order, after preemption, with any row budget, a request says the same.

The models' rows are bitwise independent of batch mates here, so what is compared is token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import count

import numpy as np
import pytest
from toys import drafting, finished, random_table, toy_engine

from draftproof.accept import RULES
from draftproof.draft.base import Ask, Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.noise import StepNoise
from draftproof.step import Job
from draftproof.types import Draft, Output, SamplingParams

VOCAB = 6
Work = Sequence[tuple[list[int], SamplingParams]]
PROPOSERS = {
    "model": lambda: drafting(random_table(VOCAB, 2), VOCAB, min_rows=2),
    "ngram": lambda: NgramProposer(VOCAB, 1, 3),
}


def engine(proposer: Proposer | None, **info: int) -> Engine:
    return toy_engine(random_table(VOCAB, 1), VOCAB, proposer, **{"min_rows": 2, "context": 48, **info})


def mixed(rule: str | None, requests: int = 10, draft: bool = True) -> Work:
    """Requests that differ in everything: parameters, length of prompt and output, draft length, rule, seed."""
    rng = np.random.default_rng(7)
    work = []
    for i in range(requests):
        params = SamplingParams(
            temperature=(0.0, 0.7, 1.0, 1.3)[i % 4],
            top_k=(0, 4)[i % 2],
            top_p=(1.0, 0.9, 1.0)[i % 3],
            frequency_penalty=(0.0, 0.0, 0.6)[i % 3],
            repetition_penalty=(1.0, 1.2)[i % 2],
            min_tokens=i % 4,
            max_tokens=6 + 3 * (i % 5),
            stop=("cab", "ff") if i % 5 == 0 else (),
            stop_token_ids=(5,) if i % 4 == 1 else (),
            seed=100 + i,
            k=(0, 1, 3, 4, 7)[i % 5] if draft else 0,
            rule=rule or list(RULES)[i % 4],
            logprobs=i % 3,
        )
        work.append((rng.integers(VOCAB, size=1 + (5 * i) % 11).tolist(), params))
    return work


def said(output: Output) -> tuple[object, ...]:
    return output.tokens, output.kinds, output.text, output.finish, output.logprobs


def alone(work: Work, proposer: str, **info: int) -> list[tuple[object, ...]]:
    return [said(engine(PROPOSERS[proposer](), **info).generate([p], params)[0]) for p, params in work]


def batched(work: Work, made: Engine, order: Sequence[int] | None = None) -> list[tuple[object, ...]]:
    order = range(len(work)) if order is None else order
    names = {i: made.add(*work[i]) for i in order}
    outputs = finished(made)
    assert made.pool.free == made.pool.total
    return [said(outputs[names[i]]) for i in range(len(work))]


SETTINGS = {
    "all at once": {},
    "two at a time": {"max_running": 2},
    "preempted": {"pages": 13},
    "few rows": {"max_rows": 11},
    "few rows and pages": {"max_rows": 13, "pages": 14, "max_running": 5},
    "one-row chunks": {"min_rows": 1, "max_rows": 9},
    "page of one slot": {"page_size": 1, "pages": 60},
}


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("rule", [*RULES, "lenience:1.5", None], ids=str)
def test_scheduling_changes_no_token(rule: str | None, proposer: str) -> None:
    work = mixed(rule)
    expected = alone(work, proposer)
    for name, info in SETTINGS.items() if rule is None else [("preempted", SETTINGS["preempted"])]:
        made = engine(PROPOSERS[proposer](), **info)
        assert batched(work, made) == expected, name
        if isinstance(made.proposer, ModelProposer):
            made.proposer.audit()
            assert made.proposer.pool.free == made.proposer.pool.total
    order = np.random.default_rng(0).permutation(len(work)).tolist()
    assert batched(work, engine(PROPOSERS[proposer](), pages=16, max_rows=24), order) == expected


@pytest.mark.parametrize("pages", [12, 14, 20])
def test_a_small_draft_pool_changes_no_token(pages: int) -> None:
    work = mixed("block")
    small = drafting(random_table(VOCAB, 2), VOCAB, min_rows=2, pages=pages)
    assert batched(work, engine(small)) == alone(work, "model")
    small.audit()
    assert small.pool.free == pages


def test_few_draft_rows_change_no_token() -> None:
    work = mixed("token")
    assert batched(work, engine(drafting(random_table(VOCAB, 2), VOCAB, min_rows=2, max_rows=4))) == alone(
        work, "model"
    )


def test_preemption_happens_in_these_settings() -> None:
    made = engine(NgramProposer(VOCAB, 1, 3), pages=13)
    seen, preempt = [], made.scheduler._preempt
    made.scheduler._preempt = lambda: seen.append(preempt()) or seen[-1]  # type: ignore[func-returns-value, method-assign]
    batched(mixed("block"), made)
    assert sum(len(s.kinds) > 0 for s in seen) > 3  # that many had emitted tokens already


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("rule", ["sampled", "coupled"])
def test_the_seed_alone_decides(rule: str, proposer: str) -> None:
    """Without speculation, with it, and in a batch under pressure: the same text."""
    plain = [said(engine(None).generate([p], s)[0])[0] for p, s in mixed(rule, draft=False)]
    assert [s[0] for s in alone(mixed(rule), proposer)] == plain
    assert [s[0] for s in batched(mixed(rule), engine(PROPOSERS[proposer](), pages=13))] == plain


def test_greedy_is_plain_greedy() -> None:
    for rule in RULES:
        params = [SamplingParams(temperature=0, k=k, rule=rule, max_tokens=20) for k in (0, 1, 4, 9)]
        made = engine(PROPOSERS["model"]())
        assert len({o.tokens for o in made.generate([[1, 2, 3]] * 4, params)}) == 1


def test_unseeded_requests_differ() -> None:
    """Case 37. Two agree by chance with sum p**2 a token, 0.4 at most: below 1e-15 over 40 tokens."""
    made = engine(PROPOSERS["model"]())
    params = SamplingParams(max_tokens=40, temperature=1.0, k=3)
    assert len({o.tokens for o in made.generate([[1, 2]] * 3, params)}) == 3


@pytest.mark.parametrize("rule", RULES)
def test_a_seeded_request_does_not_depend_on_the_past(rule: str) -> None:
    """Case 37."""
    made = engine(PROPOSERS["model"]())
    params = SamplingParams(max_tokens=20, seed=5, k=3, rule=rule)
    first = made.generate([[1, 2]], params)
    made.generate([[3], [4, 4, 4]], SamplingParams(max_tokens=9))
    assert said(made.generate([[1, 2]], params)[0]) == said(first[0])


class ByStep(Job):
    """Noise keyed by how many steps the process has run."""

    steps = count()

    @property
    def noise(self) -> StepNoise:
        return StepNoise(self.sequence.request.seed, next(self.steps))


class ByRequest(Job):
    """Noise keyed by the request's number in this engine."""

    @property
    def noise(self) -> StepNoise:
        return StepNoise(self.sequence.request.id, len(self.sequence.tokens))


class ByBatch(ModelProposer):
    """Draws with the noise of the sequence's place in the batch."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        def moved(ask: Ask, place: int) -> Ask:
            noise = StepNoise(place, len(ask.view.tokens))
            return Ask(*(noise if f.name == "noise" else getattr(ask, f.name) for f in fields(Ask)))

        return super().propose([moved(ask, place) for place, ask in enumerate(asks)])


class LoadedLength:
    """A draft length that depends on the load."""

    def __init__(self) -> None:
        self.made: Engine | None = None

    adapts = False

    def choose(self, view: object, batch: int, most: int) -> int:
        assert self.made is not None
        return min(most, 1 if len(self.made.scheduler.running) > 1 else 4)

    def prices(self, view: object) -> None:
        pass

    def observe(self, view: object, run: object) -> None:
        pass

    def timed(self, step: object) -> None:
        pass

    def forget(self, request: int) -> None:
        pass


@pytest.mark.parametrize("job", [ByStep, ByRequest])
@pytest.mark.parametrize("rule", RULES)
def test_planted_noise_is_seen(rule: str, job: type[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.engine.Job", job)
    work = mixed(rule)
    assert batched(work, engine(PROPOSERS["model"]())) != alone(work, "model")


@pytest.mark.parametrize("rule", ["token", "block"])  # the others emit the target's samples whatever the draft is
def test_planted_batch_index_is_seen(rule: str) -> None:
    made = engine(ByBatch(drafting(random_table(VOCAB, 2), VOCAB, min_rows=2).model, VOCAB))
    work = mixed(rule)
    assert [s[0] for s in batched(work, made)] != [s[0] for s in alone(work, "model")]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_planted_length_by_load_is_seen(rule: str) -> None:
    made = engine(PROPOSERS["model"]())
    lengths = LoadedLength()
    lengths.made = made
    made._lengths = made.scheduler._lengths = lengths
    work = mixed(rule)
    assert batched(work, made) != alone(work, "model")
