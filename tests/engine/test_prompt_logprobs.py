"""Log-probabilities of a prompt's own tokens: the model's teacher-forced ones, computed only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import drafting, finished, random_table, toy_engine

from draftproof import scheduler as scheduling
from draftproof.engine import Engine
from draftproof.scheduler import Item
from draftproof.types import Chunk, Finish, Output, RequestError, SamplingParams, TokenLogprob

VOCAB = 6
TABLE = random_table(VOCAB, 1)
PROMPTS = [np.random.default_rng(n).integers(VOCAB, size=n).tolist() for n in (1, 2, 3, 9, 17, 33)]
SCORE = SamplingParams(prompt_logprobs=2, max_tokens=12, temperature=0.0, k=2, ignore_eos=True)


def engine(**info: int) -> Engine:
    return toy_engine(TABLE, VOCAB, drafting(random_table(VOCAB, 2), VOCAB), **{"min_rows": 2, "context": 48, **info})


def oracle(prompt: Sequence[int]) -> list[np.ndarray]:
    """Teacher-forced: the law behind each token of the prompt but the last, in float64."""
    return [np.log(TABLE(tuple(prompt[:i]))) for i in range(1, len(prompt))]


def check(prompt: Sequence[int], told: Sequence[TokenLogprob] | None, top: int = 2) -> None:
    assert told is not None
    assert [entry.token for entry in told] == list(prompt[1:])
    for entry, law in zip(told, oracle(prompt), strict=True):
        assert entry.logprob == pytest.approx(law[entry.token], abs=1e-6)
        best = np.argsort(-law)[:top]
        assert [t for t, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(law[best], abs=1e-6)


SETTINGS = {
    "at once": {},
    "few rows": {"max_rows": 9},
    "preempted": {"pages": 10, "max_rows": 9},
    "few rows and pages": {"max_rows": 11, "pages": 14, "max_running": 3},
    "one-row chunks": {"min_rows": 1, "max_rows": 6},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_the_teacher_forced_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (128, 5):  # the second leaves some out of a step
        monkeypatch.setattr(scheduling, "_MOST_SCORED", room)
        for prompt, output in zip(PROMPTS, engine(**SETTINGS[name]).generate(PROMPTS, SCORE), strict=True):
            check(prompt, output.prompt_logprobs)
            assert output.finish is Finish.LENGTH


def test_they_change_no_token() -> None:
    params = [replace(SCORE, temperature=1.0, seed=n, max_tokens=9) for n in range(len(PROMPTS))]
    plain = engine().generate(PROMPTS, [replace(p, prompt_logprobs=None) for p in params])
    assert [o.tokens for o in engine().generate(PROMPTS, params)] == [o.tokens for o in plain]
    assert all(o.prompt_logprobs is None for o in plain)


@pytest.mark.parametrize("fault", ["row of the token itself", "row before", "read again after a preemption"])
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(**SETTINGS["preempted"])
    if fault == "read again after a preemption":  # rows are scored from the chunk's start, known or not
        monkeypatch.setattr(Item, "scored", property(_all_rows))
    else:
        _shift(made, 1 if fault == "row of the token itself" else -1)
    with pytest.raises(AssertionError):
        _check_all(made)


def _check_all(made: Engine) -> None:
    for prompt, output in zip(PROMPTS, made.generate(PROMPTS, SCORE), strict=True):
        check(prompt, output.prompt_logprobs)


def _all_rows(item: Item) -> int:
    return min(item.end, len(item.sequence.request.prompt) - 1) - item.start if item.sequence.unscored else 0


def _shift(made: Engine, by: int) -> None:
    """Logits are those of the row beside."""
    honest = made.target.forward

    def forward(chunks: Sequence[Chunk]) -> Any:
        out = honest(chunks)
        return replace(out, logits=np.roll(out.logits, -by, axis=0))

    made.target.forward = forward  # type: ignore[method-assign]


def watched(made: Engine) -> list[int]:
    """Rows of logits of each pass from now on."""
    honest, read = made.target.forward, list[int]()

    def forward(chunks: Sequence[Chunk]) -> Any:
        read.append(sum(c.wanted for c in chunks))
        return honest(chunks)

    made.target.forward = forward  # type: ignore[method-assign]
    return read


def test_rows_are_read_only_where_asked_for_and_a_few_at_a_time() -> None:
    prompts = [[(i * n) % VOCAB for i in range(300)] for n in (1, 2, 3)]
    made = toy_engine(lambda prefix: np.full(VOCAB, 1 / VOCAB), VOCAB, context=400, pages=400)
    read = watched(made)
    made.generate(prompts, SamplingParams(max_tokens=1))
    assert sum(read) == 3
    read.clear()
    outputs = made.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert [len(o.prompt_logprobs or ()) for o in outputs] == [299] * 3
    assert sum(read) == 3 * 300
    assert max(read) <= 128 + 3
    assert len(read) == 8  # 897 rows, 128 a step


def test_those_who_wait_for_rows_of_logits_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_MOST_SCORED", 4)
    made = engine(pages=200)
    for _ in range(4):
        made.add(PROMPTS[-1], SCORE)
    name = made.add([1], SamplingParams(max_tokens=6, temperature=0.0, k=0))
    for _ in range(5):
        assert name in {event.request for event in made.step()}
    order = [e.request for e in _ends(made)]
    assert sorted(order) == [0, 1, 2, 3, 4]  # and all come to their end


def _ends(made: Engine) -> list[Output]:
    return list(finished(made).values())


def test_a_prompt_alone_is_scored() -> None:
    params = replace(SCORE, max_tokens=0, stop=("a",), k=None)
    for prompt, output in zip(PROMPTS, engine().generate(PROMPTS, params), strict=True):
        check(prompt, output.prompt_logprobs)
        assert (output.tokens, output.text, output.finish, output.ending) == ((), "", Finish.LENGTH, ())
    with pytest.raises(RequestError, match="max_tokens=0"):
        SamplingParams(max_tokens=0)


def test_the_first_event_carries_them() -> None:
    events = list(engine().stream(PROMPTS[4], replace(SCORE, stop=("zz",))))
    check(PROMPTS[4], events[0].prompt_logprobs)
    assert not any(event.prompt_logprobs for event in events[1:])
    assert events[-1].output is not None
    assert events[-1].output.prompt_logprobs == events[0].prompt_logprobs


@pytest.mark.parametrize("k", [0, 3])
def test_the_stop_token_that_ended_the_output_is_told_of(k: int) -> None:
    """Not one that a limit cut off before it could end anything."""
    prompt = PROMPTS[3]
    free = engine().generate([prompt], replace(SCORE, max_tokens=6, k=k))[0]
    for n, stop in enumerate(free.tokens):
        if stop in free.tokens[:n]:
            continue
        ended = engine().generate([prompt], replace(SCORE, max_tokens=6, k=k, stop_token_ids=(stop,)))[0]
        assert (ended.tokens, ended.finish) == (free.tokens[:n], Finish.STOP)
        (told,) = ended.ending
        law = TABLE((*prompt, *ended.tokens))
        assert (told.token, told.logprob) == (stop, pytest.approx(np.log(law[stop]), abs=1e-6))
        if n:
            cut = engine().generate([prompt], replace(SCORE, max_tokens=n, k=k, stop_token_ids=(stop,)))[0]
            assert (cut.tokens, cut.finish, cut.ending) == (free.tokens[:n], Finish.LENGTH, ())


def test_logits_that_are_not_numbers_end_their_request_alone() -> None:
    def table(prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(VOCAB, np.nan) if prefix == (1, 2, 3) else TABLE(prefix)

    made = toy_engine(table, VOCAB, min_rows=2, max_rows=8)
    params = SamplingParams(prompt_logprobs=1, max_tokens=3)
    bad, plain, good = made.generate(
        [[1, 2, 3, 4] * 3, [1, 2, 3, 4] * 3, [3, 2, 1]], [params, replace(params, prompt_logprobs=None), params]
    )
    assert bad.finish is Finish.ERROR
    assert "the prompt cannot be scored" in str(bad.error)
    assert (plain.finish, good.finish) == (Finish.LENGTH, Finish.LENGTH)
    check([3, 2, 1], good.prompt_logprobs, top=1)
    made.audit()
    assert made.pool.held == 0
