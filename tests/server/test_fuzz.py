"""A fuzzer that is driven by the server's own description: whatever is sent, it answers as described, never with a 5xx.

Two kinds of requests: as the description allows, and with faults that it forbids. What it allows is mostly refused (a
model that is not here, tokens that there are none of), so a narrower description is used as well: requests that come
through to the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from server.serving import PATIENCE, VOCAB, Running, drafted, serving

from draftproof.server import answers, params
from draftproof.server.openapi import PLACES, description
from draftproof.types import SamplingParams

VALID, FAULTY = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CHECKS = [content_type_conformance, response_schema_conformance]
FEW, MANY = 12, 300

_ID = {"type": "integer", "minimum": 0, "maximum": VOCAB - 1}
_IDS = {"type": "array", "items": _ID, "minItems": 1, "maxItems": 8}
_TEXT = {"type": "string", "pattern": "^[abcX ]{1,8}$"}
NARROW: dict[str, Any] = {
    "model": {"const": "toy"},
    "prompt": {
        "anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1, "maxItems": 3}]
    },
    "messages": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": _TEXT},
            "required": ["role"],
            "additionalProperties": False,
        },
    },
    "tokens": _IDS,
    "temperature": {"type": "number", "minimum": 0, "maximum": 4},
    "stop_token_ids": {"type": "array", "items": _ID, "maxItems": 4},
    "logit_bias": {
        "type": "object",
        "patternProperties": {"^[0-9]$": {"type": "number", "minimum": -100, "maximum": 100}},
        "additionalProperties": False,
    },
    "max_tokens": {"type": "integer", "minimum": 8, "maximum": 24},
    "min_tokens": {"type": "integer", "minimum": 0, "maximum": 8},
    "n": {"type": "integer", "minimum": 1, "maximum": 3},
    "speculative": {
        "type": "object",
        "properties": {
            "num_speculative_tokens": {"type": "integer", "minimum": 0, "maximum": 6},
            "rule": {"enum": ["block", "token", "sampled", "coupled"]},
        },
        "additionalProperties": False,
    },
}
LEFT_OUT = ("prediction", "stream_options", "max_completion_tokens", "top_logprobs")  # go with others alone


def whole(value: Any) -> Any:
    """To a schema 3.0 is an integer, to this server it is none."""
    if isinstance(value, dict):
        return {name: whole(found) for name, found in value.items()}
    if isinstance(value, list):
        return [whole(found) for found in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def narrowed() -> dict[str, Any]:
    """Every field is there, with values that this server can honour."""
    made = description()
    kinds = made["components"]["schemas"]
    kinds["TokenizeBody"]["properties"].pop("messages")  # it takes either these or a prompt, which is one text
    for schema in kinds.values():
        properties = schema["properties"]
        schema["properties"] = {n: NARROW.get(n, p) for n, p in properties.items() if n not in LEFT_OUT}
        schema["required"] = list(schema["properties"])
    kinds["TokenizeBody"]["properties"]["prompt"] = _TEXT
    return made


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(drafted(max_running=8), max_queue=512) as made:
        yield made
        made.idle()


def fuzz(running: Running, place: str, mode: GenerationMode, examples: int, narrow: bool = False) -> list[int]:
    """The statuses that came.

    Raises: AssertionError, or an error of requests or schemathesis: some request got a 5xx, no answer in time, or one
    that is not as described.
    """
    described = narrowed() if narrow else description()
    (method,) = described["paths"][place]
    cases = schemathesis.openapi.from_dict(described)[place][method].as_strategy(generation_mode=mode)
    statuses: list[int] = []

    @settings(max_examples=examples, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), database=None)
    @given(case=cases)
    def ask(case: Any) -> None:
        if narrow:
            case.body = whole(case.body)
        got = case.call(base_url=running.url, timeout=PATIENCE)
        assert got.status_code < 500, got.text
        case.validate_response(got, checks=CHECKS)
        statuses.append(got.status_code)

    ask()
    return statuses


def check_every_place(running: Running, examples: int) -> None:
    for place in PLACES:
        fuzz(running, place.path, VALID, examples if place.body.model_fields or "{" in place.path else 1)
        if place.body.model_fields:
            fuzz(running, place.path, FAULTY, examples)
            came = fuzz(running, place.path, VALID, examples, narrow=True)
            assert came.count(200) >= examples // 2, came
    running.idle()


def test_whatever_is_sent_is_answered_as_described(running: Running) -> None:
    check_every_place(running, FEW)


@pytest.mark.slow
def test_whatever_is_sent_is_answered_as_described_many(running: Running) -> None:
    check_every_place(running, MANY)


def test_every_route_is_described(running: Running) -> None:
    app: Any = running.server.config.app
    assert {route.path.replace(":path", "") for route in app.routes} == set(description()["paths"])


_PARAMS = params._params


def _raising(body: Any, *args: Any) -> SamplingParams:
    """Two harmless fields together are too much for it."""
    return _PARAMS(body, *args) if not (body.ignore_eos and body.return_token_ids) else 1 // 0


def test_planted_handler_that_raises_is_caught(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params, "_params", _raising)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        fuzz(running, "/v1/completions", VALID, FEW, narrow=True)


def test_planted_undescribed_answer_is_caught(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.Answer, "_frame", lambda self, kind, choices: {"id": "a", "choices": choices})
    with pytest.raises(FailureGroup, match="required property"):
        fuzz(running, "/v1/completions", VALID, FEW, narrow=True)
