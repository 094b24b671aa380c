"""An answer that streams in over HTTP: when how many tokens came, and what the server tells of its drafts.

Knows the events of OpenAI-compatible servers. Knows no connection and no clock: each event comes with its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any

from draftproof.types import RequestError


class Gone(RequestError):
    """The server is not there, or not any more."""


class Counted(StrEnum):
    """How the tokens of a chunk are known."""

    IDS = "token ids of each chunk"
    USAGE = "usage with each chunk"
    SHARED = "usage of the whole answer, shared out by the length of each chunk's text"


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a server tells of one request's drafts. `longest` is the draft length that it runs with.

    `told` is False where it tells nothing; positions are empty where it does not tell them.
    """

    told: bool = False
    proposed: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    reached_at: tuple[int, ...] = ()
    longest: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """`chunks` are (time, tokens) as they came."""

    chunks: tuple[tuple[float, int], ...]
    finish: str
    counted: Counted
    drafts: Drafts

    @property
    def tokens(self) -> int:
        return sum(n for _, n in self.chunks)


class Lines:
    """Server-sent events from pieces of bytes: the data of each.

    Lines end with a line feed and nothing else: answers may hold other characters that end a line in Unicode.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[str]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for line in whole:
            name, _, data = line.partition(b":")
            if name == b"data" and data.strip() != b"[DONE]":
                yield data.strip().decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Piece:
    """`ids` of tokens in it and `total` tokens so far, None where the server does not say."""

    at: float
    text: str
    ids: int | None
    total: int | None


@dataclass(slots=True)
class Reader:
    """Takes the events of one answer in their order."""

    _pieces: list[_Piece] = field(default_factory=list)
    _total: int | None = None
    _finish: str = ""
    _drafts: Drafts = field(default_factory=Drafts)

    def take(self, data: str, at: float) -> None:
        """
        Raises:
            RequestError: the event is an error, or none that is understood.
        """
        try:
            self._take(json.loads(data), at)
        except RequestError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(f"the server sent what is no event of a streamed completion: {data[:200]!r}") from error

    def _take(self, event: Any, at: float) -> None:
        total: int | None = None
        match event:
            case {"error": error} if error:
                raise RequestError(f"the server broke an answer off: {said(event)}")
            case {"choices": [*_]}:
                pass
            case _:
                raise ValueError("no choices")
        match event:
            case {"usage": {"completion_tokens": int(so_far)}}:
                self._total = total = so_far
        match event["choices"]:
            case [{"text": str(text)} as choice, *_]:
                ids = choice.get("token_ids")
                self._pieces.append(_Piece(at, text, None if ids is None else len(ids), total))
                self._finish = str(choice.get("finish_reason") or self._finish)
        self._drafts = drafts_of(event) if not self._drafts.told else self._drafts

    def answer(self) -> Answer:
        """
        Raises:
            Gone: the answer has no end.
            RequestError: it cannot be said how many tokens came.
        """
        if not self._finish:
            raise Gone("the server broke an answer off in the middle")
        counted, chunks = self._chunks()
        answer = Answer(tuple((at, n) for at, n in chunks if n > 0), self._finish, counted, self._drafts)
        # a server may or may not count the token that ended the answer
        if counted != Counted.SHARED and self._total is not None and abs(self._total - answer.tokens) > 1:
            raise RequestError(
                f"the chunks of an answer hold {answer.tokens} tokens and its usage says {self._total}: the times of "
                "this server's tokens cannot be told"
            )
        return answer

    def _chunks(self) -> tuple[Counted, list[tuple[float, int]]]:
        spoken = [p for p in self._pieces if p.text or p.ids]
        if all(p.ids is not None for p in spoken):
            return Counted.IDS, [(p.at, p.ids or 0) for p in spoken]
        totals = [p for p in self._pieces if p.total is not None]
        if all(p.total is not None for p in spoken):
            sums = [0, *(p.total or 0 for p in totals)]
            return Counted.USAGE, [(p.at, b - a) for p, (a, b) in zip(totals, pairwise(sums), strict=True)]
        if self._total is None:
            raise RequestError(
                "the server tells neither token ids nor usage with its answers: tokens cannot be counted"
            )
        shares = shared(self._total, [len(p.text) for p in spoken])
        return Counted.SHARED, [(p.at, n) for p, n in zip(spoken, shares, strict=True)]


def shared(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts that are near `weights`, each at least 1 if there is enough."""
    least, count, ends = 1 if total >= len(weights) else 0, len(weights), [0]
    for place, so_far in enumerate(accumulate(weights), 1):
        end = max(round(total * so_far / sum(weights)), ends[-1] + least)
        ends.append(min(end, total - least * (count - place)))
    return [b - a for a, b in pairwise(ends)]


def drafts_of(event: Mapping[str, Any]) -> Drafts:
    """In vLLM's words, llama-server's, or OpenAI's for predicted outputs."""
    match event:
        case {"metrics": {"speculative_decoding": {"num_draft_tokens": int(p), "num_accepted_draft_tokens": int(a)}}}:
            told = event["metrics"]["speculative_decoding"]
            accepted_at, reached_at = _positions(_histograms(told))
            return Drafts(True, p, a, accepted_at, reached_at, int(told.get("num_spec_tokens") or 0))
        case {"timings": {"draft_n": int(p), "draft_n_accepted": int(a)}}:
            return Drafts(True, p, a)
        case {
            "usage": {
                "completion_tokens_details": {
                    "accepted_prediction_tokens": int(a),
                    "rejected_prediction_tokens": int(r),
                }
            }
        } if a + r:
            return Drafts(True, a + r, a)
    return Drafts()


def _histograms(told: Mapping[str, Any]) -> dict[int, list[int]]:
    """By draft length: how many drafts had so many tokens accepted, from none to all. Empty where that is not told."""
    by_length = told.get("acceptance_histogram_by_draft_length") or {}
    if by_length:
        return {int(k): [int(n) for n in counts] for k, counts in by_length.items()}
    one = [int(n) for n in told.get("acceptance_histogram") or ()]
    longest = len(one) - 1
    return {longest: one} if one and told["num_draft_tokens"] == longest * sum(one) else {}


def _positions(histograms: Mapping[int, Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Accepted at each position, and reached."""
    places = range(max(histograms, default=0))

    def count(place: int, least: int) -> int:
        return sum(sum(counts[least:]) for length, counts in histograms.items() if length > place)

    return tuple(count(i, i + 1) for i in places), tuple(count(i, i) for i in places)


def said(told: Any) -> str:
    """What an error says, in one line."""
    match told:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            pass
        case {"detail": detail}:
            message = str(detail)
        case _:
            message = str(told)
    return " ".join(message.split())[:300]
