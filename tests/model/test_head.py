"""The head's graph against an independent forward pass in float64: chunks, chains, batches, trees, precisions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest
from heads import Reference, random_head, sizes, source

from draftproof.model import head as graphs
from draftproof.model.graph import Builder
from draftproof.model.head import HeadModel
from draftproof.model.headfile import HeadCheckpoint
from draftproof.model.paged import PagedOptions
from draftproof.types import Chunk

Made = tuple[np.ndarray, np.ndarray]  # logits, outputs
CLOSE = 2e-5
ROWS = 12
RNG = np.random.default_rng(3)
TOKENS = [tuple(int(t) for t in RNG.integers(4, 20, ROWS)) for _ in range(3)]
STATES = RNG.standard_normal((3, ROWS, sizes().width)).astype(np.float32)
# a tree behind three committed rows: two children, each with children of its own, out of depth-first order
PARENTS = (-1, 0, 1, 2, 2, 3, 4, 3)
DEPTHS = (0, 1, 2, 3, 3, 4, 4, 4)


def made(precision: str = "f32", trees: bool = True, head: HeadCheckpoint | None = None) -> HeadModel:
    return HeadModel(head or random_head(), source(), PagedOptions(precision, kv_pages=12, threads=1, trees=trees))


@pytest.fixture(scope="module")
def model() -> HeadModel:
    return made()


def wanted(tokens: Sequence[int], states: np.ndarray, head: HeadCheckpoint | None = None) -> Made:
    reference = Reference(head or random_head())
    rows = [reference.row(t, s.astype(np.float64), j) for j, (t, s) in enumerate(zip(tokens, states, strict=True))]
    return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])


def fed(model: HeadModel, tokens: Sequence[int], states: np.ndarray, chunks: Sequence[int], page: int = 0) -> Made:
    """One sequence in chunks of these sizes."""
    passes, at = [], 0
    for rows in chunks:
        chunk = Chunk(tuple(tokens[at : at + rows]), at, (page,), rows)
        passes.append(model.forward([chunk], states[at : at + rows]))
        at += rows
    return np.concatenate([p.logits for p in passes]), np.concatenate([p.outputs for p in passes])


def far(a: Made, b: Made) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("chunks", [[12], [5, 7], [2] * 6, [1] * 12, [3, 1, 8]], ids=str)
def test_prefill_in_any_chunks(model: HeadModel, chunks: list[int]) -> None:
    right = wanted(TOKENS[0], STATES[0])
    assert far(fed(model, TOKENS[0], STATES[0], chunks), right) < CLOSE
    assert np.abs(right[0]).max() > 1  # what is compared is not nearly nothing


def test_states_of_the_row_before_are_seen(model: HeadModel) -> None:
    shifted = np.roll(STATES[0], 1, axis=0)
    assert far(fed(model, TOKENS[0], shifted, [12]), wanted(TOKENS[0], STATES[0])) > 0.1


def test_only_the_wanted_rows_have_logits_and_all_have_outputs(model: HeadModel) -> None:
    out = model.forward([Chunk(TOKENS[0], 0, (0,), 2)], STATES[0])
    right = wanted(TOKENS[0], STATES[0])
    assert far((out.logits, out.outputs), (right[0][-2:], right[1])) < CLOSE


@pytest.mark.parametrize("known", [1, 5, 9])
def test_a_chain_goes_on_with_its_own_outputs(model: HeadModel, known: int) -> None:
    reference, outputs = Reference(random_head()), fed(model, TOKENS[0], STATES[0, :known], [known])[1]
    for j in range(known):
        after = reference.row(TOKENS[0][j], STATES[0, j].astype(np.float64), j)[1]
    state = outputs[-1]
    for j in range(known, known + 3):
        logits, after = reference.row(TOKENS[0][j], after, j)
        out = model.forward([Chunk((TOKENS[0][j],), j, (0,), 1)], state[None])
        assert far((out.logits[0], out.outputs[0]), (logits, after)) < CLOSE
        state = out.outputs[0]


def test_rows_that_are_written_anew_leave_no_trace(model: HeadModel) -> None:
    """Three rows of a draft, and then other rows in their place."""
    fed(model, TOKENS[0], STATES[0], [6])
    model.forward([Chunk(TOKENS[1][:3], 6, (0,), 1)], STATES[1, :3])
    out = model.forward([Chunk(TOKENS[0][6:], 6, (0,), 6)], STATES[0, 6:])
    right = wanted(TOKENS[0], STATES[0])
    assert far((out.logits, out.outputs), (right[0][6:], right[1][6:])) < CLOSE


@pytest.mark.parametrize(("pasts", "ends"), [((0, 4, 9), (3, 10, 12)), ((2, 6, 9), (3, 7, 10))])
def test_batch_mates_change_no_bit(model: HeadModel, pasts: tuple[int, ...], ends: tuple[int, ...]) -> None:
    """Chunks of several rows and of one, at different places of sequences of different length, pages out of order."""
    pages = ((7,), (2,), (5,))
    for page, past, tokens, states in zip(pages, pasts, TOKENS, STATES, strict=True):
        if past:
            model.forward([Chunk(tokens[:past], 0, page, 1)], states[:past])
    chunks = [
        Chunk(t[past:end], past, page, end - past)
        for t, page, past, end in zip(TOKENS, pages, pasts, ends, strict=True)
    ]
    parts = [s[past:end] for s, past, end in zip(STATES, pasts, ends, strict=True)]
    together = model.forward(chunks, np.concatenate(parts))
    alone = [model.forward([chunk], part) for chunk, part in zip(chunks, parts, strict=True)]
    np.testing.assert_array_equal(together.logits, np.concatenate([a.logits for a in alone]))
    np.testing.assert_array_equal(together.outputs, np.concatenate([a.outputs for a in alone]))
    right = [wanted(t[:end], s[:end]) for t, s, end in zip(TOKENS, STATES, ends, strict=True)]
    rows = np.concatenate([r[0][past:] for r, past in zip(right, pasts, strict=True)])
    assert np.abs(together.logits - rows).max() < CLOSE


def test_copied_pages_hold_the_same(model: HeadModel) -> None:
    fed(model, TOKENS[0], STATES[0], [8], page=3)
    model.copy_pages([(3, 9)])
    fed(model, TOKENS[1], STATES[1], [12], page=3)
    out = model.forward([Chunk(TOKENS[0][8:], 8, (9,), 4)], STATES[0, 8:])
    assert np.abs(out.logits - wanted(TOKENS[0], STATES[0])[0][8:]).max() < CLOSE


# trees


def path(row: int) -> tuple[int, ...]:
    return (*path(PARENTS[row]), row) if row >= 0 else ()


VISIBLE = tuple(path(row) for row in range(len(PARENTS)))
# each row loses its parent, or sees the row beside it
OFF_BY_ONE = tuple(seen if len(seen) < 3 else (*seen[:-2], seen[-2] - 1, seen[-1]) for seen in VISIBLE)


def grown(model: HeadModel, visible: tuple[tuple[int, ...], ...] = VISIBLE, depths: tuple[int, ...] = DEPTHS) -> Made:
    """The tree as one chunk behind four rows."""
    fed(model, TOKENS[1], STATES[1], [4])
    out = model.forward([Chunk(TOKENS[0][:8], 4, (0,), 8, depths, visible)], STATES[0, :8])
    return out.logits, out.outputs


def right_tree() -> Made:
    reference, rows = Reference(random_head()), []
    for j in range(4):
        reference.row(TOKENS[1][j], STATES[1, j].astype(np.float64), j)
    for row in range(8):
        sees = [*range(4), *(4 + r for r in VISIBLE[row][:-1])]
        rows.append(reference.row(TOKENS[0][row], STATES[0, row].astype(np.float64), 4 + DEPTHS[row], sees))
    return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])


def test_rows_of_a_tree_see_their_own_path(model: HeadModel) -> None:
    assert far(grown(model), right_tree()) < CLOSE


def test_a_mask_or_position_that_is_off_by_one_is_seen(model: HeadModel) -> None:
    everything = tuple(tuple(range(row + 1)) for row in range(8))
    assert far(grown(model, OFF_BY_ONE), right_tree()) > 0.01
    assert far(grown(model, everything), right_tree()) > 0.01
    assert far(grown(model, depths=tuple(range(8))), right_tree()) > 0.001


def test_a_tree_without_a_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="loaded without trees"):
        grown(made(trees=False))


def test_trees_and_chains_share_a_pass(model: HeadModel) -> None:
    fed(model, TOKENS[1], STATES[1], [4])
    chunks = [Chunk(TOKENS[2], 0, (1,), ROWS), Chunk(TOKENS[0][:8], 4, (0,), 8, DEPTHS, VISIBLE)]
    out = model.forward(chunks, np.concatenate([STATES[2], STATES[0, :8]]))
    rows = np.concatenate([wanted(TOKENS[2], STATES[2])[0], right_tree()[0]])
    assert np.abs(out.logits - rows).max() < CLOSE


# precisions


def uneven_head() -> HeadCheckpoint:
    """As for a target in which one channel in eight is a thousand times larger than the others."""
    head = random_head()
    scale = np.where(np.arange(2 * sizes().width) % 8 == 0, 1e-3, 1.0).astype(np.float32)
    return replace(head, tensors={**head.tensors, "fc.weight": head.tensors["fc.weight"] * scale})


def uneven_states() -> np.ndarray:
    """[rows, layers, width]"""
    states = np.random.default_rng(8).standard_normal((ROWS, 2, sizes().width)).astype(np.float32)
    states[..., ::8] *= 1e3
    return states


def overlap(precision: str) -> float:
    """Mean of sum min(q, q in float64) over the rows."""
    head = uneven_head()
    model, reference = made(precision, head=head), Reference(head)
    found = fed(model, TOKENS[0], model.fuse(uneven_states()), [ROWS])[0].astype(np.float64)
    right = wanted(TOKENS[0], reference.fuse(uneven_states()), head)[0]
    p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (found, right))
    shares = np.minimum(p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)).sum(1)
    return float(shares.mean())


@pytest.mark.parametrize(("precision", "least"), [("f32", 0.99999), ("bf16", 0.99), ("int8", 0.98)])
def test_every_precision_is_close(precision: str, least: float) -> None:
    assert overlap(precision) > least


def test_weights_that_are_lent_live_as_long_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 constants only point at their memory."""
    lent: list[weakref.ref[np.ndarray]] = []

    def packed(self: Builder, data: np.ndarray, *more: Any) -> Any:
        lent.append(weakref.ref(data))
        return honest(self, data, *more)

    honest = Builder._packed
    monkeypatch.setattr(Builder, "_packed", packed)
    model = made("bf16")
    gc.collect()
    assert len(lent) > 5
    assert all(data() is not None for data in lent)
    del model
    gc.collect()
    assert all(data() is None for data in lent)


