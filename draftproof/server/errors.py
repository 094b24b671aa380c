"""Refusals and failures in OpenAI's shape. Knows HTTP's numbers; knows no engine and no route."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from starlette.responses import JSONResponse

from draftproof.types import RequestError, SamplingParams

_MOST_TEXT = 600  # characters of a message: what a client sent may be quoted in it
_RENAMED = {"k": "speculative.num_speculative_tokens", "rule": "speculative.rule"}
_FIELDS = frozenset({"prompt", "prediction", *(f.name for f in fields(SamplingParams))})


class Refusal(Exception):
    """An answer other than 200. `param` is the field of the body that is at fault, or empty."""

    def __init__(
        self, status: int, message: str, param: str = "", code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})


def invalid(param: str, message: str) -> Refusal:
    """400: the request cannot be honoured as it stands."""
    return Refusal(400, f"{param}: {message}" if param else message, param)


def of_request(error: RequestError) -> Refusal:
    """What the engine refuses; its message begins with the field, in the engine's words."""
    text = str(error)
    first = re.match(r"(?:a |the )?(\w+)", text)
    name = first[1] if first and first[1] in _FIELDS else ""
    return Refusal(400, text, _RENAMED.get(name, name))


def failed(message: str) -> Refusal:
    """500: the model or the draft failed on this request."""
    return Refusal(500, message, code="model_failure")


def closing() -> Refusal:
    """503: the server takes no more requests."""
    return Refusal(503, "the server is shutting down: ask another one", code="shutting_down")


def body_of(refusal: Refusal) -> dict[str, Any]:
    text = refusal.message
    return {
        "error": {
            "message": text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " …",
            "type": _kind(refusal.status),
            "param": refusal.param or None,
            "code": refusal.code or None,
        }
    }


def response(refusal: Refusal) -> JSONResponse:
    return JSONResponse(body_of(refusal), refusal.status, dict(refusal.headers))


def _kind(status: int) -> str:
    named = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    return named.get(status, "server_error" if status >= 500 else "invalid_request_error")
