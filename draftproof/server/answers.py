"""OpenAI's shapes for what the engine gave: completions, chat completions, chunks, logprobs, usage.

A whole answer is made from the same parts as a stream's chunks, so that both say the same. Knows no thread, no HTTP.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from draftproof.engine import Event
from draftproof.server.params import Plan
from draftproof.server.statistics import speculation
from draftproof.text import TokenBytes
from draftproof.types import Kind, Output, TokenLogprob

Json = dict[str, Any]
_LEAST_LOGPROB = -9999.0  # as vLLM writes an impossible token
PLAIN = "plain"  # origin of a token that no draft was made for


class Part(NamedTuple):
    """A stretch of one choice. `start`: characters before it, an echo included; `finish` is empty until the last.

    `echo` are the pieces of the prompt that its text begins with; `logprobs` those of the prompt's tokens and the
    part's own, and at last that of a stop token, as far as they are asked for.
    """

    choice: int
    start: int
    text: str
    tokens: tuple[int, ...]
    echo: tuple[str, ...]
    pieces: tuple[str, ...]
    logprobs: tuple[TokenLogprob, ...]
    origins: tuple[str, ...] = ()
    finish: str = ""
    first: bool = False


@dataclass(slots=True)
class _Choice:
    """What one choice has brought so far."""

    started: bool = False
    length: int = 0  # characters
    tokens: int = 0
    last: Kind = Kind.PROMPT  # of the token before
    parts: list[Part] = field(default_factory=list)  # of an answer in one piece; a stream's are gone


class Answer:
    """The answer to one body as it grows. `push` gives the part of an event; `whole` and `chunk` write JSON objects."""

    def __init__(self, plan: Plan, tokenizer: TokenBytes) -> None:
        self._plan, self._tokenizer = plan, tokenizer
        self._choices = [_Choice() for _ in plan.asks]
        self._outputs: dict[int, Output] = {}
        kind = "chat.completion" if plan.chat else "text_completion"
        self._kind, self._id = kind, ("chatcmpl-" if plan.chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())

    @property
    def done(self) -> bool:
        return len(self._outputs) == len(self._choices)

    def push(self, index: int, event: Event) -> Iterator[Part]:
        """The parts that an event brings: none if nothing of it can be seen."""
        choice = self._choices[index]
        first = not choice.started
        echo = self._plan.echoes[index] if first else ()
        output = event.output
        if not (first or event.tokens or event.text or output is not None):
            return
        part = Part(
            choice=index,
            start=choice.length,
            text="".join((*echo, event.text)),
            tokens=event.tokens,
            echo=echo,
            pieces=event.pieces,
            logprobs=(*event.prompt_logprobs, *event.logprobs, *(output.ending if output is not None else ())),
            origins=_origins(event.kinds, choice.last),
            finish=str(output.finish) if output is not None else "",
            first=first,
        )
        choice.length += len(part.text)
        choice.tokens += len(event.tokens)
        choice.last = event.kinds[-1] if event.kinds else choice.last
        choice.started = True
        if not self._plan.stream:
            choice.parts.append(part)
        if output is not None:
            self._outputs[index] = output
        yield part

    def whole(self) -> Json:
        """The answer in one piece."""
        choices = [self._whole_choice(_joined(choice.parts)) for choice in self._choices]
        answer = {**self._frame(self._kind, choices), "usage": self.usage()}
        if self._plan.chat and self._plan.token_ids:
            answer["prompt_token_ids"] = list(self._plan.asks[0].prompt)
        return {**answer, **self._metrics()}

    def chunk(self, part: Part) -> Json:
        """One event of a stream."""
        made = self._frame(self._kind + ".chunk" if self._plan.chat else self._kind, [self._chunk_choice(part)])
        if self._plan.chat and self._plan.token_ids and part.first:
            made["prompt_token_ids"] = list(self._plan.asks[0].prompt)
        if self._plan.usage:
            made["usage"] = self.usage() if self._plan.running_usage else None
        if self.done and part.finish and not self._plan.usage:
            made |= self._metrics()
        return made

    def last_chunk(self) -> Json:
        """What `include_usage` asks for: no choice, and the usage of all of them."""
        kind = self._kind + ".chunk" if self._plan.chat else self._kind
        return {**self._frame(kind, []), "usage": self.usage(), **self._metrics()}

    def usage(self) -> Json:
        """Of all choices, as far as they are."""
        prompt, completion = self._plan.prompt_tokens, sum(choice.tokens for choice in self._choices)
        told: Json = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached()},
        }
        if self._plan.predicted:
            steps = [step for output in self._outputs.values() for step in output.steps]
            proposed, accepted = sum(len(s.proposed) for s in steps), sum(s.accepted for s in steps)
            told["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": proposed - accepted,
            }
        return told

    def _cached(self) -> int:
        """Of each prompt once, as they were for its first choice, when it has ended."""
        return sum(output.cached for index, output in self._outputs.items() if index % self._plan.n == 0)

    def _metrics(self) -> Json:
        return {"metrics": {"speculative_decoding": speculation(list(self._outputs.values()))}}

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._plan.model,
            "choices": choices,
        }

    def _whole_choice(self, part: Part) -> Json:
        if not self._plan.chat:
            return self._text_choice(part)
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return {"index": part.choice, "message": message, **self._ending(part)}

    def _chunk_choice(self, part: Part) -> Json:
        if not self._plan.chat:
            return self._text_choice(part)
        delta = {"role": "assistant", "content": part.text} if part.first else {"content": part.text}
        return {"index": part.choice, "delta": delta, **self._ending(part)}

    def _text_choice(self, part: Part) -> Json:
        told = {"index": part.choice, "text": part.text, **self._ending(part)}
        if self._plan.token_ids and part.first:
            told["prompt_token_ids"] = list(self._plan.asks[part.choice].prompt)
        return told

    def _ending(self, part: Part) -> Json:
        """What a choice says beside its text."""
        asked = self._plan.params.logprobs is not None
        told: Json = {"logprobs": self._logprobs(part) if asked else None, "finish_reason": part.finish or None}
        if self._plan.token_ids:
            told["token_ids"] = list(part.tokens)
        if self._plan.origins:
            pairs = zip(part.origins, part.pieces, strict=True)
            told["token_origins"] = [{"origin": origin, "text": piece} for origin, piece in pairs]
        return told

    def _logprobs(self, part: Part) -> Json:
        if self._plan.chat:
            return {"content": [self._chat_logprob(entry) for entry in part.logprobs], "refusal": None}
        starts = list(accumulate(map(len, (*part.echo, *part.pieces)), initial=part.start))
        first = self._plan.asks[part.choice].prompt[:1] if part.echo else ()  # nothing comes before it
        unknown = [None for _ in first]
        return {
            "text_offset": starts[: len(first) + len(part.logprobs)],
            "token_logprobs": [*unknown, *(_shown_as(entry.logprob) for entry in part.logprobs)],
            "tokens": [self._name(token) for token in (*first, *(entry.token for entry in part.logprobs))],
            "top_logprobs": [*unknown, *map(self._top, part.logprobs)],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The sampled token is among them even if it is not one of the top."""
        return {self._name(token): _shown_as(value) for token, value in (*entry.top, (entry.token, entry.logprob))}

    def _chat_logprob(self, entry: TokenLogprob) -> Json:
        return {**self._shown(entry.token, entry.logprob), "top_logprobs": [self._shown(*top) for top in entry.top]}

    def _shown(self, token: int, logprob: float) -> Json:
        return {
            "token": self._name(token),
            "logprob": _shown_as(logprob),
            "bytes": list(self._tokenizer.token_bytes(token)),
        }

    def _name(self, token: int) -> str:
        return token_name(self._tokenizer, token)


