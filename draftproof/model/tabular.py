"""An exact toy: a function from prefix to probabilities, behind the paged contract of a real model.

Its "KV cache" is the token ids themselves, stored in pages. A page table that is wrong by one slot, or a page written
by somebody else, gives another prefix and so another law: what would be a small numerical shift in a real model is
plain to see here. Knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.model.base import ModelInfo
from draftproof.types import Chunk, Forward

Table = Callable[[tuple[int, ...]], NDArray[np.floating]]
_EMPTY = -1


class TabularModel:
    """Args: `table(prefix)` gives the probabilities [vocab] of the next token; zeros are allowed."""

    def __init__(self, table: Table, info: ModelInfo) -> None:
        self._table, self.info = table, info
        self.slots = np.full((info.pages, info.page_size), _EMPTY, dtype=np.int64)
        self.rows = 0  # rows computed so far, for tests of what is fed

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        for chunk in chunks:  # all writes come first, as in a real pass
            for row, token in enumerate(chunk.tokens):
                page, offset = divmod(chunk.past + row, self.info.page_size)
                self.slots[chunk.pages[page], offset] = token
        logits = [self._row(chunk, row) for chunk in chunks for row in _wanted(chunk)]
        self.rows += sum(len(c.tokens) for c in chunks)
        empty = np.zeros((0, self.info.vocab), dtype=np.float32)
        return Forward(np.stack(logits) if logits else empty)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.slots[target] = self.slots[source]

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        size = self.info.page_size
        for source, target in moves:
            self.slots[pages[target // size], target % size] = self.slots[pages[source // size], source % size]

    def _row(self, chunk: Chunk, row: int) -> NDArray[np.float32]:
        held = self.slots[list(chunk.pages)].ravel()
        own = _branch(chunk, row) if chunk.visible else held[chunk.past : chunk.past + row + 1]
        prefix = [*held[: chunk.past], *own]
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(self._table(tuple(int(t) for t in prefix)), dtype=np.float64)).astype(np.float32)


def _branch(chunk: Chunk, row: int) -> list[int]:
    """The tokens that a row of a tree sees, each at its depth; where there is none, or more than one, a hole."""
    seen: dict[int, list[int]] = {}
    for i in chunk.visible[row]:
        seen.setdefault(chunk.depths[i], []).append(chunk.tokens[i])
    at = [seen.get(depth, []) for depth in range(max(seen, default=-1) + 1)]
    return [tokens[0] if len(tokens) == 1 else _EMPTY for tokens in at]


def _wanted(chunk: Chunk) -> range:
    return range(len(chunk.tokens) - chunk.wanted, len(chunk.tokens))


def tabular_info(vocab: int, pages: int = 64, page_size: int = 4, context: int = 64, **more: object) -> ModelInfo:
    """A ModelInfo for toys, where rows never depend on batch mates."""
    exact: dict[str, object] = {"bitwise": True, "trees": True, "trees_bitwise": True, **more}
    return ModelInfo("tabular", vocab, context, page_size, pages, **exact)  # type: ignore[arg-type]
