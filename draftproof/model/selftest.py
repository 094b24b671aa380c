"""Does a row of logits depend on how it is batched? Asked of the model at hand, at load, in under a second.

Where the answer is no, to the last bit, the engine may promise that batching and speculation change no token (I8).
Knows nothing of backends. Writes to the pages 0 .. n of a model that nobody uses yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftproof.model.base import ModelInfo, TargetModel
from draftproof.types import Chunk

_SIZES = (128, 64, 32)  # rows a pass, largest first: what fits the promise bounds later passes
_CHUNKS = (2, 3, 5, 9)


def with_promise(model: TargetModel) -> ModelInfo:
    """The model's info with `bitwise` and `max_rows` filled in from what was seen."""
    for rows in _SIZES:
        if rows <= min(model.info.context, model.info.pages * model.info.page_size) and _same(model, rows):
            return replace(model.info, bitwise=True, max_rows=rows)
    return replace(model.info, bitwise=False, max_rows=_SIZES[0])


def _same(model: TargetModel, rows: int) -> bool:
    """One pass over `rows` tokens against small chunks of its end, alone and in a batch of about `rows` rows."""
    info = model.info
    tokens = tuple(int(t) for t in np.random.default_rng(rows).integers(0, info.vocab, rows))
    count = -(-rows // info.page_size)
    copies = min(4, info.pages // count)
    tables = [tuple(range(i * count, (i + 1) * count)) for i in range(copies)]
    whole = [_last(model, [Chunk(tokens, 0, table, 2)]) for table in tables]
    for size in _CHUNKS:
        chunk = [Chunk(tokens[rows - size :], rows - size, table, 2) for table in tables]
        if not all(np.array_equal(whole[0], w) for w in [*whole, *_split(model, chunk[:1]), *_split(model, chunk)]):
            return False
    return True


def _last(model: TargetModel, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    return model.forward(chunks).logits


def _split(model: TargetModel, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
    logits = _last(model, chunks)
    return [logits[2 * i : 2 * i + 2] for i in range(len(chunks))]
