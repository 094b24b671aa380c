"""Reads a GGUF file into a Checkpoint and tokenizer files.

Knows the file's layout and the Llama family's names in it. Does not know OpenVINO, the cache or how a graph is built.
The header is parsed here rather than with `gguf.GGUFReader`, which takes seconds for a vocabulary and can hang on a
damaged one; the quantisation formats are that package's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from draftproof.model.checkpoint import Architecture, Checkpoint, Matrix, ModelError, misfit, shapes
from draftproof.model.fetch import sha256_file
from draftproof.model.gguf_vocab import build_from_gguf
from draftproof.model.tokenizer import TokenizerFiles

FAMILIES = ("llama", "qwen2", "qwen3")
RECURRENT = ("mamba", "rwkv", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "plamo2", "lfm2", "qwen3next")
_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
}
_FACTORS = "rope_freqs.weight"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _DamagedError(ValueError):
    """The bytes are not what the format says."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor as the file holds it: quantised type, shape [out, in], first byte."""

    kind: int
    shape: tuple[int, ...]
    start: int


class _Cursor:
    """Walks over the header. Every read is checked against the end of the file."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise _DamagedError(f"the file ends at byte {len(self.data)}, inside its header")
        self.at += size
        return self.data[self.at - size : self.at].tobytes()

    def scalar(self, code: str) -> int | float | bool:
        return cast(int | float | bool, struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0])

    def whole(self, code: str = "Q") -> int:
        return int(self.scalar(code))

    def text(self) -> str:
        return self.take(self.whole()).decode("utf-8")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.whole("I"), self.whole())
        if kind not in _SCALARS:
            raise _DamagedError(f"unknown value type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[object]:
        if kind in _SCALARS:
            item = np.dtype("<" + _SCALARS[kind])
            return cast(list[object], np.frombuffer(self.take(item.itemsize * count), item).tolist())
        if count > len(self.data):
            raise _DamagedError(f"an array of {count} items at byte {self.at}")
        return [self.value(kind) for _ in range(count)]


class _File:
    """Metadata and tensor table of one GGUF file. The data stays on disk until asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        cursor = _Cursor(self.data)
        if cursor.take(4) != b"GGUF":
            raise _DamagedError("it does not start with the letters GGUF")
        version = cursor.whole("I")
        if version not in (2, 3):
            raise _DamagedError(f"GGUF version {version} (2 and 3, little-endian, are read)")
        tensors, fields = cursor.whole(), cursor.whole()
        self.meta: dict[str, object] = {}
        for _ in range(fields):
            key = cursor.text()
            self.meta[key] = cursor.value(cursor.whole("I"))
        table = [self._entry(cursor) for _ in range(tensors)]
        align = int(cast(int, self.meta.get("general.alignment", 32)))
        if align <= 0:
            raise _DamagedError(f"alignment {align}")
        base = -(-cursor.at // align) * align
        self.tensors = {name: _Stored(t.kind, t.shape, t.start + base) for name, t in table}
        for name in self.tensors:
            self._raw(name)

    @staticmethod
    def _entry(cursor: _Cursor) -> tuple[str, _Stored]:
        name, rank = cursor.text(), cursor.whole("I")
        if rank > 4:
            raise _DamagedError(f"tensor {name} has {rank} dimensions")
        shape = tuple(cursor.whole() for _ in range(rank))[::-1]
        return name, _Stored(cursor.whole("I"), shape, cursor.whole())

    def _raw(self, name: str) -> NDArray[np.uint8]:
        """Bytes of a tensor, [..., bytes of a row]."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quant_shape_to_byte_shape

        t = self.tensors[name]
        if t.kind not in [k.value for k in GGML_QUANT_SIZES]:
            raise _DamagedError(f"tensor {name} has the unknown type {t.kind}")
        kind = GGMLQuantizationType(t.kind)
        shape = tuple(int(n) for n in quant_shape_to_byte_shape(t.shape, kind))
        size = int(np.prod([int(n) for n in shape], dtype=object))
        if t.start + size > len(self.data):
            raise _DamagedError(f"the file ends at byte {len(self.data)}, before the end of tensor {name}")
        return self.data[t.start : t.start + size].reshape(shape)

    def tensor(self, name: str) -> Matrix:
        from gguf import GGMLQuantizationType, dequantize

        kind = GGMLQuantizationType(self.tensors[name].kind)
        try:
            out = dequantize(np.asarray(self._raw(name)), kind)
        except NotImplementedError:
            _refuse(self.path, f"tensor {name} is quantised as {kind.name}", "use a Q8_0, Q4_1, Q4_K_M or F16 file")
        return np.ascontiguousarray(out, dtype=np.float32)


def _refuse(path: Path, reason: str, fix: str) -> NoReturn:
    raise ModelError(f"{path}: {reason}; {fix}")


def read(path: Path, digest: Callable[[Path], str] = sha256_file) -> tuple[Checkpoint, TokenizerFiles]:
    """The model in a GGUF file. Raises ModelError for what cannot be read faithfully."""
    file = _opened(path)
    a = _architecture(path, file)
    names = _names(a)
    wrong = misfit(a, names, {name: t.shape for name, t in file.tensors.items() if name != _FACTORS})
    if wrong:
        _refuse(path, wrong, f"fetch or convert the model again, or use a plain {a.family} model")
    permuted = {"q": a.heads, "k": a.kv_heads, "q_bias": a.heads, "k_bias": a.kv_heads} if a.family == "llama" else {}

    def tensor(name: str) -> Matrix:
        out = file.tensor(names[name])
        heads = permuted.get(name.rpartition(".")[2])
        return half_split(out, heads) if heads else out

    return Checkpoint(a, tensor, digest(path)), build_from_gguf(file.meta, str(path))


def _opened(path: Path) -> _File:
    try:
        return _File(path)
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        _refuse(path, f"not a readable GGUF file ({error})", "it is damaged or incomplete: fetch it again")
    except OSError as error:
        _refuse(path, f"cannot be opened ({error.strerror})", "check the path and its permissions")


def in_four_bits(path: Path) -> bool:
    """Whether its layers are stored as Q4_1. Raises ModelError for a file that cannot be read."""
    from gguf import GGMLQuantizationType

    kinds = {t.kind for name, t in _opened(path).tensors.items() if name.startswith("blk.") and len(t.shape) == 2}
    return kinds == {GGMLQuantizationType.Q4_1.value}


def half_split(w: Matrix, heads: int) -> Matrix:
    """Rows of each head from pairs side by side (x0 y0 x1 y1 ...) to halves (x0 x1 ... y0 y1 ...)."""
    pairs = w.shape[0] // heads // 2
    return np.ascontiguousarray(w.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(w.shape))


class _Numbers:
    """Architecture numbers from the metadata, each with one clear error when absent or odd."""

    def __init__(self, path: Path, meta: Mapping[str, object], family: str) -> None:
        self.path, self.meta, self.family = path, meta, family

    def real(self, key: str, default: float | None = None) -> float:
        value = self.meta.get(f"{self.family}.{key}", default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            _refuse(self.path, f"{self.family}.{key} differs between layers", "use a model with equal layers")
        if not isinstance(value, int | float) or not math.isfinite(value):
            _refuse(
                self.path,
                f"{self.family}.{key} is missing or no number",
                "convert the model again with a current llama.cpp",
            )
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        return int(self.real(key, default))


def _architecture(path: Path, file: _File) -> Architecture:
    family = _family(path, file.meta)
    n = _Numbers(path, file.meta, family)
    _refuse_variants(path, n)
    heads, width, context = n.whole("attention.head_count"), n.whole("embedding_length"), n.whole("context_length")
    if heads <= 0 or "token_embd.weight" not in file.tensors or len(file.tensors["token_embd.weight"].shape) != 2:
        _refuse(path, "has no attention heads or no token embedding", "use a file that holds a whole language model")
    if n.whole("block_count") > len(file.tensors):
        _refuse(path, "has fewer tensors than layers", "fetch or convert the model again")
    head_dim = n.whole("attention.key_length", width // heads)
    if n.whole("rope.dimension_count", head_dim) != head_dim or n.whole("attention.value_length", head_dim) != head_dim:
        _refuse(path, "rotates or stores only part of each head", f"use a plain {family} model")
    return Architecture(
        family=family,
        layers=n.whole("block_count"),
        width=width,
        heads=heads,
        kv_heads=n.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=n.whole("feed_forward_length"),
        vocab=file.tensors["token_embd.weight"].shape[0],
        context=context,
        eps=n.real("attention.layer_norm_rms_epsilon"),
        rope_theta=n.real("rope.freq_base", 10000.0),
        rope_factors=_rope_factors(path, file, head_dim),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm=family == "qwen3",
        tied="output.weight" not in file.tensors,
    )


def _family(path: Path, meta: Mapping[str, object]) -> str:
    family = str(meta.get("general.architecture", "(none)"))
    known = ", ".join(FAMILIES)
    split = meta.get("split.count", 0)
    if isinstance(split, int) and split > 1:
        _refuse(path, f"one of {split} parts of a split model", "join them with `llama-gguf-split --merge` first")
    if family.startswith(RECURRENT):
        reason = f"{family} is recurrent: its state cannot be rolled back after a rejected draft"
        _refuse(path, reason, f"use an attention model ({known})")
    if "moe" in family:
        _refuse(path, f"{family} is a mixture of experts, which is not supported", f"use a dense model ({known})")
    if family not in FAMILIES:
        _refuse(
            path, f"the architecture {family} is not supported", f"use one of {known} (mistral and smollm are llama)"
        )
    return family


def _refuse_variants(path: Path, n: _Numbers) -> None:
    if n.whole("expert_count", 0) > 0:
        _refuse(path, "a mixture of experts, which is not supported", "use a dense model")
    scaling = n.meta.get(f"{n.family}.rope.scaling.type", "none")
    if scaling not in ("none", "") or n.real("rope.scale_linear", 1.0) != 1.0:
        kind = "linear" if scaling in ("none", "") else scaling
        _refuse(path, f"{kind} rope scaling is not supported", "use a file without it, or with rope_freqs (Llama 3)")
    if 0 < n.whole("attention.sliding_window", 0) < n.whole("context_length"):
        _refuse(path, "sliding-window attention is not supported", "use a model with full attention")


def _rope_factors(path: Path, file: _File, head_dim: int) -> tuple[float, ...]:
    if _FACTORS not in file.tensors:
        return ()
    factors = file.tensor(_FACTORS)
    if factors.shape != (head_dim // 2,):
        _refuse(path, f"{_FACTORS} has shape {factors.shape}, not ({head_dim // 2},)", "convert the model again")
    return tuple(float(f) for f in factors)


def _names(a: Architecture) -> dict[str, str]:
    """The file's name of each checkpoint tensor."""

    def stored(name: str) -> str:
        layer, _, part = name.partition(".")
        return f"blk.{layer}.{_LAYER[part]}" if part else _TOP[name]

    return {name: stored(name) for name in shapes(a)}
