"""K and V in pages that we own, and attention over them, in PyTorch.

A pass is planned once for all layers: which slots each row writes, which slots each chunk reads, who sees whom. On a
CPU chunks of the same rows and pages are one call, so that no chunk's arithmetic depends on another; elsewhere those
of about the same length are padded to one call, since each call costs a launch. Knows nothing of transformers or of any
architecture.

On a CPU rows come out the same to the last bit for every chunk size: products of fewer than four rows take other
kernels, so chunks are padded to four, and a product over more than 128 slots is split by the library as it likes, so
values are summed in blocks of 128. Slots behind a row's own weigh exactly nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftproof.types import Chunk

_LEAST_ROWS = 4
_BLOCK = 128


class How(NamedTuple):
    """What a layer asks of attention: factor of the scores, most positions a row looks back (itself included; 0: all),
    bound of the scores (0: none), and one more score a head that takes weight and gives no value."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None  # [heads]


class Pages:
    """K and V of every layer. Args: for each layer the shapes (heads, width) of K and of V, which may differ."""

    def __init__(
        self, shapes: Sequence[tuple[tuple[int, int], tuple[int, int]]], pages: int, page_size: int, like: Tensor
    ) -> None:
        self.pages, self.page_size = pages, page_size
        make = partial(torch.zeros, dtype=like.dtype, device=like.device)
        slots = pages * page_size
        self.layers = [(make((slots, *k)), make((slots, *v))) for k, v in shapes]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._move(source * self.page_size, target * self.page_size, self.page_size)

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        for source, target in moves:
            self._move(slot(pages, source, self.page_size), slot(pages, target, self.page_size), 1)

    def _move(self, source: int, target: int, slots: int) -> None:
        for layer in self.layers:
            for store in layer:
                store[target : target + slots] = store[source : source + slots]


