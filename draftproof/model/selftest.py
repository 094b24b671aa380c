"""Does a row of logits depend on how it is batched? Asked of the model at hand, at load, in under a second.

Where the answer is no, to the last bit, the engine may promise that batching and speculation change no token (I8). The
same is asked of trees, if the model takes them: their rows are to equal those of each branch alone. Knows nothing of
backends. Writes to the pages 0 .. n of a model that nobody uses yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays, tree
from draftproof.model.base import ModelInfo, TargetModel
from draftproof.types import Chunk

_SIZES = (128, 64, 32)  # rows a pass, largest first: what fits the promise bounds later passes
_CHUNKS = (2, 3, 5, 9)
_TREE = (0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 10)
_LEAVES = (3, 5, 8, 9, 11)


def with_promise(model: TargetModel) -> ModelInfo:
    """The model's info with `bitwise` and `max_rows` filled in from what was seen."""
    for rows in _SIZES:
        if rows <= min(model.info.context, model.info.pages * model.info.page_size) and _same(model, rows):
            return replace(model.info, bitwise=True, max_rows=rows, trees_bitwise=_same_trees(model, rows))
    return replace(model.info, bitwise=False, max_rows=_SIZES[0])


def _same(model: TargetModel, rows: int) -> bool:
    """One pass over `rows` tokens against small chunks of its end, alone and in a batch of about `rows` rows. Alone,
    its last row is also asked for without another."""
    tokens, tables = _random(model.info, rows), _tables(model.info, rows)
    whole = [_last(model, [Chunk(tokens, 0, table, 2)]) for table in tables]
    for size in (1, *_CHUNKS) if model.info.min_rows == 1 else _CHUNKS:
        chunk = [Chunk(tokens[rows - size :], rows - size, table, min(size, 2)) for table in tables]
        lone = _last(model, [replace(chunk[0], wanted=1)])
        parts = [lone, *_split(model, chunk[:1]), *_split(model, chunk)]
        if not all(np.array_equal(whole[0][-len(w) :], w) for w in [*whole, *parts]):
            return False
    return True


def _random(info: ModelInfo, rows: int) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(rows).integers(0, info.vocab, rows))


def _tables(info: ModelInfo, slots: int) -> list[tuple[int, ...]]:
    """Pages of up to four sequences of that many slots."""
    count = -(-slots // info.page_size)
    return [tuple(range(i * count, (i + 1) * count)) for i in range(min(4, info.pages // count))]


def _same_trees(model: TargetModel, rows: int) -> bool:
    """Trees behind a prompt, which _same left in the pages, against their branches alone, and the token behind a branch
    that was moved together."""
    if not model.info.trees:
        return False
    tokens, tables = _random(model.info, rows), _tables(model.info, rows)
    prompt, drafted = tokens[: -len(_TREE) - 1], tokens[-len(_TREE) - 1 : -1]
    seen = _in_trees(model, prompt, drafted, tables)
    for leaf in _LEAVES:
        path = tree.path(_TREE, leaf)
        branch = (prompt[-1], *(drafted[n - 1] for n in path))
        alone = _last(model, [Chunk(branch, len(prompt) - 1, tables[0], len(branch))])
        if not all(np.array_equal(one[[0, *path]], alone) for one in seen):
            return False
    return _same_behind(model, prompt, drafted, tables[0])


def _in_trees(
    model: TargetModel, prompt: Sequence[int], drafted: Sequence[int], tables: Sequence[tuple[int, ...]]
) -> list[NDArray[np.float32]]:
    """Rows of node 0 and all nodes, of one tree alone and of several in a batch that a chain ends."""
    trees = [_tree(prompt, fed, drafted, table) for fed, table in zip((1, 2, 3), tables, strict=False)]
    chain = Chunk(tuple(prompt[-2:]), len(prompt) - 2, tables[-1], 2)
    batch = _last(model, [*trees, chain] if len(tables) > len(trees) else trees)
    rows = len(_TREE) + 1
    return [_last(model, trees[:1]), *(batch[i * rows : (i + 1) * rows] for i in range(len(trees)))]


def _same_behind(model: TargetModel, prompt: Sequence[int], drafted: Sequence[int], table: tuple[int, ...]) -> bool:
    path = tree.path(_TREE, _LEAVES[-1])
    after = Chunk(tuple(drafted[:2]), len(prompt) + len(path), table, 2)
    plain = _last(model, [after])  # the branch was fed last, alone
    _last(model, [_tree(prompt, 1, drafted, table)])
    model.move_slots(table, tree.moves(path, len(prompt)))
    return bool(np.array_equal(plain, _last(model, [after])))


def _tree(prompt: Sequence[int], fed: int, drafted: Sequence[int], table: tuple[int, ...]) -> Chunk:
    shape = (_TREE, fed, fed + len(_TREE))
    chunk = Chunk((*prompt[-fed:], *drafted), len(prompt) - fed, table, len(_TREE) + 1)
    return replace(chunk, depths=tree.row_depths(*shape), visible=tree.visible(*shape))


def _last(model: TargetModel, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    return arrays.host(model.forward(chunks).logits)


def _split(model: TargetModel, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
    return np.split(_last(model, chunks), len(chunks))
