"""The OpenVINO model against the NumPy reference: architectures, ragged batches, roll-backs, trees, hidden states."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from tiny_models import TINY, weights

from draftproof.model import graph, reference
from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import Architecture, Checkpoint, ModelError
from draftproof.model.openvino import OpenVINOModel, OpenVINOOptions
from draftproof.model.selftest import with_promise
from draftproof.types import Chunk

SMALL = replace(TINY, width=64, head_dim=16, ffn=96, vocab=70, rope_theta=1000.0)
ARCHITECTURES = {
    "llama": SMALL,
    "untied": replace(SMALL, tied=False),
    "llama3 rope": replace(SMALL, rope_factors=(1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.0, 4.0)),
    "all heads": replace(SMALL, kv_heads=4),
    "qwen2": replace(SMALL, family="qwen2", attention_bias=True),
    "qwen3": replace(SMALL, family="qwen3", qk_norm=True, head_dim=32),
}
PAGE = 32


def checkpoint(a: Architecture) -> Checkpoint:
    scaled = {name: w * (0.3 if w.ndim == 2 else 1.0) for name, w in weights(a).items()}
    return Checkpoint(a, scaled.__getitem__, "test")


def loaded(a: Architecture, folder: Path, precision: str = "f32", **options: object) -> OpenVINOModel:
    graph.save(checkpoint(a), precision, folder)
    base = OpenVINOOptions(precision, kv_pages=16, threads=1)
    return OpenVINOModel(folder, ModelInfo("tiny", 0, 400, 0, 0), replace(base, **options))  # type: ignore[arg-type]


def close(ours: NDArray[np.float32], exact: NDArray[np.float32]) -> bool:
    return bool(np.allclose(ours, exact, atol=2e-4 * float(np.abs(exact).max())))


def random_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(SMALL.vocab) for _ in range(count))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_prefill_equals_the_reference(name: str, tmp_path: Path) -> None:
    a = ARCHITECTURES[name]
    model, tokens = loaded(a, tmp_path), random_tokens(random.Random(1), 70)
    ours = model.forward([Chunk(tokens, 0, (5, 2, 9), 70)]).logits
    exact = reference.logits(checkpoint(a), tokens)
    assert close(ours, exact)
    assert not close(ours[1:], exact[:-1])  # the comparison can fail
    assert model.info.vocab == a.vocab
    assert model.info.page_size == PAGE


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_random_ragged_programs_with_roll_back(name: str, tmp_path: Path) -> None:
    """Sequences grow by ragged chunks in mixed batches and are cut back at random; logits stay those of a clean run."""
    a, rng = ARCHITECTURES[name], random.Random(2)
    model, exact = loaded(a, tmp_path), checkpoint(a)
    tables = [(0, 7, 3), (1, 12, 4), (2, 5, 8), (6, 9, 10)]
    for _ in range(12):
        state: list[tuple[int, ...]] = [() for _ in tables]
        for _ in range(6):
            chosen = rng.sample(range(4), rng.randint(1, 4))
            new = {s: random_tokens(rng, rng.randint(2, 11)) for s in chosen}
            chunks = [Chunk(new[s], len(state[s]), tables[s], rng.randint(1, len(new[s]))) for s in chosen]
            rows = iter(model.forward(chunks).logits)
            for s, chunk in zip(chosen, chunks, strict=True):
                state[s] += new[s]
                wanted = reference.logits(exact, state[s])[-chunk.wanted :]
                assert close(np.stack([next(rows) for _ in range(chunk.wanted)]), wanted)
                state[s] = state[s][: len(state[s]) - rng.randint(0, len(new[s]))]  # a smaller past rolls back
        assert all(len(s) < 3 * PAGE for s in state)


def grown(model: OpenVINOModel) -> list[NDArray[np.float32]]:
    """Logits of a sequence that grows by one to four rows a pass, with a roll-back, beside another one at times."""
    rng, found, past = random.Random(4), list[NDArray[np.float32]](), 0
    for rows in (9, 2, 3, 2, 4, 1, 3, 3, 2, 2, 5, 2):
        chunk = Chunk(random_tokens(rng, rows), past, (3, 4, 5), rows)
        other = [Chunk(random_tokens(rng, 2), 0, (8,), 1)] * (rows == 4)
        found.append(model.forward([chunk, *other]).logits)
        past += rows - rng.randrange(2)
    return found


def test_lanes_change_no_bit(tmp_path: Path) -> None:
    plain, lanes = (loaded(SMALL, tmp_path / str(n), "int8", lanes=n) for n in ((), (2, 3)))
    assert all(np.array_equal(a, b) for a, b in zip(grown(plain), grown(lanes), strict=True))


def test_planted_lane_with_pages_of_its_own_is_seen(tmp_path: Path) -> None:
    plain, lanes = (loaded(SMALL, tmp_path / str(n), "int8", lanes=n) for n in ((), (2, 3)))
    for name, cache in lanes._graph._caches.items():
        lanes._graph._lanes[3].set_tensor(name, ov.Tensor(cache.element_type, cache.shape))
    assert not all(np.array_equal(a, b) for a, b in zip(grown(plain), grown(lanes), strict=True))


def test_stale_slot_would_be_seen(tmp_path: Path) -> None:
    """Planted fault: a rejected token's KV is kept, so that the next chunk begins one slot too late."""
    model, tokens = loaded(SMALL, tmp_path), random_tokens(random.Random(3), 20)
    model.forward([Chunk(tokens[:11], 0, (0,), 1)])  # token 10 was a rejected draft
    right = reference.logits(checkpoint(SMALL), (*tokens[:10], *tokens[12:15]))[-3:]
    stale = model.forward([Chunk(tokens[12:15], 11, (0,), 3)]).logits
    assert not close(stale, right)
    assert close(model.forward([Chunk(tokens[12:15], 10, (0,), 3)]).logits, right)


