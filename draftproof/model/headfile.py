"""A draft head's checkpoint, in the `speculators` convention: config.json and model.safetensors in one directory.

`d2t` holds offsets: draft token i is target token i + d2t[i]. Embedding and output rows that are the target's own need
not be stored; they come from the target. What is ours beside the convention stands under "draftproof" in config.json:
the fingerprint of the target's weights, without which a head would quietly draft for the wrong model.
Layer ids count as Hugging Face's hidden_states do: n is the state before layer n, the last one that after the final
norm. Knows no graph, no training and no proposer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from draftproof.model import hf
from draftproof.model.checkpoint import Matrix, ModelError
from draftproof.model.graph import to_bfloat16

OWN = ("embed_tokens.weight", "lm_head.weight")  # tensors that a head may bring; else they are the target's
_LAYER = "layers.0"
_TARGETS = "verifier_"  # copies of the target's tensors that some trainers leave in


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """What a head looks like. `states`: the target's states that it reads, numbered as in hidden_states."""

    states: tuple[int, ...]
    width: int
    heads: int
    head_dim: int
    ffn: int
    eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """`tensors` by the convention's names; embed_tokens and lm_head are there only if they are the head's own.

    ids: [draft vocab] target ids, rising. `target` is the fingerprint of the target's weights, "" if it is not told.
    """

    sizes: HeadSizes
    tensors: Mapping[str, Matrix]
    ids: NDArray[np.int64]
    target: str
    card: Mapping[str, Any] = field(default_factory=dict)  # how it was made, as far as the file says


def shapes(s: HeadSizes) -> dict[str, tuple[int, ...]]:
    """Every tensor that a head must have, with its shape."""
    inner = s.heads * s.head_dim
    return {
        "fc.weight": (s.width, len(s.states) * s.width),
        f"{_LAYER}.input_layernorm.weight": (s.width,),
        f"{_LAYER}.hidden_norm.weight": (s.width,),
        f"{_LAYER}.self_attn.q_proj.weight": (inner, 2 * s.width),
        f"{_LAYER}.self_attn.k_proj.weight": (inner, 2 * s.width),
        f"{_LAYER}.self_attn.v_proj.weight": (inner, 2 * s.width),
        f"{_LAYER}.self_attn.o_proj.weight": (s.width, inner),
        f"{_LAYER}.post_attention_layernorm.weight": (s.width,),
        f"{_LAYER}.mlp.gate_proj.weight": (s.ffn, s.width),
        f"{_LAYER}.mlp.up_proj.weight": (s.ffn, s.width),
        f"{_LAYER}.mlp.down_proj.weight": (s.width, s.ffn),
        "norm.weight": (s.width,),
    }


