"""What is not honoured is refused in OpenAI's shape, with the field's name; and what only looks odd is taken."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from server.serving import Running, drafted, serving, toy

from draftproof.server import extras, guard, params
from draftproof.types import SamplingParams

CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(drafted(), max_body=20_000) as made:
        yield made
        made.idle()


BAD: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {}),
    ("prompt", {"prompt": 3}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": [1, "a"]}),
    ("prompt", {"prompt": [1, True]}),
    ("prompt", {"prompt": [999]}),
    ("prompt", {"prompt": [999], "echo": True}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": "Q"}),
    ("prompt", {"prompt": "a" * 200}),
    ("prompt", {"prompt": [1] * 64}),
    ("temperature", {"prompt": "a", "temperature": -1}),
    ("temperature", {"prompt": "a", "temperature": "hot"}),
    ("top_p", {"prompt": "a", "top_p": 0}),
    ("top_p", {"prompt": "a", "top_p": 1.5}),
    ("top_k", {"prompt": "a", "top_k": -2}),
    ("min_p", {"prompt": "a", "min_p": 2}),
    ("seed", {"prompt": "a", "seed": 2**64}),
    ("seed", {"prompt": "a", "seed": 1.5}),
    ("stop", {"prompt": "a", "stop": ""}),
    ("stop", {"prompt": "a", "stop": ["a"] * 17}),
    ("stop", {"prompt": "a", "stop": "a" * 257}),
    ("stop_token_ids", {"prompt": "a", "stop_token_ids": [99]}),
    ("max_tokens", {"prompt": "a", "max_tokens": 0}),
    ("max_tokens", {**CHAT, "max_tokens": 3, "max_completion_tokens": 4}),
    ("min_tokens", {"prompt": "a", "min_tokens": 17}),
    ("presence_penalty", {"prompt": "a", "presence_penalty": 3}),
    ("frequency_penalty", {"prompt": "a", "frequency_penalty": -3}),
    ("repetition_penalty", {"prompt": "a", "repetition_penalty": 0}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"a": 1}}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"1": 101}}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"50": 1}}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"1": 1, "01": 1}}),
    ("logprobs", {"prompt": "a", "logprobs": 21}),
    ("logprobs", {"prompt": "a", "logprobs": True}),
    ("top_logprobs", {**CHAT, "top_logprobs": 2}),
    ("n", {"prompt": "a", "n": 0}),
    ("n", {"prompt": ["a"] * 100, "n": 100}),
    ("best_of", {"prompt": "a", "best_of": 2}),
    ("suffix", {"prompt": "a", "suffix": "b"}),
    ("stream_options", {"prompt": "a", "stream_options": {"include_usage": True}}),
    ("stream_options.chunks", {"prompt": "a", "stream": True, "stream_options": {"chunks": 1}}),
    ("prediction", {"prompt": "a", "prediction": {"type": "content", "content": "a"}}),
    ("speculative", {"prompt": "a", "speculative": {"num_speculative_tokens": 1.5}}),
    ("speculative.num_speculative_tokens", {"prompt": "a", "speculative": {"num_speculative_tokens": 65}}),
    ("speculative.num_speculative_tokens", {"prompt": "a", "speculative": {"num_speculative_tokens": "auto"}}),
    ("speculative.method", {"prompt": "a", "speculative": {"method": "suffix"}}),
    ("speculative.rule", {"prompt": "a", "speculative": {"rule": "best"}}),
    ("speculative.tokens", {"prompt": "a", "speculative": {"tokens": 3}}),
    ("messages", {"messages": []}),
    ("messages", {"messages": [{"content": "a"}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("messages.tool_calls", {"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]}),
    ("tools", {**CHAT, "tools": [{"type": "function"}]}),
    ("response_format", {**CHAT, "response_format": {"type": "json_object"}}),
    ("include_stop_str_in_output", {"prompt": "a", "include_stop_str_in_output": True}),
    ("guided_json", {"prompt": "a", "guided_json": {}}),
    ("skip_special_tokens", {"prompt": "a", "skip_special_tokens": False}),
]


def _send(running: Running, body: dict[str, Any]) -> Any:
    return running.send("POST", "/v1/chat/completions" if "messages" in body else "/v1/completions", body)


@pytest.mark.parametrize(("name", "body"), BAD, ids=lambda v: v if isinstance(v, str) else json.dumps(v)[:60])
def test_a_bad_field_is_named(running: Running, name: str, body: dict[str, Any]) -> None:
    got = _send(running, body)
    assert got.status == 400, got.body
    assert (got.error["type"], got.error["param"]) == ("invalid_request_error", name)


RAW = [b"", b"{", b"[]", b"3", b'{"prompt": NaN}', b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 5000, b"null"]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:20]))
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_what_is_no_object_is_refused(running: Running, raw: bytes, path: str) -> None:
    got = running.send("POST", path, raw=raw)
    assert (got.status, got.error["type"]) == (400, "invalid_request_error")


def test_many_wrong_entries_are_said_once(running: Running) -> None:
    got = _send(running, {"prompt": ["a", *([[1.5]] * 2000)]})
    assert got.status == 400
    assert len(got.body) < 2000


def test_a_large_body_is_refused(running: Running) -> None:
    for raw in (b'{"prompt": "%s"}' % (b"a" * 30_000), b"x" * 400_000):
        got = running.send("POST", "/v1/completions", raw=raw)
        assert (got.status, got.error["code"]) == (413, "body_too_large")


def test_unknown_places_and_methods(running: Running) -> None:
    assert running.send("GET", "/v1/nowhere").error["type"] == "not_found_error"
    got = running.send("GET", "/v1/completions")
    assert (got.status, got.error["type"]) == (405, "invalid_request_error")
    assert running.send("POST", "/tokenize", {"prompt": "a", "what": 1}).error["param"] == "what"
    assert running.send("POST", "/tokenize", {}).error["param"] == "prompt"
    assert running.send("POST", "/detokenize", {"tokens": [99]}).error["param"] == "tokens"


def test_null_is_left_out_and_neutral_values_are_taken(running: Running) -> None:
    odd = {"suffix": None, "best_of": 1, "stop": None, "logit_bias": None, "speculative": None, "top_k": -1}
    got = _send(running, {"prompt": "ab", "seed": 3, "max_tokens": 9, **odd, "use_beam_search": False})
    want = drafted().generate("ab", SamplingParams(seed=3, max_tokens=9))[0]
    assert got.json["choices"][0]["text"] == want.text
    messages = [{"role": "assistant", "content": "a", "refusal": None, "tool_calls": None}]
    assert _send(running, {"messages": messages, "tools": None, "max_tokens": 2}).status == 200


def test_a_harmless_field_is_logged_once(
    running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_logged", set())
    with caplog.at_level(logging.WARNING, "draftproof.server"):
        for _ in range(3):
            assert _send(running, {"prompt": "a", "max_tokens": 1, "metadata": {"a": "b"}, "user": "me"}).status == 200
    assert [r.getMessage() for r in caplog.records if "metadata" in r.getMessage()] == [
        "field metadata is taken and has no effect here (said once)"
    ]


def test_planted_ignored_field_is_seen(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params, "check_fields", lambda body: None)
    with pytest.raises(AssertionError):
        test_a_bad_field_is_named(running, "guided_json", {"prompt": "a", "guided_json": {}})


def check_key(running: Running) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "sesame"}, {"Authorization": "Basic sesame"}):
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
            got = running.send(method, path, body, **wrong)
            assert got.status == 401
            assert got.error["code"] == "invalid_api_key"
    assert running.send("POST", "/v1/completions", body, Authorization="Bearer sesame").status == 200
    assert running.send("GET", "/health").status == 200


def test_the_key_is_asked_for() -> None:
    with serving(toy(), api_key="sesame") as running:
        check_key(running)


def test_planted_open_door_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.KeyGuard, "_fits", lambda self, scope: b"authorization" in dict(scope["headers"]))
    with serving(toy(), api_key="sesame") as running, pytest.raises(AssertionError):
        check_key(running)
