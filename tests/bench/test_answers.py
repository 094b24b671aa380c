"""Streams of several servers, event by event: tokens are counted as the server counts them, or it is said how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftproof.bench.answers import Answer, Counted, Gone, Lines, Reader, shared
from draftproof.bench.counters import Counters, between, counters
from draftproof.types import RequestError


def read(*events: dict[str, Any] | str) -> Answer:
    reader = Reader()
    for at, event in enumerate(events):
        reader.take(event if isinstance(event, str) else json.dumps(event), float(at))
    return reader.answer()


def chunk(text: str, ids: int | None = None, total: int | None = None, finish: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"text": text, "finish_reason": finish}
    choice |= {} if ids is None else {"token_ids": list(range(ids))}
    return {"choices": [choice], **({} if total is None else {"usage": {"completion_tokens": total}})}


def end(total: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": total}, **more}


def test_a_chunk_of_several_tokens_is_not_one() -> None:
    answer = read(chunk("a", 1), chunk("bcd", 3), chunk("", 2), chunk("e", 1, finish="length"), end(7))
    assert answer.chunks == ((0.0, 1), (1.0, 3), (2.0, 2), (3.0, 1))
    assert (answer.tokens, answer.counted, answer.finish) == (7, Counted.IDS, "length")


def test_usage_with_each_chunk_counts_it() -> None:
    answer = read(chunk("a", total=1), chunk("bcd", total=4), chunk("", total=5, finish="stop"), end(5))
    assert answer.chunks == ((0.0, 1), (1.0, 3), (2.0, 1))
    assert answer.counted == Counted.USAGE


def test_usage_at_the_end_is_shared_out() -> None:
    answer = read(chunk("a"), chunk("bcdefgh"), chunk("ij", finish="stop"), end(10))
    assert answer.chunks == ((0.0, 1), (1.0, 7), (2.0, 2))
    assert answer.counted == Counted.SHARED


def test_usage_in_the_last_chunk_is_not_that_chunk_alone() -> None:
    """llama-server's way: planted, all tokens would have come at the end."""
    answer = read(chunk("a"), chunk("b"), chunk("", total=2, finish="stop"))
    assert answer.chunks == ((0.0, 1), (1.0, 1))


def test_ids_that_do_not_add_up_to_the_usage_are_refused() -> None:
    """Planted: chunks of several tokens told as one."""
    with pytest.raises(RequestError, match="hold 3 tokens and its usage says 9"):
        read(chunk("a", 1), chunk("bcde", 1), chunk("fghi", 1, finish="length"), end(9))
    assert read(chunk("a", 1), chunk("b", 1, finish="stop"), end(3)).tokens == 2  # the end token, counted or not


def test_neither_ids_nor_usage_is_refused() -> None:
    with pytest.raises(RequestError, match="neither token ids nor usage"):
        read(chunk("a"), chunk("b", finish="stop"))
    assert read(chunk("a", 1), chunk("b", 1, finish="stop")).tokens == 2


def test_an_answer_without_an_end_is_none() -> None:
    with pytest.raises(Gone, match="in the middle"):
        read(chunk("a", 1), chunk("b", 1), end(2))


def test_an_empty_answer() -> None:
    answer = read(chunk("", 0, finish="stop"), end(1))
    assert answer.chunks == ()
    assert answer.tokens == 0


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"error": {"message": "out of\nmemory"}}, "broke an answer off: out of memory"),
        ("{", "no event"),
        ("[]", "no event"),
        ({"choices": [{"text": "a", "token_ids": 5}]}, "no event"),
        ({"object": "list"}, "no event"),
    ],
)
def test_what_is_not_understood_is_told(event: dict[str, Any] | str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(event)


def test_lines_end_with_line_feeds_alone() -> None:
    """Planted: str.splitlines would cut the event in two."""
    lines, data = Lines(), 'data: {"x": "a\u2028b\x85"}\r\n\r\n: ping\ndata: [DONE]\n'.encode()
    found = [event for i in range(len(data)) for event in lines.feed(data[i : i + 1])]
    assert found == ['{"x": "a\u2028b\x85"}']
    assert len(data.decode().splitlines()) > 4


@pytest.mark.parametrize("total", [3, 4, 10, 57])
def test_shares_add_up(total: int) -> None:
    shares = shared(total, [1, 5, 2, 9])
    assert sum(shares) == total
    assert min(shares) >= (1 if total >= 4 else 0)
    assert shared(17, [1, 5, 2, 9]) == [1, 5, 2, 9]


def told(**fields: Any) -> dict[str, Any]:
    base = {"num_draft_tokens": 9, "num_accepted_draft_tokens": 4, "num_spec_steps": 3, "num_spec_tokens": 3}
    return {"metrics": {"speculative_decoding": {**base, **fields}}}


def drafts(**more: Any):  # type: ignore[no-untyped-def]
    return read(chunk("abcdefg", 7, finish="length"), end(7, **more)).drafts


def test_positions_come_from_the_histogram() -> None:
    """Drafts of 3: none, one and all accepted."""
    found = drafts(**told(acceptance_histogram=[1, 1, 0, 1]))
    assert (found.told, found.proposed, found.accepted, found.longest) == (True, 9, 4, 3)
    assert found.accepted_at == (2, 1, 1)
    assert found.reached_at == (3, 2, 1)


def test_drafts_of_several_lengths_need_a_histogram_of_each() -> None:
    """Planted: read as drafts of 3, the draft of 1 would be rejected at a position that it never had."""
    found = drafts(**told(num_draft_tokens=7, acceptance_histogram=[1, 1, 0, 1]))
    assert (found.accepted, found.reached_at) == (4, ())
    by_length = {"1": [0, 1], "3": [1, 0, 0, 1]}
    found = drafts(**told(num_draft_tokens=7, acceptance_histogram_by_draft_length=by_length))
    assert found.accepted_at == (2, 1, 1)
    assert found.reached_at == (3, 1, 1)


def test_other_servers_words() -> None:
    found = drafts(timings={"draft_n": 8, "draft_n_accepted": 5})
    assert (found.told, found.proposed, found.accepted, found.reached_at) == (True, 8, 5, ())
    usage = {"completion_tokens": 7, "completion_tokens_details": {"accepted_prediction_tokens": 3}}
    usage["completion_tokens_details"]["rejected_prediction_tokens"] = 2  # type: ignore[index]
    found = drafts(usage=usage)
    assert (found.told, found.proposed, found.accepted) == (True, 5, 3)
    assert not drafts().told
    assert not drafts(metrics=None).told
    assert not drafts(metrics={"speculative_decoding": None}).told


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0"} 24.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 1.5e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 6.0
other:spec_decode_num_drafts_total 99.0
"""


def test_counters_are_summed_over_engines_and_told_once() -> None:
    assert counters(METRICS) == Counters(True, 12, 24, 15, {0: 9, 1: 6})
    assert not counters("vllm:num_requests_running 1\n").told


def test_what_was_counted_between() -> None:
    before = Counters(True, 2, 4, 1, {0: 1})
    found = between(before, counters(METRICS))
    assert (found.drafts, found.proposed, found.accepted) == (10, 20, 14)
    assert found.accepted_at == (8, 6)
    assert found.reached_at == (10, 8)
    ragged = between(Counters(True, 2, 5, 1, {0: 1}), counters(METRICS))
    assert ragged.accepted == 14
    assert ragged.reached_at == ()
    assert between(counters(METRICS), Counters(True)) == between(Counters(), Counters())  # began anew
