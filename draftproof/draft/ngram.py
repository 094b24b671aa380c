"""Prompt lookup: propose what followed the last tokens when they stood in the text before (Saxena 2023).

Which match wins: the longest suffix of at most `longest` tokens; among its earlier occurrences the most recent one that
has at least one token after it. No array library, no model, no state beyond an index per running request.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft.base import Ask, Stateless, point_draft
from draftproof.types import Draft


class _Index:
    """For each n-gram, the end of its most recent occurrence that something follows."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._tokens: list[int] = []

    def update(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that ends before the last token, so that something follows it."""
        if self._tokens and tokens[len(self._tokens) - 1] != self._tokens[-1]:
            raise ValueError("a sequence's committed tokens changed; forget() it first")
        done = max(len(self._tokens) - 1, 0)
        self._tokens.extend(tokens[len(self._tokens) :])
        for end in range(done + 1, len(self._tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(self._tokens[end - size : end])] = end

    def continuation(self, k: int) -> list[int]:
        for size in self._sizes:
            if size < len(self._tokens):
                end = self._ends.get(tuple(self._tokens[-size:]))
                if end is not None:
                    return self._tokens[end : end + k]
        return []


class NgramProposer(Stateless):
    """Args: vocab of the target; n-grams of `shortest` to `longest` tokens are looked up, longest first."""

    def __init__(self, vocab: int, shortest: int = 2, longest: int = 4) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram sizes must satisfy 1 <= shortest <= longest, got {shortest} and {longest}")
        self._vocab, self._shortest, self._longest = vocab, shortest, longest
        self._indexes: dict[int, _Index] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Draft:
        if ask.k == 0:
            return Draft()
        name = ask.view.request.id
        if name not in self._indexes:
            self._indexes[name] = _Index(self._shortest, self._longest)
        index = self._indexes[name]
        index.update(ask.view.tokens)
        return point_draft(index.continuation(ask.k), self._vocab)

    def forget(self, request: int) -> None:
        self._indexes.pop(request, None)
