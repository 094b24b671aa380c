"""A tiny Llama-type decoder in float64 NumPy: the independent forward pass behind the toy checkpoints' exact laws.

Knows no file format, no sampling and nothing of the engine. Weights are float32, as every file holds them; all
arithmetic is float64, so that what differs from an engine is the engine's rounding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Floats

Matrix = NDArray[np.float32]
T = TypeVar("T")
Past = tuple[tuple[Floats, Floats], ...]  # per layer: keys (turned by their positions) and values, [tokens, heads, dim]

# One character a word: the only vocabulary that every tokenizer reads alike, with no merges and no spaces to agree on.
# The last special token is a line feed as a byte, which some loaders look for.
SPECIAL = ("<unk>", "<s>", "</s>", "<0x0A>")
UNKNOWN, BEGIN, END = 0, 1, 2
WORDS = (*SPECIAL, *"abcdefghijklmnop")
VISIBLE = range(len(SPECIAL), len(WORDS))

_STATES = 2048  # prefixes whose keys and values are remembered
_LAWS = 200_000  # prefixes whose logits are


@dataclass(frozen=True, slots=True)
class Sizes:
    """Small, and still what every loader takes: a width that is a multiple of 32, heads of 32."""

    vocab: int = len(WORDS)
    width: int = 64
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    ffn: int = 96
    layers: int = 2
    context: int = 2048
    eps: float = 1e-5
    theta: float = 10000.0


@dataclass(frozen=True, slots=True)
class Toy:
    """Sizes and float32 tensors, matrices as [out, in]. `eos` is what the files declare to end a text.

    Names: `embed`, `final_norm`, `head`; per layer i `{i}.attn_norm`, `{i}.q`, `{i}.k`, `{i}.v`, `{i}.o`,
    `{i}.ffn_norm`, `{i}.gate`, `{i}.up`, `{i}.down`. Rotary rows are in halves: dimension j turns with j + head_dim/2.
    """

    sizes: Sizes
    tensors: Mapping[str, Matrix]
    eos: int = END

    def get(self, name: str) -> Floats:
        return self.tensors[name].astype(np.float64)


def forward(toy: Toy, tokens: Sequence[int]) -> Floats:
    """Logits after each token. Shape [tokens, vocab]."""
    return Decoder(toy).extend(_nothing(toy.sizes), tokens)[0]


class Decoder:
    """A toy whose logits can be asked for prefix by prefix; beginnings in common are computed once."""

    def __init__(self, toy: Toy) -> None:
        self._sizes = toy.sizes
        self._weights = {name: toy.get(name) for name in toy.tensors}
        self._pasts: OrderedDict[tuple[int, ...], Past] = OrderedDict()
        self._logits: OrderedDict[tuple[int, ...], Floats] = OrderedDict()

    def logits(self, prefix: tuple[int, ...]) -> Floats:
        """Logits of the token that follows a prefix of at least one token. Shape [vocab], not to be written to."""
        if prefix not in self._logits:
            self._compute(prefix)
        return self._logits[prefix]

    def _compute(self, prefix: tuple[int, ...]) -> None:
        if not prefix:
            raise ValueError("a model says nothing before the first token: give a prompt of at least one")
        known = next((n for n in (len(prefix) - 1, len(prefix) - 2) if prefix[:n] in self._pasts), 0)
        past = self._pasts[prefix[:known]] if known else _nothing(self._sizes)
        rows, whole = self.extend(past, prefix[known:])
        rows.flags.writeable = False
        for n in range(known + 1, len(prefix) + 1):
            _remember(self._logits, prefix[:n], rows[n - known - 1], _LAWS)
        for n in range(max(known, len(prefix) - 2) + 1, len(prefix) + 1):
            _remember(self._pasts, prefix[:n], tuple((k[:n], v[:n]) for k, v in whole), _STATES)

    def extend(self, past: Past, tokens: Sequence[int]) -> tuple[Floats, Past]:
        """Logits after each of `tokens`, which follow those that `past` is of, and the state behind them."""
        s, w = self._sizes, self._weights
        x = w["embed"][np.asarray(tokens, dtype=np.int64)]
        after = []
        for i, (keys, values) in enumerate(past):
            mixed, keys, values = self._attention(i, _norm(x, w[f"{i}.attn_norm"], s.eps), keys, values)
            x = x + mixed @ w[f"{i}.o"].T
            h = _norm(x, w[f"{i}.ffn_norm"], s.eps)
            x = x + (_silu(h @ w[f"{i}.gate"].T) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
            after.append((keys, values))
        return _norm(x, w["final_norm"], s.eps) @ w["head"].T, tuple(after)

    def _attention(self, i: int, x: Floats, keys: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Mixed values [tokens, heads * dim] of the new tokens, and all keys and values."""
        s, w, start, count = self._sizes, self._weights, len(keys), len(x)
        positions = np.arange(start, start + count)
        q = rotate((x @ w[f"{i}.q"].T).reshape(count, s.heads, s.head_dim), positions, s.theta)
        k = rotate((x @ w[f"{i}.k"].T).reshape(count, s.kv_heads, s.head_dim), positions, s.theta)
        keys = np.concatenate([keys, k])
        values = np.concatenate([values, (x @ w[f"{i}.v"].T).reshape(count, s.kv_heads, s.head_dim)])
        mixed = np.empty_like(q)
        seen = np.arange(start + count) <= positions[:, None]
        for head in range(s.heads):
            shared = head * s.kv_heads // s.heads
            scores = np.where(seen, q[:, head] @ keys[:, shared].T / np.sqrt(s.head_dim), -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = weights @ values[:, shared] / weights.sum(axis=1, keepdims=True)
        return mixed.reshape(count, -1), keys, values


def _nothing(s: Sizes) -> Past:
    return tuple(
        (np.empty((0, s.kv_heads, s.head_dim)), np.empty((0, s.kv_heads, s.head_dim))) for _ in range(s.layers)
    )


def _remember(book: OrderedDict[tuple[int, ...], T], prefix: tuple[int, ...], value: T, most: int) -> None:
    book[prefix] = value
    book.move_to_end(prefix)
    if len(book) > most:
        book.popitem(last=False)


def rotate(x: Floats, positions: NDArray[np.int64], theta: float) -> Floats:
    """Turn each pair (j, j + dim/2) of [tokens, heads, dim] by position * theta ** (-2 j / dim)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def _norm(x: Floats, gain: Floats, eps: float) -> Floats:
    scaled: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain
    return scaled


def _silu(x: Floats) -> Floats:
    return x / (1.0 + np.exp(-x))