def test_a_fusion_in_int8_would_lose_the_large_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fusing(self: Any) -> ov.Model:
        given = op.parameter([-1, 2 * sizes().width], np.float32)
        return ov.Model([op.result(self.linear(given, ["fc"]))], [given], "fuse")

    monkeypatch.setattr(graphs._Head, "fusing", fusing)
    assert overlap("int8") < 0.95


def test_it_is_the_head_that_was_trained(model: HeadModel) -> None:
    """Against the PyTorch module: prefill, and its unrolled steps as chains from every row."""
    torch = pytest.importorskip("torch")
    from draftproof.distill.net import Cache, HeadNet

    net, states = HeadNet(sizes()), np.random.default_rng(4).standard_normal((ROWS, 2, sizes().width)).astype("f4")
    net.load_state_dict({name: torch.tensor(w) for name, w in random_head().tensors.items()})
    embed = torch.tensor(source().tensor("embed"))
    rows = torch.from_numpy(np.ascontiguousarray(source().tensor("head")[random_head().ids]))
    tokens, cache, unrolled = torch.tensor(TOKENS[0]), Cache([], []), []
    with torch.no_grad():
        state = net.fc(torch.from_numpy(states).flatten(1))[None]
        np.testing.assert_allclose(model.fuse(states), state[0].numpy(), atol=CLOSE)
        for step in range(1, 4):
            state = net(embed[tokens.roll(-step)][None], state, cache)
            unrolled.append(((net.norm(state)[0] @ rows.T).numpy(), state[0].numpy()))
    for row in range(ROWS - 4):
        past = Chunk(TOKENS[0][1 : row + 2], 0, (0,), 1)
        out = model.forward([past], model.fuse(states[: row + 1]))
        for step in range(3):
            if step:
                chunk = Chunk((TOKENS[0][row + 1 + step],), row + step, (0,), 1)
                out = model.forward([chunk], out.outputs[-1:])
            right = unrolled[step][0][row], unrolled[step][1][row]
            assert far((out.logits[0], out.outputs[-1]), right) < 5e-5
