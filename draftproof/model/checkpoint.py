"""What a weight file holds, whatever its format: numbers of the architecture and float32 matrices.

Knows nothing of OpenVINO, of files or of tokenizers. Covers the Llama family: RMS norm, rotary positions in the
half-split ("NeoX") layout, grouped-query attention, SwiGLU. Readers bring their file's layout into this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]


class ModelError(ValueError):
    """A model that cannot be loaded or used. One line, with the reason and the fix."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a Llama-type decoder. `rope_factors` divides the rotary frequencies (Llama 3 scaling), one per pair."""

    family: str  # "llama", "qwen2", "qwen3"
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    rope_factors: tuple[float, ...] = ()
    attention_bias: bool = False  # q, k and v have bias vectors (qwen2)
    qk_norm: bool = False  # RMS norm of each head's q and k (qwen3)
    tied: bool = True  # the output head is the embedding matrix


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An architecture and a way to get its tensors.

    `tensor(name)` gives float32 arrays, matrices as [out, in], rotary rows in half-split order. Names: `embed`,
    `final_norm`, `head` (absent when tied); per layer i: `{i}.attn_norm`, `{i}.q`, `{i}.k`, `{i}.v`, `{i}.o`,
    `{i}.ffn_norm`, `{i}.gate`, `{i}.up`, `{i}.down`; with attention_bias `{i}.q_bias`, `{i}.k_bias`, `{i}.v_bias`;
    with qk_norm `{i}.q_norm`, `{i}.k_norm`.
    """

    architecture: Architecture
    tensor: Callable[[str], Matrix]
    fingerprint: str  # sha256 of the weight file(s), hex


def shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this architecture has, by name, with its shape."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    out: dict[str, tuple[int, ...]] = {"embed": (a.vocab, a.width), "final_norm": (a.width,)}
    if not a.tied:
        out["head"] = (a.vocab, a.width)
    layer: dict[str, tuple[int, ...]] = {"attn_norm": (a.width,), "q": (q, a.width), "k": (kv, a.width)}
    layer |= {"v": (kv, a.width), "o": (a.width, q), "ffn_norm": (a.width,)}
    layer |= {"gate": (a.ffn, a.width), "up": (a.ffn, a.width), "down": (a.width, a.ffn)}
    if a.attention_bias:
        layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if a.qk_norm:
        layer |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    for i in range(a.layers):
        out |= {f"{i}.{name}": shape for name, shape in layer.items()}
    return out


def misfit(a: Architecture, names: Mapping[str, str], found: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why the tensors `found` (by their file's names) are not those of the architecture, or None if they are."""
    for name, shape in shapes(a).items():
        stored = found.get(names[name])
        if stored is None:
            return f"the tensor {names[name]} is missing"
        if stored != shape:
            return f"the tensor {names[name]} has shape {stored}, not {shape}"
    extra = sorted(set(found) - set(names.values()))
    return f"it holds {len(extra)} tensors that a plain {a.family} model lacks, such as {extra[0]}" if extra else None
