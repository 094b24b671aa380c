"""A random head for the toy target, an independent forward pass of it, and engines that draft with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof import load
from draftproof.draft.base import Ask
from draftproof.engine import Engine
from draftproof.model import headfile
from draftproof.model.checkpoint import Checkpoint
from draftproof.model.directory import checkpoint
from draftproof.model.headfile import HeadCheckpoint, HeadSizes, shapes
from draftproof.model.load import ModelOptions
from draftproof.types import Chunk, Draft
from draftproof.verify import toy

Rows = NDArray[np.float64]
IDS = np.array([4, 5, 7, 8, 9, 11, 12, 13, 15, 18], dtype=np.int64)
PROMPTS = [[4, 5, 6], [9], [7, 7, 12, 4, 5, 5, 8], [18, 6]]
OPTIONS = ModelOptions(precision="f32", kv_pages=64, context=192, threads=1)


@cache
def target() -> Path:
    return toy.write_hf(toy.pair().target, Path(mkdtemp()) / "target")


@cache
def source() -> Checkpoint:
    return checkpoint(str(target()))


def sizes() -> HeadSizes:
    a = source().architecture
    return HeadSizes((1, 2), a.width, a.heads, a.head_dim, a.ffn, a.eps, a.rope_theta)


def random_head(seed: int = 1, ids: NDArray[np.int64] = IDS) -> HeadCheckpoint:
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes(sizes()).items():
        spread = rng.standard_normal(shape) / np.sqrt(shape[-1])
        made[name] = (1 + 0.1 * spread if len(shape) == 1 else 1.5 * spread).astype(np.float32)
    return HeadCheckpoint(sizes(), made, ids, source().fingerprint)


@cache
def head_path() -> Path:
    path = Path(mkdtemp()) / "head"
    headfile.write(random_head(), path, {})
    return path


def engine(
    draft: str = "head", k: int = 3, nodes: int = 0, head: Path | None = None, prefix_cache: bool = False, **more: Any
) -> Engine:
    name, options = f"{draft}:{head or head_path()}", replace(OPTIONS, **more)
    return load(
        str(target()), name, k=k, nodes=nodes, options=options, draft_options=OPTIONS, prefix_cache=prefix_cache
    )


class Watching:
    """Stands in for the engine's proposer and keeps what was asked and answered."""

    def __init__(self, engine: Engine) -> None:
        self.inner: Any = engine.proposer
        self.drafts: list[tuple[int, tuple[int, ...], Draft]] = []  # request, committed tokens, draft
        engine.proposer = self

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts: list[Draft] = self.inner.propose(asks)
        for ask, draft in zip(asks, drafts, strict=True):
            self.drafts.append((ask.view.request.id, tuple(ask.view.tokens), draft))
        return drafts

    def observe(self, seen: Any) -> None:
        self.inner.observe(seen)

    def forget(self, request: int) -> None:
        self.inner.forget(request)


def states_of(engine: Engine, tokens: Sequence[int]) -> tuple[Rows, Rows]:
    """The target's (logits, states) after each token, in one plain pass over pages that nobody else may need."""
    pages = tuple(range(-(-len(tokens) // engine.target.info.page_size)))
    out = engine.target.forward([Chunk(tuple(tokens), 0, pages, len(tokens))])
    assert out.hidden is not None
    return out.logits.astype(np.float64), out.hidden.astype(np.float64)


def _norm(x: Rows, gain: Rows) -> Rows:
    return np.asarray(x / np.sqrt((x * x).mean() + sizes().eps) * gain)


def _turned(x: Rows, position: int) -> Rows:
    """x: [heads, head_dim], halves side by side."""
    s = sizes()
    angle = position / s.rope_theta ** (np.arange(0, s.head_dim, 2) / s.head_dim)
    cos, sin = np.cos(angle), np.sin(angle)
    low, high = x[:, : s.head_dim // 2], x[:, s.head_dim // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], 1)


class Reference:
    """The head's forward pass, row after row in float64. A row is a token, a state, a position, and what it may see."""

    def __init__(self, head: HeadCheckpoint) -> None:
        self._w = {
            name.removeprefix("layers.0.").removesuffix(".weight"): t.astype(np.float64)
            for name, t in head.tensors.items()
        }
        self._embed = source().tensor("embed").astype(np.float64)
        self._rows_out = source().tensor("head").astype(np.float64)[head.ids]
        self._keys, self._values = list[Rows](), list[Rows]()

    def fuse(self, states: Rows) -> Rows:
        """states: [rows, layers, width]."""
        return np.asarray(states.reshape(len(states), -1).astype(np.float64) @ self._w["fc"].T)

    def row(self, token: int, state: Rows, position: int, sees: Sequence[int] | None = None) -> tuple[Rows, Rows]:
        """(logits, output). sees: numbers of the rows so far that it may look at, itself apart; None: all of them."""
        s, w = sizes(), self._w
        x = np.concatenate([_norm(self._embed[token], w["input_layernorm"]), _norm(state, w["hidden_norm"])])
        q, k, v = ((w[f"self_attn.{n}_proj"] @ x).reshape(s.heads, s.head_dim) for n in "qkv")
        self._keys.append(_turned(k, position))
        self._values.append(v)
        seen = [*(range(len(self._keys) - 1) if sees is None else sees), len(self._keys) - 1]
        keys, values = np.stack([self._keys[i] for i in seen]), np.stack([self._values[i] for i in seen])
        scores = np.einsum("hd,rhd->hr", _turned(q, position), keys) / np.sqrt(s.head_dim)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        state = state + w["self_attn.o_proj"] @ np.einsum("hr,rhd->hd", weights, values).reshape(-1)
        y = _norm(state, w["post_attention_layernorm"])
        gate = w["mlp.gate_proj"] @ y
        output = state + w["mlp.down_proj"] @ (gate / (1 + np.exp(-gate)) * (w["mlp.up_proj"] @ y))
        return np.asarray(self._rows_out @ _norm(output, w["norm"])), output


def laws(head: HeadCheckpoint, tokens: Sequence[int], states: Rows, drafted: Sequence[int]) -> list[Rows]:
    """q over the target's vocabulary for every draft position: one row after the other, in float64.

    states: [len(tokens) - 1, layers, width], those after each token but the last.
    """
    reference, found = Reference(head), list[Rows]()
    given = reference.fuse(states)
    after: Rows = np.zeros(0)
    for j, token in enumerate([*tokens[1:], *drafted]):
        logits, after = reference.row(token, given[j] if j < len(given) else after, j)
        if j >= len(given) - 1:
            law = np.zeros(source().architecture.vocab)
            law[head.ids] = np.exp(logits - logits.max())
            found.append(law / law.sum())
    return found
