"""A KV cache with tokens for keys and values: what is read back is the prefix that a model has really seen.

Knows no model and no request. A wrong roll-back, catch-up or reuse shows as a wrong prefix, as it would in an engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Tokens = tuple[int, ...]


class Slot:
    """One sequence's cache under one model."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)

    def feed(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def roll_back(self, length: int) -> None:
        del self.tokens[length:]

    def read(self, length: int) -> Tokens:
        return tuple(self.tokens[:length])


class Prefixes:
    """Whole pages of prompts, found again by their content and all that came before."""

    page = 2
    most = 4096

    def __init__(self) -> None:
        self._known: dict[Hashable, Tokens] = {}

    def reuse(self, prompt: Tokens) -> Tokens:
        """The longest known beginning. The last token is never part of it: its row is needed."""
        found: Tokens = ()
        for n in range(self.page, self.reusable(prompt) + 1, self.page):
            known = self._known.get(self.key(prompt, n))
            if known is None:
                break
            found = known
        return found

    def reusable(self, prompt: Tokens) -> int:
        return len(prompt) - 1

    def keep(self, prompt: Tokens, slot: Slot) -> None:
        if len(self._known) > self.most:
            self._known.clear()
        for n in range(self.page, len(prompt), self.page):
            self._known[self.key(prompt, n)] = self.content(slot, n)

    def key(self, prompt: Tokens, n: int) -> Hashable:
        return prompt[:n]

    def content(self, slot: Slot, n: int) -> Tokens:
        return slot.read(n)