def test_only_wanted_rows_reach_the_last_product(tmp_path: Path) -> None:
    """A long prompt must not allocate vocabulary times prompt floats."""
    model = loaded(SMALL, tmp_path)
    tokens = random_tokens(random.Random(4), 300)
    pages = tuple(range(10))
    assert model.forward([Chunk(tokens, 0, pages, 1)]).logits.shape == (1, SMALL.vocab)
    assert model.forward([Chunk(tokens, 0, pages, 0)]).logits.shape == (0, SMALL.vocab)
    widest = max(t.shape[0] for t in (model._graph._request.get_output_tensor(0),))
    assert widest == 0


def test_copy_pages_and_move_slots(tmp_path: Path) -> None:
    model, tokens = loaded(SMALL, tmp_path), random_tokens(random.Random(5), 60)
    model.forward([Chunk(tokens[:50], 0, (0, 1), 1)])
    model.copy_pages([(0, 4), (1, 6)])
    model.forward([Chunk(random_tokens(random.Random(6), 50), 0, (0, 1), 1)])  # the original is overwritten
    exact = reference.logits(checkpoint(SMALL), tokens[:53])[-3:]
    assert close(model.forward([Chunk(tokens[50:53], 50, (4, 6), 3)]).logits, exact)
    assert not close(model.forward([Chunk(tokens[50:53], 50, (0, 1), 3)]).logits, exact)


def test_tree_in_one_pass(tmp_path: Path) -> None:
    """Each branch's logits are those of verifying the branch alone; then the accepted path moves to its place."""
    model, rng = loaded(SMALL, tmp_path, trees=True), random.Random(7)
    prompt, (root, a, b, c, d) = random_tokens(rng, 33), random_tokens(rng, 5)
    model.forward([Chunk(prompt, 0, (0, 1), 1)])
    # root -> a -> c, root -> b -> d
    seen = ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 4))
    plain = Chunk(random_tokens(rng, 6), 0, (8,), 2)  # a chain in the same pass
    tree = Chunk((root, a, b, c, d), 33, (0, 1), 5, (0, 1, 1, 2, 2), seen)
    rows = model.forward([plain, tree]).logits[2:]
    exact = checkpoint(SMALL)
    assert close(rows[[0, 1, 3]], reference.logits(exact, (*prompt, root, a, c))[-3:])
    assert close(rows[[0, 2, 4]], reference.logits(exact, (*prompt, root, b, d))[-3:])
    assert not close(rows[[0, 2, 4]], reference.logits(exact, (*prompt, root, a, d))[-3:])
    model.move_slots((0, 1), [(35, 34), (37, 35)])  # b and d become slots 34 and 35
    after = model.forward([Chunk((c, a), 36, (0, 1), 2)]).logits
    assert close(after, reference.logits(exact, (*prompt, root, b, d, c, a))[-2:])


