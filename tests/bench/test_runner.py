"""The engine's runner on toys, with a clock that ticks when it is read: what is counted, and what is counted once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from toys import drafting, random_table, scripted, toy_engine

from draftproof import watch
from draftproof.bench.measure import Asked
from draftproof.bench.plan import Config
from draftproof.bench.results import RunRecord
from draftproof.bench.runner import EngineRunner
from draftproof.engine import Engine
from draftproof.stats import summary
from draftproof.types import RequestError, SamplingParams

VOCAB = 5
TABLE = random_table(VOCAB, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """One second a look, the engine's own looks included."""
    ticks = count()

    def look() -> float:
        return float(next(ticks))

    monkeypatch.setattr(watch, "perf_counter", look)
    return look


def engine(eos: tuple[int, ...] = ()) -> Engine:
    return toy_engine(TABLE, VOCAB, drafting(random_table(VOCAB, 2), VOCAB), eos)


def asked(batch: int, k: int, tokens: int = 12, seed: int = 0) -> list[Asked]:
    params = [SamplingParams(max_tokens=tokens, seed=seed + i, k=k) for i in range(batch)]
    return [Asked(f"p{i}", "", (1, 2, i % VOCAB), p) for i, p in enumerate(params)]


def run(clock: Callable[[], float], batch: int, k: int, **more: int) -> RunRecord:
    return EngineRunner(engine(), clock).run(7, Config(f"k={k}", k, "block", True), asked(batch, k, **more))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("k", [0, 3])
def test_tokens_chunks_and_counts_are_the_engines(clock: Callable[[], float], batch: int, k: int) -> None:
    record = run(clock, batch, k)
    outputs = engine().generate([list(a.tokens) for a in asked(batch, k)], [a.params for a in asked(batch, k)])
    assert (record.group, record.config) == (7, f"k={k}")
    for request, output in zip(record.requests, outputs, strict=True):
        told = summary(output.steps)
        assert sum(n for _, n in request.chunks) == request.tokens == len(output.tokens) == 12
        assert request.finish == "length"
        assert (request.steps, request.proposed, request.accepted) == (told.steps, told.proposed, told.accepted)
        assert sum(request.accepted_at) == told.accepted
        if told.alpha is not None:
            assert sum(request.accepted_at) / sum(request.reached_at) == pytest.approx(told.alpha)
        assert 0 < request.ttft == request.chunks[0][0] <= request.end == request.chunks[-1][0] <= record.wall
        assert [t for t, _ in request.chunks] == sorted(t for t, _ in request.chunks)
    told = summary([s for o in outputs for s in o.steps])
    assert record.tokens_per_step == pytest.approx(told.tokens_per_step)


@pytest.mark.parametrize("batch", [1, 4])
def test_seconds_of_a_step_are_counted_once(clock: Callable[[], float], batch: int) -> None:
    """Each look takes a second. Between the loop's two looks lie those of the parts, and up to four more in a step."""
    record = run(clock, batch, 3)
    spent = sum(record.seconds.values())
    assert record.loop - 6 * record.steps <= spent <= record.loop
    assert spent > record.loop / 2
    assert record.loop < record.wall


def test_passes_are_counted_by_their_rows(clock: Callable[[], float]) -> None:
    record = run(clock, 1, 3)
    assert sum(n for _, _, n in record.rows) == record.steps
    rows = {r: n for r, _, n in record.rows}
    assert rows[4] > 0  # one token and three drafts
    assert max(rows) == 6  # the prompt of three with three drafts
    assert all(seconds == n for _, seconds, n in record.rows)  # a second from look to look


def test_decode_steps_leave_the_reading_of_the_prompt_out(clock: Callable[[], float]) -> None:
    record = run(clock, 1, 0)
    assert record.steps == 12
    assert (record.decode.steps, record.decode.sequence_steps, record.decode.tokens) == (11, 11, 11)
    assert 0 < sum(record.decode.seconds.values()) < sum(record.seconds.values())
    batch = run(clock, 3, 0)
    assert (batch.decode.steps, batch.decode.sequence_steps, batch.decode.tokens) == (11, 33, 33)


def test_steps_that_also_read_another_prompt_are_no_decode_steps(clock: Callable[[], float]) -> None:
    """Two run at a time: the third one's prompt is read beside nothing, or beside one that decodes."""
    toy = toy_engine(TABLE, VOCAB, drafting(random_table(VOCAB, 2), VOCAB), max_running=2)
    many = [Asked(a.prompt, "", a.tokens, a.params) for a in asked(2, 0, tokens=6)] + asked(1, 0, tokens=9)
    record = EngineRunner(toy, clock).run(0, Config("plain", 0, "block", True), [many[2], many[0], many[1]])
    assert record.steps == 12
    assert record.decode.steps == 12 - 2  # the first of all, and the first of the third request
    assert record.decode.tokens == 21 - 3 - 1  # beside which the other one emitted a token too


def test_a_step_that_only_brings_the_stop_token_is_no_decode_step(clock: Callable[[], float]) -> None:
    """Its seconds buy no token, for plain and speculative decoding alike. They stay in the sum of all steps."""
    toy = toy_engine(scripted([0, 1, 3, 2], VOCAB, 3), VOCAB, eos=(2,))
    record = EngineRunner(toy, clock).run(0, Config("plain", 0, "block", True), asked(1, 0))
    assert (record.requests[0].tokens, record.requests[0].finish) == (3, "stop")
    assert (record.steps, record.decode.steps, record.decode.tokens) == (4, 2, 2)
    assert sum(record.decode.seconds.values()) < 0.6 * sum(record.seconds.values())


def test_an_answer_without_a_token(clock: Callable[[], float]) -> None:
    toy = toy_engine(lambda _: [0, 0, 1, 0, 0], VOCAB, eos=(2,))  # type: ignore[arg-type, return-value]
    record = EngineRunner(toy, clock).run(0, Config("plain", 0, "block", True), asked(1, 0))
    request = record.requests[0]
    assert (request.tokens, request.chunks, request.finish) == (0, (), "stop")
    assert request.ttft == request.end > 0
    assert record.tokens_per_step == 0.0


def test_a_run_leaves_nothing_behind(clock: Callable[[], float]) -> None:
    """The same run twice gives the same record, and a request that cannot be honoured stops those before it."""
    toy = engine()
    runner, config = EngineRunner(toy, clock), Config("k=3", 3, "block", True)
    first, second = (runner.run(0, config, asked(2, 3)) for _ in range(2))
    assert [r.accepted_at for r in first.requests] == [r.accepted_at for r in second.requests]
    assert first.rows == second.rows
    bad = Asked("bad", "", (VOCAB,), SamplingParams(k=3))
    with pytest.raises(RequestError, match="token 5"):
        runner.run(0, config, [*asked(1, 3), bad])
    assert not toy.busy
    toy.audit()
