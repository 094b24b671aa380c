"""What a step adds to a sequence once stop rules and limits have cut it. The stop that comes first in the text wins.

Order at each token: EOS or a stop token ends the output before it; a stop string ends it where the string begins; then
max_tokens and the context limit end it behind it. A token that is partly before a stop string is kept, its text is cut.
Knows nothing of laws, drafts or batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from draftproof.text import StopText, TextStream, TokenBytes
from draftproof.types import Finish, Request


class Cut(NamedTuple):
    """`kept`: how many tokens of the whole output stand. Less than before the step when a stop string began earlier."""

    kept: int
    finish: Finish | None


class Ending:
    """One request's stop rules, fed with its output token by token; keeps the text."""

    def __init__(self, request: Request, tokenizer: TokenBytes, context: int) -> None:
        p = request.params
        self._stop_ids, self._min = request.stop_ids, p.min_tokens
        self._limit = min(p.max_tokens, context - len(request.prompt))
        self._stream = TextStream(tokenizer)
        self._stops = StopText(p.stop) if p.stop else None
        self._before = 0  # characters that came before stop strings count
        self._ends: list[int] = []  # length of the text after each token
        self._released = 0
        self._held = 0  # characters at the end that may begin a stop string
        self.text = ""

    def push(self, tokens: Sequence[int]) -> Cut:
        """Add a step's tokens; those after the first stop are dropped."""
        if self._limit == 0:
            return self._end(Finish.LENGTH)
        for token in tokens:
            if token in self._stop_ids:
                return self._end(Finish.STOP)
            place = self._append(self._stream.push(token))
            self._ends.append(len(self.text))
            if place is not None:
                return self._cut_text(place)
            if len(self._ends) >= self._limit:
                return self._end(Finish.LENGTH)
        return Cut(len(self._ends), None)

    def released(self) -> int:
        """How many tokens are final: nothing that comes later can take them back.

        A token without text of its own waits for the next one with text: it may be the first part of a character
        that begins a stop string.
        """
        if self._stops is None:
            return len(self._ends)
        safe = len(self.text) - self._held
        for n in range(self._released, len(self._ends)):
            if self.end(n) < self.end(n + 1) <= safe:
                self._released = n + 1
        return self._released

    def end(self, tokens: int) -> int:
        """Characters of the text that the first `tokens` tokens complete."""
        return min(self._ends[tokens - 1], len(self.text)) if tokens else 0

    def close(self) -> None:
        """The output ends here, for a reason outside of it."""
        self._end(Finish.ABORT)

    def _append(self, piece: str) -> int | None:
        """Where in the text the first stop string begins, if one is complete."""
        self.text += piece
        if self._stops is None:
            return None
        if len(self._ends) < self._min:
            self._before = len(self.text)
            return None
        place, self._held = self._stops.push(piece)
        return None if place is None else self._before + place

    def _cut_text(self, place: int) -> Cut:
        self.text, self._held = self.text[:place], 0
        kept = bisect_left(self._ends, place) + 1 if place else 0
        kept = max(kept, self._min)  # a token without text may stand before the place
        return Cut(min(kept, len(self._ends)), Finish.STOP)

    def _end(self, finish: Finish) -> Cut:
        place = self._append(self._stream.flush())
        if place is not None:
            return self._cut_text(place)
        self._held = 0
        return Cut(len(self._ends), finish)
