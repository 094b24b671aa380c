"""Streams that are left: before they began, in the middle, by losing the last reference; nothing stays behind (I11)."""

from __future__ import annotations

from toys import random_table, toy_engine

from draftproof.engine import Engine
from draftproof.types import Kind, SamplingParams

PARAMS = SamplingParams(k=0, seed=1, max_tokens=6)


def engine() -> Engine:
    return toy_engine(random_table(4, 1), 4, context=40)


def clean(made: Engine) -> bool:
    made.audit()
    return not made.busy and made.pool.held == 0


def test_stream_that_never_began_leaves_nothing() -> None:
    made = engine()
    made.stream([1, 2], PARAMS).close()
    assert clean(made)


def test_stream_that_is_lost_leaves_nothing() -> None:
    made = engine()
    stream = made.stream([1, 2], PARAMS)
    next(stream)
    del stream
    assert clean(made)


def test_stream_ends_once_and_closes_twice() -> None:
    made = engine()
    stream = made.stream([1, 2], PARAMS)
    assert [e.output is not None for e in stream][-1]
    assert list(stream) == []
    stream.close()
    assert clean(made)


def test_events_of_added_requests_wait_while_others_step() -> None:
    made = engine()
    name = made.add([1], PARAMS)
    alone = engine().generate([[1]], PARAMS)[0]
    made.generate([[2, 3]], SamplingParams(k=0, seed=2, max_tokens=9))
    events = [e for e in made.step() if e.request == name]
    assert [t for e in events for t in e.tokens] == list(alone.tokens)
    assert events[-1].output is not None


def test_time_of_reading_a_prompt_is_in_the_trace() -> None:
    made = toy_engine(random_table(4, 1), 4, context=60, max_rows=8)
    output = made.generate([[1] * 30], PARAMS)[0]
    reading = [s for s in output.steps if s.kind is Kind.PROMPT]
    assert len(reading) >= 3
    assert not any(s.emitted for s in reading)