def test_hidden_states_of_all_rows(tmp_path: Path) -> None:
    model, tokens = loaded(SMALL, tmp_path, hidden_layers=(0, -1)), random_tokens(random.Random(8), 9)
    out = model.forward([Chunk(tokens, 0, (3,), 1)])
    assert out.hidden is not None
    assert out.hidden.shape == (9, 2, SMALL.width)
    head = checkpoint(SMALL).tensor("embed")
    assert close(out.hidden[:, 1] @ head.T, reference.logits(checkpoint(SMALL), tokens))
    with pytest.raises(ModelError, match="layer 7"):
        loaded(SMALL, tmp_path, hidden_layers=(7,))


@pytest.mark.parametrize(("precision", "bound"), [("f32", 1e-4), ("int8", 0.1), ("int4", 0.5)])
def test_precisions_stay_near(precision: str, bound: float, tmp_path: Path) -> None:
    model, tokens = loaded(SMALL, tmp_path, precision), random_tokens(random.Random(9), 40)
    ours = model.forward([Chunk(tokens, 0, (0, 1), 40)]).logits
    exact = reference.logits(checkpoint(SMALL), tokens)
    error = float(np.abs(ours - exact).mean() / np.abs(exact).mean())
    assert error < bound
    assert precision == "f32" or error > 1e-4  # it really is another precision


def test_int4_loses_nothing_of_a_4_bit_file(tmp_path: Path) -> None:
    """Weights that are a scale times 0 .. 15 plus a minimum, in groups of 32, come back as they were."""
    rng = np.random.default_rng(10)

    def blocks(w: NDArray[np.float32]) -> NDArray[np.float32]:
        if w.ndim == 1 or len(w) == SMALL.vocab:
            return w if w.ndim == 1 else np.float32(0.01) * rng.integers(-127, 128, w.shape).astype(np.float32)
        codes = rng.integers(0, 16, (len(w), w.shape[1] // 32, 32)).astype(np.float32)
        codes[..., 0], codes[..., 1] = 0, 15
        low = rng.uniform(-0.3, -0.1, (len(w), w.shape[1] // 32, 1)).astype(np.float32)
        return (codes * np.float32(0.02) + low).reshape(w.shape)

    exact = {name: blocks(w) for name, w in weights(SMALL).items()}
    exact["embed"][:, 0] = exact["embed"][:, 32] = 1.27  # the block's largest fixes the scale
    source = Checkpoint(SMALL, exact.__getitem__, "test")
    graph.save(source, "int4", tmp_path)
    model = OpenVINOModel(tmp_path, ModelInfo("tiny", 0, 400, 0, 0), OpenVINOOptions("int4", kv_pages=8, threads=1))
    tokens = random_tokens(random.Random(11), 30)
    assert close(model.forward([Chunk(tokens, 0, (0,), 30)]).logits, reference.logits(source, tokens))


def test_self_test_promises_only_what_it_sees(tmp_path: Path) -> None:
    model = loaded(SMALL, tmp_path)
    assert with_promise(model).bitwise

    class Shaky(OpenVINOModel):
        """Rows depend on how many rows there are, by one unit in the last place."""

        def forward(self, chunks):  # type: ignore[no-untyped-def]
            out = super().forward(chunks)
            if sum(len(c.tokens) for c in chunks) > 40:
                out = replace(out, logits=np.nextafter(out.logits, np.float32(np.inf)))
            return out

    shaky = Shaky(tmp_path, ModelInfo("tiny", 0, 400, 0, 0), OpenVINOOptions(kv_pages=16, threads=1))
    assert with_promise(shaky).max_rows == 32
    assert with_promise(shaky).bitwise


def test_unreadable_graphs_are_refused(tmp_path: Path) -> None:
    info, options = ModelInfo("tiny", 0, 400, 0, 0), OpenVINOOptions(kv_pages=4)
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "openvino_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read"):
        OpenVINOModel(tmp_path, info, options)
    with pytest.raises(ModelError, match="int16"):
        graph.save(checkpoint(SMALL), "int16", tmp_path)
    with pytest.raises(ModelError, match="multiples of 32"):
        graph.save(checkpoint(replace(SMALL, ffn=80)), "int4", tmp_path)