def _shown_as(logprob: float) -> float:
    """JSON has no minus infinity."""
    return max(logprob, _LEAST_LOGPROB)


def _origins(kinds: Sequence[Kind], before: Kind) -> tuple[str, ...]:
    """What tokens are, when `before` is the one ahead of them.

    A step whose whole draft stood ends with a bonus behind an accepted token; one without a draft is a bonus alone,
    which is told as plain.
    """
    pairs = zip((before, *kinds), kinds, strict=False)
    return tuple(PLAIN if now is Kind.BONUS and was is not Kind.ACCEPTED else str(now) for was, now in pairs)


def token_name(tokenizer: TokenBytes, token: int) -> str:
    """A token's text; its bytes if they are no text of their own; its id if it adds nothing to a text."""
    data = tokenizer.token_bytes(token)
    if not data:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _joined(parts: Sequence[Part]) -> Part:
    return Part(
        choice=parts[0].choice,
        start=0,
        text="".join(p.text for p in parts),
        tokens=tuple(t for p in parts for t in p.tokens),
        echo=parts[0].echo,
        pieces=tuple(t for p in parts for t in p.pieces),
        logprobs=tuple(t for p in parts for t in p.logprobs),
        origins=tuple(t for p in parts for t in p.origins),
        finish=parts[-1].finish,
        first=True,
    )
