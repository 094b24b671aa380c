"""Reads a Hugging Face directory into a Checkpoint and tokenizer files, and downloads one by name.

Knows config.json, the safetensors layout and the hub client. Does not know OpenVINO, the cache of converted models or
how a graph is built. The safetensors layout is read here (a JSON header and raw numbers): NumPy has no bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from draftproof.model.checkpoint import Architecture, Checkpoint, Matrix, ModelError, misfit, shapes
from draftproof.model.fetch import Progress, sha256_file, silent
from draftproof.model.tokenizer import TokenizerFiles, read_files

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
RECURRENT = (
    "mamba",
    "rwkv",
    "jamba",
    "falcon_h1",
    "falcon_mamba",
    "zamba",
    "bamba",
    "nemotron_h",
    "lfm2",
    "qwen3_next",
)
_PATTERNS = ["*.json", "*.safetensors", "chat_template.jinja", "openvino_model.xml", "openvino_model.bin"]
_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
}


def _refuse(path: Path, reason: str, fix: str) -> NoReturn:
    raise ModelError(f"{path}: {reason}; {fix}")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies: file, type, shape, first byte."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def raw(self) -> NDArray[Any]:
        """The numbers as they are stored; bfloat16 as 16 bits each."""
        return np.memmap(self.path, _DTYPES[self.dtype], "r", self.start, self.shape)

    def read(self) -> Matrix:
        raw = self.raw()
        return np.ascontiguousarray(from_bfloat16(raw) if self.dtype == "BF16" else raw, dtype=np.float32)


def from_bfloat16(raw: NDArray[np.uint16]) -> Matrix:
    """bfloat16 is the upper half of a float32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def download(name: str, progress: Progress = silent) -> Path:
    """The directory of a model on the Hugging Face hub. Only the files that are needed are fetched."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        message = "names of the Hugging Face hub need huggingface_hub; run `pip install draftproof[hf]`"
        raise ModelError(message) from error
    progress(f"fetching {name} from the Hugging Face hub")
    try:
        return Path(snapshot_download(name, allow_patterns=_PATTERNS, ignore_patterns=["*/*", "consolidated*"]))
    except GatedRepoError as error:
        fix = "accept its terms on the hub, then `hf auth login`"
        raise ModelError(f"{name}: the hub gives this model only to users who accepted its terms; {fix}") from error
    except RepositoryNotFoundError as error:
        fix = "check the name, or `hf auth login` if it is private"
        raise ModelError(f"{name}: no such path here and no such model on the Hugging Face hub; {fix}") from error
    except LocalEntryNotFoundError as error:
        fix = "connect once, or give the path of a model"
        raise ModelError(f"{name}: the Hugging Face hub cannot be reached and the model is not here; {fix}") from error
    except Exception as error:  # its HTTP library's errors have no common base among the client's versions
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelError(f"{name}: could not be fetched from the hub ({reason}); try again or give a path") from error


def fingerprint(path: Path, digest: Callable[[Path], str] = sha256_file) -> str:
    """SHA-256 over names and sums of the files that make the model: weights, configuration and tokenizer."""
    parts = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    files = [path / name for name in parts if (path / name).is_file()] + _weight_files(path)
    text = "".join(f"{file.name} {digest(file)}\n" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path, digest: Callable[[Path], str] = sha256_file) -> tuple[Checkpoint, TokenizerFiles]:
    """The model in a Hugging Face directory. Raises ModelError for what cannot be read faithfully."""
    config = _config(path)
    stored = {name: entry for file in _weight_files(path) for name, entry in table(file).items()}
    a = _architecture(path, config, stored)
    if a.layers > len(stored):
        _refuse(path, "has fewer tensors than layers", "fetch the model again")
    called = names(a)
    unused = {_TOP["head"]} if a.tied else set()
    found = {name: t.shape for name, t in stored.items() if name not in unused and not name.endswith("inv_freq")}
    wrong = misfit(a, called, found)
    if wrong:
        _refuse(path, wrong, f"fetch the model again, or use a plain {a.family} model")
    return Checkpoint(a, lambda name: stored[called[name]].read(), fingerprint(path, digest)), read_files(path)


def _weight_files(path: Path) -> list[Path]:
    """The files of the index if there is one, otherwise model.safetensors or all of them."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        single = path / "model.safetensors"
        return [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        _refuse(index, "is not a valid index", "fetch the model again")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        _refuse(
            path, f"{len(missing)} of {len(names)} weight files are missing ({missing[0]})", "fetch the model again"
        )
    return [path / name for name in names]


def table(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file: 8 bytes header length, JSON header, numbers."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError(f"header of {length} bytes in a file of {size}")
            header = json.loads(stream.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _entry(file, name, entry, 8 + length, size) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        _refuse(file, f"not a readable safetensors file ({error})", "it is damaged or incomplete: fetch it again")


def _entry(file: Path, name: str, entry: Mapping[str, Any], base: int, size: int) -> Stored:
    dtype, shape, (start, end) = str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
    if dtype not in _DTYPES:
        _refuse(file, f"{name} has the type {dtype}", "use the model in F32, F16 or BF16 (not quantised)")
    if math.prod(shape) * _DTYPES[dtype].itemsize != end - start or start < 0 or base + end > size:
        raise ValueError(f"tensor {name} does not fit the file")
    return Stored(file, dtype, shape, base + start)


def _config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: config.json is missing or not valid JSON; fetch the model again") from error
    if not isinstance(value, dict):
        _refuse(path, "config.json is not an object", "fetch the model again")
    return value


def _architecture(path: Path, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> Architecture:
    family = _family(path, config)
    _refuse_variants(path, config)
    try:
        heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
        head_dim = int(config.get("head_dim") or width // heads)
        theta, factors = _rope(path, config, head_dim)
        return Architecture(
            family=family,
            layers=int(config["num_hidden_layers"]),
            width=width,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            ffn=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            eps=float(config["rms_norm_eps"]),
            rope_theta=theta,
            rope_factors=factors,
            attention_bias=_layer_name(0, "q_bias") in stored,
            qk_norm=family == "qwen3",
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, ModelError):
            raise
        _refuse(path, f"config.json lacks or garbles a size ({type(error).__name__} {error})", "fetch the model again")


def _family(path: Path, config: Mapping[str, Any]) -> str:
    kind, known = str(config.get("model_type", "(none)")), ", ".join(FAMILIES)
    if kind.startswith(RECURRENT):
        reason = f"{kind} is recurrent: its state cannot be rolled back after a rejected draft"
        _refuse(path, reason, f"use an attention model ({known})")
    if "moe" in kind or kind == "mixtral" or config.get("num_local_experts") or config.get("num_experts"):
        _refuse(path, f"{kind} is a mixture of experts, which is not supported", f"use a dense model ({known})")
    if kind not in FAMILIES:
        _refuse(path, f"the model type {kind} is not supported", f"use one of {known}, or PyTorch: torch:{path}")
    return FAMILIES[kind]


def _refuse_variants(path: Path, config: Mapping[str, Any]) -> None:
    window, context = config.get("sliding_window"), config.get("max_position_embeddings", 0)
    used = config.get("use_sliding_window", config.get("model_type") == "mistral")
    if "sliding_attention" in (config.get("layer_types") or []) or (used and window and window < context):
        _refuse(path, "sliding-window attention is not supported", "use a model with full attention")
    if config.get("quantization_config"):
        _refuse(path, "quantised Hugging Face weights are not supported", "use the original model or a GGUF file")
    if config.get("hidden_act", "silu") != "silu":
        _refuse(path, f"the activation {config['hidden_act']} is not supported", "use a model with silu")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        _refuse(path, "rotates only part of each head", "use a model that rotates whole heads")


def _rope(path: Path, config: Mapping[str, Any], head_dim: int) -> tuple[float, tuple[float, ...]]:
    """Base of the rotary frequencies and their Llama 3 divisors. transformers 5 calls the section rope_parameters."""
    section = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(section.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "default":
        return theta, ()
    if kind != "llama3":
        _refuse(path, f"{kind} rope scaling is not supported", "use a model without it, or with llama3 scaling")
    return theta, llama3_factors(section, theta, head_dim)


def llama3_factors(section: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """What each rotary frequency is divided by: 1 for short waves, `factor` for long ones, a blend between."""
    factor, low, high = (float(section[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(section["original_max_position_embeddings"]) * theta ** (-np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((turns / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return tuple(float(f) for f in 1.0 / ((1.0 - blend) / factor + blend))


def _layer_name(layer: int | str, part: str) -> str:
    return f"model.layers.{layer}.{_LAYER[part]}"


def names(a: Architecture) -> dict[str, str]:
    """The directory's name of each checkpoint tensor."""
    pairs = {name: name.partition(".") for name in shapes(a)}
    return {name: _layer_name(layer, part) if part else _TOP[name] for name, (layer, _, part) in pairs.items()}
