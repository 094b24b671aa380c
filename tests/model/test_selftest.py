"""The self-test at load promises for trees only what it sees. On the toy model, whose rows are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import random_table

from draftproof.model.base import ModelInfo
from draftproof.model.selftest import with_promise
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.types import Chunk, Forward

VOCAB = 7


def model(kind: type[TabularModel] = TabularModel, **info: object) -> TabularModel:
    return kind(random_table(VOCAB, 1), tabular_info(VOCAB, trees_bitwise=False, bitwise=False, **info))


def promised(made: TabularModel) -> ModelInfo:
    return with_promise(made)


def test_exact_trees_are_promised() -> None:
    info = promised(model(pages=64))
    assert (info.bitwise, info.trees_bitwise, info.max_rows) == (True, True, 64)
    assert promised(model(pages=9, page_size=4)).trees_bitwise  # room for one sequence


def test_nothing_is_promised_for_trees_that_are_not_taken() -> None:
    made = model(trees=False)
    assert promised(made).bitwise
    assert not promised(made).trees_bitwise


def nudged(chunks: Sequence[Chunk], out: Forward) -> Forward:
    trees = np.concatenate([np.full(c.wanted, bool(c.visible)) for c in chunks])
    return replace(out, logits=np.where(trees[:, None], np.nextafter(out.logits, np.float32(np.inf)), out.logits))


class Nudged(TabularModel):
    """Rows of a tree differ by one unit in the last place."""

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        return nudged(chunks, super().forward(chunks))


class NudgedInBatch(TabularModel):
    """... only beside other sequences."""

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        out = super().forward(chunks)
        return nudged(chunks, out) if len(chunks) > 1 else out


class NudgedAlone(TabularModel):
    """A row that is the only one wanted differs by one unit in the last place, as with 8-bit weights."""

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        out = super().forward(chunks)
        return replace(out, logits=np.nextafter(out.logits, np.float32(np.inf))) if len(out.logits) == 1 else out


def test_planted_row_that_differs_alone_is_seen() -> None:
    assert not promised(model(NudgedAlone)).bitwise


class Unmoved(TabularModel):
    def move_slots(self, pages: Any, moves: Any) -> None:
        pass


class Causal(TabularModel):
    """No mask: every row sees all rows before it."""

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        return super().forward([replace(c, visible=(), depths=()) for c in chunks])


@pytest.mark.parametrize("kind", [Nudged, NudgedInBatch, Unmoved, Causal])
def test_planted_fault_is_seen(kind: type[TabularModel]) -> None:
    info = promised(model(kind))
    assert info.bitwise  # chains are right
    assert not info.trees_bitwise
