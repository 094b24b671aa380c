"""Text that grows token by token: whole characters as soon as they are complete, and stop strings.

Knows bytes and characters. Does not know the engine, special tokens or where tokens come from; of a tokenizer it needs
what one token adds (nothing for a special one).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that incremental text needs."""

    @property
    def strips_space(self) -> bool:
        """Whether one space at the start of a text is dropped (SentencePiece)."""
        ...

    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Decodes a token list piece by piece. All pieces and the flush together are `tokenizer.decode` of the list."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_space

    def push(self, token: int) -> str:
        """The text that this token completes, often a whole word, sometimes nothing."""
        return self._begin(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def flush(self) -> str:
        """What a last, incomplete character leaves: U+FFFD, or nothing."""
        return self._begin(self._decoder.decode(b"", final=True))

    def _begin(self, piece: str) -> str:
        if not (self._at_start and piece):
            return piece
        self._at_start = False
        return piece.removeprefix(" ")


class StopText:
    """Finds where the earliest stop string starts in a growing text.

    Only the tail that may still belong to a stop string is kept, so a push costs what its piece costs.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tail = ""  # the last characters of the text, as many as the longest stop string minus one
        self._keep = max((len(stop) for stop in stops), default=1) - 1
        self._length = 0
        self._found: int | None = None

    def push(self, piece: str) -> tuple[int | None, int]:
        """(position in the text where the earliest stop string starts, or None; characters to hold back).

        Held back are the characters at the end of the text that may begin a stop string; none once one is found, and
        its position stays. Of several stop strings that are complete after a push the one that starts first counts:
        push token by token, so that the answer does not depend on how many tokens a step brought.
        """
        if self._found is not None:
            return self._found, 0
        window = self._tail + piece
        self._length += len(piece)
        base = self._length - len(window)
        starts = [at for at in (window.find(stop) for stop in self._stops) if at >= 0]
        if starts:
            self._found = base + min(starts)
            return self._found, 0
        self._tail = window[-self._keep :] if self._keep else ""
        return None, self._held()

    def _held(self) -> int:
        lengths = range(len(self._tail), 0, -1)
        return next((n for n in lengths if any(stop.startswith(self._tail[-n:]) for stop in self._stops)), 0)