def write(head: HeadCheckpoint, directory: Path, card: Mapping[str, object]) -> None:
    """Write config.json and model.safetensors (bfloat16). `card` says how the head was made.

    Raises:
        ModelError: the files cannot be written.
    """
    offsets = head.ids - np.arange(len(head.ids))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.safetensors").write_bytes(_packed({**head.tensors, "d2t": offsets}))
        (directory / "config.json").write_text(json.dumps(_config(head, card), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{directory} cannot be written ({error.strerror or error}): free some space") from error


def _config(head: HeadCheckpoint, card: Mapping[str, object]) -> dict[str, object]:
    s = head.sizes
    layer = {
        "model_type": "llama",
        "hidden_size": s.width,
        "intermediate_size": s.ffn,
        "num_hidden_layers": 1,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.heads,
        "head_dim": s.head_dim,
        "rms_norm_eps": s.eps,
        "rope_theta": s.rope_theta,
        "hidden_act": "silu",
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(head.ids),
        "norm_before_residual": False,
        "target_hidden_size": s.width,
        "eagle_aux_hidden_state_layer_ids": list(s.states),
        "transformer_layer_config": layer,
        "draftproof": {"target": head.target, **card},
    }


def _packed(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """The safetensors layout: eight bytes of length, a JSON header, raw numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, values in tensors.items():
        whole = values.dtype == np.int64
        blob = values.astype("<i8").tobytes() if whole else to_bfloat16(values).astype("<u2").tobytes()
        ends = [at, at + len(blob)]
        header[name] = {"dtype": "I64" if whole else "BF16", "shape": list(values.shape), "data_offsets": ends}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def read(directory: Path) -> HeadCheckpoint:
    """A head as it is stored, whoever made it.

    Raises:
        ModelError: a file is missing or damaged, or this is a head of another kind.
    """
    config = _read_config(directory)
    if config.get("speculators_model_type") != "eagle3":
        _refuse(
            directory, f"speculators_model_type is {config.get('speculators_model_type')!r}", "only eagle3 is known"
        )
    if config.get("norm_before_residual"):
        _refuse(directory, "norm_before_residual is set", "only heads without it are known")
    stored = hf.table(directory / "model.safetensors")
    sizes = _sizes(directory, config)
    _check_tensors(directory, stored, sizes)
    ids = _ids(directory, stored["d2t"], config)
    rows = stored.get("lm_head.weight")
    if rows is not None and rows.shape[0] != len(ids):
        _refuse(directory, f"lm_head.weight has {rows.shape[0]} rows for {len(ids)} tokens", "d2t is another's")
    known = (*shapes(sizes), *(name for name in OWN if name in stored))
    card = config.get("draftproof", {})
    if not isinstance(card, dict):
        _refuse(directory, "config.json garbles draftproof", "it must be an object")
    return HeadCheckpoint(sizes, {n: stored[n].read() for n in known}, ids, str(card.get("target", "")), card)


def _check_tensors(directory: Path, stored: Mapping[str, hf.Stored], sizes: HeadSizes) -> None:
    wanted = shapes(sizes)
    for name, shape in wanted.items():
        if name not in stored:
            _refuse(directory, f"tensor {name} is missing", "this checkpoint is not complete")
        if stored[name].shape != shape:
            _refuse(directory, f"tensor {name} has shape {stored[name].shape}, not {shape}", "config.json is another's")
    if "d2t" not in stored:
        _refuse(directory, "tensor d2t is missing", "a head needs its vocabulary")
    for name in OWN:
        if name in stored and stored[name].shape[1:] != (sizes.width,):
            _refuse(directory, f"tensor {name} has shape {stored[name].shape}", f"its rows need {sizes.width} numbers")
    for name in stored:
        if name not in wanted and name not in (*OWN, "d2t", "t2d") and not name.startswith(_TARGETS):
            _refuse(
                directory, f"tensor {name} is of another kind of layer or head", "only plain Llama layers are known"
            )


def _ids(directory: Path, stored: hf.Stored, config: Mapping[str, Any]) -> NDArray[np.int64]:
    if stored.dtype != "I64" or len(stored.shape) != 1:
        _refuse(directory, f"d2t is {stored.dtype} of shape {stored.shape}", "it must be a list of whole numbers (I64)")
    ids = np.array(stored.raw()) + np.arange(stored.shape[0])
    if len(ids) != config.get("draft_vocab_size"):
        _refuse(
            directory, f"d2t has {len(ids)} entries, not {config.get('draft_vocab_size')}", "config.json is another's"
        )
    if len(ids) == 0 or ids[0] < 0 or (np.diff(ids) <= 0).any():
        _refuse(directory, "d2t does not name rising token ids", "it must hold offsets: target id minus draft id")
    return ids


def _sizes(directory: Path, config: Mapping[str, Any]) -> HeadSizes:
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        _refuse(directory, "config.json lacks transformer_layer_config", "this is no eagle3 head")
    rope: dict[str, Any] = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        _refuse(directory, f"config.json garbles its rope parameters: {rope!r}", "this is no eagle3 head")
    _refuse_variants(directory, layer, rope)
    try:
        heads, width = int(layer["num_attention_heads"]), int(layer["hidden_size"])
        return HeadSizes(
            tuple(int(n) for n in config["eagle_aux_hidden_state_layer_ids"]),
            width,
            heads,
            int(layer.get("head_dim") or width // heads),
            int(layer["intermediate_size"]),
            float(layer.get("rms_norm_eps", 1e-6)),
            float(rope.get("rope_theta") or layer.get("rope_theta") or 10000.0),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        _refuse(directory, f"config.json lacks or garbles {error}", "this is no eagle3 head")


def _refuse_variants(directory: Path, layer: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    heads = layer.get("num_attention_heads")
    if layer.get("num_key_value_heads", heads) != heads or layer.get("num_hidden_layers", 1) != 1:
        _refuse(directory, "it has several layers or grouped keys", "only one layer with a key for each head is known")
    if layer.get("hidden_act", "silu") != "silu":
        _refuse(directory, f"its activation is {layer['hidden_act']}", "only silu is known")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        _refuse(directory, f"its rope scaling is {kind}", "only heads without it are known")


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _refuse(directory, f"config.json cannot be read ({error})", "give the directory of a head")
    return config if isinstance(config, dict) else {}


def _refuse(directory: Path, reason: str, fix: str) -> NoReturn:
    raise ModelError(f"head {directory}: {reason}; {fix}")
