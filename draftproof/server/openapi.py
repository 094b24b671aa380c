"""The server's own description, OpenAPI 3.1: every route, and bodies as `bodies.py` takes them.

Knows which routes there are; what they do is `app.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema

from draftproof import __version__
from draftproof.server.bodies import ChatBody, CompletionBody, DetokenizeBody, Part, TokenizeBody

Json = dict[str, Any]
_BODIES: tuple[type[Part], ...] = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
_SCHEMAS = "#/components/schemas/"
_JSON, _EVENTS, _TEXT, _HTML = "application/json", "text/event-stream", "text/plain", "text/html"


class Place(NamedTuple):
    """A route. `body` is `Part` where nothing is sent; `fields` are those that a JSON answer has at least; `kinds` its
    media types."""

    path: str
    about: str
    body: type[Part] = Part
    fields: tuple[str, ...] = ()
    kinds: tuple[str, ...] = (_JSON,)
    method: str = "get"


_ANSWER = ("id", "object", "created", "model", "choices", "usage")
PLACES = (
    Place("/v1/completions", "Continue texts", CompletionBody, _ANSWER, (_JSON, _EVENTS), "post"),
    Place("/v1/chat/completions", "Answer a conversation", ChatBody, _ANSWER, (_JSON, _EVENTS), "post"),
    Place("/v1/models", "What may be asked for", fields=("object", "data")),
    Place("/v1/models/{name}", "One of them", fields=("id", "object", "root", "max_model_len")),
    Place(
        "/tokenize",
        "Tokens of a prompt or of messages",
        TokenizeBody,
        ("count", "max_model_len", "tokens"),
        method="post",
    ),
    Place("/detokenize", "The text of tokens", DetokenizeBody, ("prompt",), method="post"),
    Place("/tokenizer_info", "Class, special tokens and template of the tokenizer", fields=("tokenizer_class",)),
    Place("/reset_prefix_cache", "Forget prefixes that nobody uses", method="post"),
    Place("/health", "200 while requests are taken, else 503", fields=("status",)),
    Place("/metrics", "Figures for Prometheus", kinds=(_TEXT,)),
    Place("/version", "The server's version", fields=("version",)),
    Place("/", "The playground, a page for people", kinds=(_HTML,)),
    Place("/openapi.json", "This description", fields=("openapi", "info", "paths")),
)


def description() -> Json:
    schemas = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_SCHEMAS + "{model}")[1]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Draftproof",
            "version": __version__,
            "description": "OpenAI's interface. Null is the same as leaving a field out. Unknown fields are refused, "
            "but for those of other servers that change no answer.",
        },
        "paths": {place.path: {place.method: _operation(place)} for place in PLACES},
        "components": {
            "schemas": {**{name: _as_sent(found) for name, found in schemas["$defs"].items()}, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(place: Place) -> Json:
    made: Json = {"summary": place.about, "responses": {"200": _answer(place), "4XX": _FAILURE, "5XX": _FAILURE}}
    if place.body is not Part:
        schema = {"$ref": _SCHEMAS + place.body.__name__}
        made["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if "{name}" in place.path:
        made["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return made


def _answer(place: Place) -> Json:
    schema = {"type": "object", "required": list(place.fields)}
    return {"description": place.about, "content": {k: {"schema": schema} if k == _JSON else {} for k in place.kinds}}


def _as_sent(schema: Json) -> Json:
    """Without what only the inside knows: titles, and defaults that stand for a field that was left out."""
    fields: Mapping[str, Json] = schema.get("properties", {})
    properties = {name: {k: v for k, v in found.items() if _told(k, v)} for name, found in fields.items()}
    return {**schema, "properties": properties, "additionalProperties": False}


def _told(key: str, value: object) -> bool:
    return key != "title" and (key != "default" or (bool(value) and type(value) in (int, float, bool)))


_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_FAILURE: Json = {
    "description": "What is wrong, and with which field",
    "content": {_JSON: {"schema": {"$ref": _SCHEMAS + "Error"}}},
}
