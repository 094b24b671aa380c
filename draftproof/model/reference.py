"""A float32 forward pass in NumPy, straight from the checkpoint's matrices: what conversions are compared with.

Written for clarity, not speed: no cache, one sequence, all rows. Shares no code with the OpenVINO graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.model.checkpoint import Architecture, Checkpoint, Matrix

Rotate = Callable[[Matrix], Matrix]


def logits(checkpoint: Checkpoint, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits after each token. Shape [tokens, vocab]."""
    a, get = checkpoint.architecture, checkpoint.tensor
    embed = get("embed")
    x = embed[np.asarray(tokens)]
    rotate = _rotary(a, len(tokens))
    for i in range(a.layers):
        x = x + _attention(a, get, i, _norm(x, get(f"{i}.attn_norm"), a.eps), rotate)
        h = _norm(x, get(f"{i}.ffn_norm"), a.eps)
        gate = h @ get(f"{i}.gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ get(f"{i}.up").T)) @ get(f"{i}.down").T
    head = embed if a.tied else get("head")
    return np.asarray(_norm(x, get("final_norm"), a.eps) @ head.T, dtype=np.float32)


def _norm(x: Matrix, gain: Matrix, eps: float) -> Matrix:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * gain, dtype=np.float32)


def _rotary(a: Architecture, count: int) -> Rotate:
    """A function that turns [tokens, heads, head_dim] by position, pairing dimension j with j + head_dim / 2."""
    frequencies = 1.0 / a.rope_theta ** (np.arange(0, a.head_dim, 2) / a.head_dim)
    if a.rope_factors:
        frequencies = frequencies / np.asarray(a.rope_factors)
    angles = np.outer(np.arange(count), frequencies)[:, None, :]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rotate(x: Matrix) -> Matrix:
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    return rotate


def _attention(a: Architecture, get: Callable[[str], Matrix], i: int, x: Matrix, rotate: Rotate) -> Matrix:
    def heads(name: str, count: int) -> Matrix:
        flat = x @ get(f"{i}.{name}").T
        if a.attention_bias:
            flat = flat + get(f"{i}.{name}_bias")
        return flat.reshape(len(x), count, a.head_dim)

    q, k, v = heads("q", a.heads), heads("k", a.kv_heads), heads("v", a.kv_heads)
    if a.qk_norm:
        q, k = _norm(q, get(f"{i}.q_norm"), a.eps), _norm(k, get(f"{i}.k_norm"), a.eps)
    q = rotate(q)
    k, v = (np.repeat(t, a.heads // a.kv_heads, axis=1) for t in (rotate(k), v))
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(a.head_dim**-0.5)
    scores = np.where(np.tri(len(x), dtype=bool), scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)
    return np.asarray(mixed @ get(f"{i}.o").T, dtype=np.float32)
