"""Passes of a few rows a sequence, recorded once for each shape and replayed: on CUDA as a CUDA graph, so that a small
model is not bound by the time that launches take.

A pass is filled up to a shape that others share: chunks and pages to a power of two, rows to the longest chunk's. A row
that fills up repeats one of its pass, token, position and slot, so it writes what is written anyway; its outputs are
left out. Whatever changes from pass to pass lies in one table of whole numbers. Trees and longer chunks are not
recorded. Knows neither transformers nor architectures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftproof.model.torch_pages import Group, see_before
from draftproof.types import Chunk

_MOST_ROWS, _MOST_CHUNKS = 8, 64  # longer ones are bound by arithmetic
_MOST_SLOTS = 1 << 15  # that all chunks of a pass read together: they are copied for every layer
_MOST_GRAPHS = 64
_log = logging.getLogger(__name__)

Out = tuple[Tensor, list[Tensor]]  # logits [rows, vocab], states [rows, width]
Replay = tuple[Callable[[], None], Out]


class Shape(NamedTuple):
    chunks: int
    rows: int  # of each chunk
    pages: int  # of each chunk


class Filled(NamedTuple):
    """A pass of a fixed shape, as `torch_pages.attend` wants it; all of it on the device. Every row is wanted."""

    tokens: Tensor  # [chunks * rows]
    positions: Tensor  # [chunks * rows]
    slots: Tensor  # [chunks * rows]
    groups: list[Group]


Run = Callable[[Filled], Out]


class Graphs:
    """Args: a pass; slots of a page; the device. Without CUDA, as in tests, a pass is run again instead."""

    def __init__(self, run: Run, page_size: int, device: torch.device) -> None:
        self._run, self._page_size, self._device = run, page_size, device
        self._record = by_running
        if device.type == "cuda":
            self._record = partial(on_cuda, torch.cuda.graph_pool_handle())
        self._made: dict[Shape, tuple[Tensor, Replay]] = {}
        self._works = True

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Out | None:
        """Logits of the wanted rows and states of all rows, in the pass's order; None: to be run without."""
        shape = shape_of(chunks, self._page_size)
        if shape is None or not (shape in self._made or self._made_for(shape, chunks)):
            return None
        table, (replay, (logits, states)) = self._made[shape]
        table.copy_(torch.tensor(_table(chunks, shape)))
        replay()
        fed = [c * shape.rows + j for c, chunk in enumerate(chunks) for j in range(len(chunk.tokens))]
        read = [
            c * shape.rows + j
            for c, chunk in enumerate(chunks)
            for j in range(len(chunk.tokens) - chunk.wanted, len(chunk.tokens))
        ]
        return logits[self._ids(read)], [s[self._ids(fed)] for s in states]

    def _made_for(self, shape: Shape, chunks: Sequence[Chunk]) -> bool:
        if not self._works or len(self._made) >= _MOST_GRAPHS:
            return False
        table = torch.tensor(_table(chunks, shape), device=self._device)
        try:
            self._made[shape] = table, self._record(lambda: self._run(filled(table, shape, self._page_size)))
        except RuntimeError as error:  # what a device refuses to record; passes run without as well
            self._works = False
            _log.warning("passes are not recorded as CUDA graphs: %s", str(error).strip().partition("\n")[0])
        return self._works

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def shape_of(chunks: Sequence[Chunk], page_size: int) -> Shape | None:
    """The shape that a pass is filled up to; None if it is not worth recording."""
    rows = max(len(c.tokens) for c in chunks)
    pages = _up(max(-(-(c.past + len(c.tokens)) // page_size) for c in chunks))
    count = _up(len(chunks))
    if rows > _MOST_ROWS or count > _MOST_CHUNKS or count * pages * page_size > _MOST_SLOTS:
        return None
    return None if any(c.visible for c in chunks) else Shape(count, rows, pages)


def filled(table: Tensor, shape: Shape, page_size: int) -> Filled:
    """The pass that a table describes. Shapes alone decide which operations are done."""
    tokens, positions, pages = table.split([shape.rows, shape.rows, shape.pages], dim=1)
    own = pages.gather(1, positions // page_size) * page_size + positions % page_size
    slots = (pages[:, :, None] * page_size + torch.arange(page_size, device=table.device)).flatten(1)
    places = torch.arange(shape.pages * page_size, device=table.device)[None]
    rows = torch.arange(shape.chunks * shape.rows, device=table.device).view(shape.chunks, shape.rows)
    every = slice(0, shape.chunks * shape.rows)
    group = Group(rows, slots, positions, places, see_before(places, positions), every, every)
    return Filled(tokens.flatten(), positions.flatten(), own.flatten(), [group])


def _table(chunks: Sequence[Chunk], shape: Shape) -> list[list[int]]:
    """A line a chunk: tokens, their positions, pages."""
    lines = []
    for c in [*chunks, *[chunks[0]] * (shape.chunks - len(chunks))]:
        more = shape.rows - len(c.tokens)
        places = range(c.past, c.past + len(c.tokens))
        pages = c.pages[: shape.pages]
        lines.append(
            [
                *c.tokens, *c.tokens[-1:] * more, *places, *[places[-1]] * more,
                *pages, *pages[:1] * (shape.pages - len(pages)),
            ]
        )  # fmt: skip
    return lines


def _up(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def on_cuda(pool: Any, run: Callable[[], Out]) -> Replay:
    """Recorded once what it needs besides (handles, plans, memory) is there, as PyTorch's notes on CUDA graphs ask.

    Graphs share their memory, so the output of one lasts until the next is replayed.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = run()
    return graph.replay, out


def by_running(run: Callable[[], Out]) -> Replay:
    """Where there are no graphs: the same pass again, into the same memory. For tests."""
    logits, states = run()

    def replay() -> None:
        fresh, more = run()
        for into, new in zip((logits, *states), (fresh, *more), strict=True):
            into.copy_(new)

    return replay, (logits, states)