def slot(pages: Sequence[int], at: int, page_size: int) -> int:
    """Where slot `at` of a sequence lies in the whole memory."""
    return pages[at // page_size] * page_size + at % page_size


@dataclass(slots=True)
class Group:
    """Chunks that are computed in one call. B chunks, R rows each after padding, L slots each after padding.

    rows: [B, R] which row of the pass; a padded place repeats the chunk's last row. slots: [B, L], or their range if
    they follow each other, which is read in place. `positions` [B, R], `places` [B, L] positions of the slots, `sees`
    [B, R, L].
    """

    rows: Tensor
    slots: Tensor | slice
    positions: Tensor
    places: Tensor
    sees: Tensor
    back: Tensor | slice  # [rows of the group] places in the flat B * R, in the pass's order of `own`
    own: Tensor | slice  # [rows of the group] rows of the pass
    masks: dict[int, Tensor] = field(default_factory=dict)

    def hidden(self, window: int) -> Tensor:
        """[B, R, L], True where a row must not look. Worked out once a pass."""
        if window not in self.masks:
            far = self.places[:, None, :] <= self.positions[:, :, None] - window
            self.masks[window] = ~self.sees | far if window else ~self.sees
        return self.masks[window]


class Batch:
    """A pass: token ids, positions and slots of all rows, and groups of chunks.

    `together` pads chunks of about the same length to one call.
    """

    def __init__(self, chunks: Sequence[Chunk], page_size: int, device: torch.device, together: bool) -> None:
        self._page_size, self._device, self._least = page_size, device, 1 if together else _LEAST_ROWS
        starts = [0]
        for c in chunks:
            starts.append(starts[-1] + len(c.tokens))
        self.rows = starts[-1]
        self.tokens = self._ids([t for c in chunks for t in c.tokens])
        self.positions = self._ids([p for c in chunks for p in _positions(c)])
        self.slots = self._at([slot(c.pages, c.past + j, page_size) for c in chunks for j in range(len(c.tokens))])
        ends = starts[1:]
        self.wanted = self._ids([r for c, end in zip(chunks, ends, strict=True) for r in range(end - c.wanted, end)])
        parts: dict[tuple[int, int], list[tuple[Chunk, int]]] = {}
        for chunk, start in zip(chunks, starts, strict=False):
            rows = len(chunk.tokens)
            key = (rows.bit_length(), 0) if together else (rows, -(-(chunk.past + rows) // page_size))
            parts.setdefault(key, []).append((chunk, start))
        self.groups = [self._group(part) for part in parts.values()]

    def _ids(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _at(self, values: Sequence[int]) -> Tensor | slice:
        """The same as an index: a range where they follow each other, which costs less in every layer."""
        whole = range(values[0], values[0] + len(values))
        return slice(whole.start, whole.stop) if list(whole) == values else self._ids(values)

    def _group(self, part: Sequence[tuple[Chunk, int]]) -> Group:
        size = self._page_size
        most = max(self._least, *(len(c.tokens) for c, _ in part))
        pages = max(-(-(c.past + len(c.tokens)) // size) for c, _ in part)
        rows = [[start + min(j, len(c.tokens) - 1) for j in range(most)] for c, start in part]
        listed = [[*c.pages[:pages], *[c.pages[0]] * (pages - len(c.pages))] for c, _ in part]
        first, alone = listed[0][0], len(part) == 1
        if alone and listed[0] == list(range(first, first + pages)):
            slots: Tensor | slice = slice(first * size, (first + pages) * size)
        else:
            slots = (self._ids(listed)[:, :, None] * size + torch.arange(size, device=self._device)).flatten(1)
        back = [b * most + j for b, (c, _) in enumerate(part) for j in range(len(c.tokens))]
        own = [start + j for c, start in part for j in range(len(c.tokens))]
        which = self._ids(rows)
        if any(c.visible for c, _ in part):
            each = [_sight(c, most, pages * size) for c, _ in part]
            places, sees = (torch.stack(x).to(self._device) for x in zip(*each, strict=True))
        else:
            places = torch.arange(pages * size, device=self._device)[None]
            sees = see_before(places, self.positions[which])
        return Group(which, slots, self.positions[which], places, sees, self._at(back), self._at(own))


def see_before(places: Tensor, positions: Tensor) -> Tensor:
    """[B, R, L]: a row of a chain sees what lies at its position and before."""
    return places[:, None, :] <= positions[:, :, None]


def _positions(chunk: Chunk) -> list[int]:
    return [chunk.past + d for d in (chunk.depths or range(len(chunk.tokens)))]


def _sight(chunk: Chunk, rows: int, slots: int) -> tuple[Tensor, Tensor]:
    """Positions of the slots [slots], and what each row sees without a window [rows, slots]. A tree's rows see all
    slots before the chunk and the rows that it lists."""
    places, own = torch.arange(slots), len(chunk.tokens)
    places[chunk.past : chunk.past + own] = torch.tensor(_positions(chunk))
    visible = chunk.visible or [range(row + 1) for row in range(own)]
    sees = (torch.arange(slots) < chunk.past).repeat(rows, 1)
    for row in range(rows):
        sees[row, [chunk.past + i for i in visible[min(row, own - 1)]]] = True
    return places, sees


Mix = Callable[[Tensor, Tensor, Tensor, Tensor, How], Tensor]


class Planned(Protocol):
    """What attention needs to know of a pass; see Batch."""

    @property
    def slots(self) -> Tensor | slice: ...
    @property
    def groups(self) -> Sequence[Group]: ...


def attend(batch: Planned, store: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
    """Write k and v of all rows, then let every row look. q, k, v: [rows, heads, width]. [rows, heads, width of v]."""
    for into, new in zip(store, (k, v), strict=True):
        into[batch.slots] = new
    mix: Mix = fused if _can_fuse(q, how) else exact
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    for group in batch.groups:
        keys, values = (_fetch(s, group.slots) for s in store)
        mixed = mix(q[group.rows], keys, values, group.hidden(how.window), how).flatten(0, 1)[group.back]
        if len(batch.groups) == 1:
            return mixed  # the pass's rows in order
        out[group.own] = mixed
    return out


def _fetch(store: Tensor, slots: Tensor | slice) -> Tensor:
    """[B, L, heads, width]; a range is read in place."""
    return store[slots][None] if isinstance(slots, slice) else store[slots]


def _can_fuse(q: Tensor, how: How) -> bool:
    return q.device.type != "cpu" and not how.softcap and how.sinks is None


def fused(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, how: How) -> Tensor:
    """As `exact`, by PyTorch's own kernels."""
    own, share = k.shape[2], q.shape[2] // k.shape[2]
    seen = ~hidden[:, None].repeat_interleave(share, dim=2)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return _unshared(scaled_dot_product_attention(_shared(q, own), k, v, seen, scale=how.scale), share)


def _shared(q: Tensor, own: int) -> Tensor:
    """[B, R, heads, width] to [B, own, R * share, width]: query heads that share a key head are more rows of it."""
    b, rows, heads, _ = q.shape
    return q.view(b, rows, own, heads // own, -1).transpose(1, 2).reshape(b, own, rows * (heads // own), -1)


def _unshared(mixed: Tensor, share: int) -> Tensor:
    """The way back."""
    b, own, rows, _ = mixed.shape
    return mixed.view(b, own, rows // share, share, -1).transpose(1, 2).flatten(2, 3)


def exact(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, how: How) -> Tensor:
    """q [B, R, heads, width], k and v [B, L, their heads, width], hidden [B, R, L]. [B, R, heads, width of v]."""
    (b, rows, heads, _), own = q.shape, k.shape[2]
    share = heads // own
    flat = _shared(q * how.scale, own)
    scores = (flat @ k.permute(0, 2, 3, 1)).float().view(b, own, rows, share, -1)
    if how.softcap:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill_(hidden[:, None, :, None], float("-inf"))
    if how.sinks is not None:
        sinks = how.sinks.float().view(1, own, 1, share, 1).expand(b, -1, rows, -1, -1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return _unshared(_weighted(weights.to(v.dtype).flatten(2, 3), v.transpose(1, 2)), share)


def _weighted(weights: Tensor, v: Tensor) -> Tensor:
    """weights @ v, block by block of slots."""
    total = weights[..., :_BLOCK] @ v[..., :_BLOCK, :]
    for start in range(_BLOCK, v.shape[-2], _BLOCK):
        total += weights[..., start : start + _BLOCK] @ v[..., start : start + _BLOCK, :]
    return total
