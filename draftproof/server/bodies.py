"""Request bodies as they may be sent: fields, types, defaults. What is not among them is judged in `params.py`.

Null is the same as leaving a field out. Knows no engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, model_validator

from draftproof.server.errors import Refusal, invalid

B = TypeVar("B", bound="Part")

_MOST_STOPS, _MOST_STOP = 16, 256  # stop strings, and characters of one: each costs time in every step
_MOST_SALT = 1024  # characters
_MOST_LOGPROBS, _MOST_CHOICES, _MOST_PENALTY = 20, 128, 2.0
_LEAST_REPETITION, _MOST_REPETITION = 0.001, 1000.0  # logits stay finite


class Part(BaseModel):
    """An object in a body. `given` says whether a field was sent."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    def given(self, name: str) -> bool:
        return name in self.model_fields_set

    @property
    def extras(self) -> dict[str, Any]:
        return self.model_extra or {}


def _listed(value: Any) -> Any:
    """A string stands for a list of one."""
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Any:
    """A string or a list of token ids stands for a list of one prompt."""
    one = isinstance(value, str) or (isinstance(value, list) and value and not isinstance(value[0], (str, list)))
    prompts = [value] if one else value
    for prompt in prompts if isinstance(prompts, list) else ():
        if isinstance(prompt, list) and not all(type(token) is int for token in prompt):  # said once, not by token
            raise ValueError("token ids are whole numbers")
    return prompts


def _joined(value: Any) -> Any:
    """Texts of content parts, each on a line of its own."""
    if not isinstance(value, list):
        return value
    return "\n".join(ContentPart.model_validate(part).text for part in value)


class ContentPart(Part):
    type: Literal["text"]
    text: str


Ids = Annotated[list[int], FailFast()]
Stop = Annotated[str, Field(min_length=1, max_length=_MOST_STOP)]
Text = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[ContentPart])]


_Stops = Annotated[list[Stop], Field(max_length=_MOST_STOPS)]
_Prompts = Annotated[list[int], Field(min_length=1)] | Annotated[list[str | list[int]], Field(min_length=1)]
_OR_ONE = BeforeValidator(_listed, json_schema_input_type=Stop | _Stops)
_OR_ONE_PROMPT = BeforeValidator(_prompts, json_schema_input_type=str | _Prompts)


class Speculative(Part):
    """How to speculate for this request; what is left out is as the server does it."""

    num_speculative_tokens: int | Literal["auto"] = "auto"
    method: str = ""
    rule: str = ""


class StreamOptions(Part):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Prediction(Part):
    type: Literal["content"] = "content"
    content: Text = ""


class Sampling(Part):
    """What completions and chat completions share."""

    model: str = ""
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int = Field(0, ge=-(2**63), lt=2**64)
    stop: Annotated[list[Stop], FailFast(), Field(max_length=_MOST_STOPS), _OR_ONE] = []
    stop_token_ids: Annotated[list[int], FailFast(), Field(max_length=128)] = []
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    presence_penalty: float = Field(0.0, ge=-_MOST_PENALTY, le=_MOST_PENALTY)
    frequency_penalty: float = Field(0.0, ge=-_MOST_PENALTY, le=_MOST_PENALTY)
    repetition_penalty: float = Field(1.0, ge=_LEAST_REPETITION, le=_MOST_REPETITION)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] = {}
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    return_token_origins: bool = False
    user: str = ""
    cache_salt: str = Field("", max_length=_MOST_SALT)
    speculative: Speculative = Speculative()
    prediction: Prediction = Prediction()


class CompletionBody(Sampling):
    prompt: Annotated[list[str | list[int]], FailFast(), Field(min_length=1), _OR_ONE_PROMPT]
    max_tokens: int = Field(16, ge=0)
    logprobs: int = Field(0, ge=0, le=_MOST_LOGPROBS)
    echo: bool = False
    add_special_tokens: bool = True


class Message(Part):
    role: str
    content: Text = ""


Messages = Annotated[list[Message], FailFast(), Field(min_length=1)]


class ChatBody(Sampling):
    messages: Messages
    max_tokens: int = Field(0, ge=1)
    max_completion_tokens: int = Field(0, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=_MOST_LOGPROBS)


class TokenizeBody(Part):
    """Either a prompt or messages."""

    model: str = ""
    prompt: str = ""
    messages: Messages = []
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Part):
    model: str = ""
    tokens: Ids


def parsed(kind: type[B], data: bytes) -> B:
    """Raises: Refusal: it is not JSON, or a field is missing or has the wrong type; the field is named."""
    try:
        found = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refusal(400, "the body must be a JSON object")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise _named(error) from error


def _named(error: ValidationError) -> Refusal:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
    places = [e for e in errors if e["loc"][:1] == (name,)] or errors
    return invalid(name, "; or ".join(dict.fromkeys(e["msg"] for e in places[:4])))
