"""The contract between the engine and any model. Knows no backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.types import Chunk, Forward


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine must know of a model, and what is printed as the resolved configuration."""

    name: str
    vocab: int
    context: int  # most tokens a sequence may have, prompt and output together
    page_size: int  # KV slots a page
    pages: int  # pages that the model holds memory for
    eos_ids: tuple[int, ...] = ()
    min_rows: int = 1  # fewest rows a chunk may have for rows to be bitwise reproducible
    max_rows: int = 1 << 30  # most rows a pass may have, all chunks together
    bitwise: bool = False  # rows do not depend on chunk size or batch mates, to the last bit
    trees: bool = False  # chunks may be trees
    trees_bitwise: bool = False  # ... whose rows equal those of each branch alone, to the last bit
    settings: dict[str, object] = field(default_factory=dict)


class HeadPass(NamedTuple):
    """logits: [wanted rows, draft vocab]; outputs: [all rows, width], each of which may be the next row's state."""

    logits: NDArray[np.float32]
    outputs: NDArray[np.float32]


class Head(Protocol):
    """A small decoder whose rows are a token and a state each, with paged K and V of its own.

    ids: [draft vocab] the target's ids of its tokens, rising.
    """

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def page_size(self) -> int: ...
    @property
    def pages(self) -> int: ...

    def fuse(self, states: NDArray[np.floating]) -> NDArray[np.float32]:
        """The target's states [rows, layers, width] as states of the head [rows, width]."""
        ...

    def forward(self, chunks: Sequence[Chunk], states: NDArray[np.float32]) -> HeadPass:
        """One ragged pass: writes K and V for every row. states: [all rows, width], in the chunks' order."""
        ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As of a TargetModel."""
        ...


class TargetModel(Protocol):
    """A decoder with paged state. All methods are deterministic: noise lives elsewhere."""

    @property
    def info(self) -> ModelInfo: ...

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        """One ragged pass: writes KV for every row, returns logits of each chunk's last `wanted` rows."""
        ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the whole content of page `source` to page `target` for each (source, target)."""
        ...

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Move K and V of one sequence, in order, from slot `source` to slot `target` for each (source, target).

        Asked for only if `info.trees`: it brings the accepted path of a tree together.
        """
        ...
