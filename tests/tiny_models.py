"""Model files of a few kilobytes: a GGUF file, a Hugging Face directory with the same weights, a byte vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from draftproof.model.checkpoint import Architecture, Matrix, shapes
from draftproof.model.gguf import _LAYER as GGUF_LAYER
from draftproof.model.gguf import _TOP as GGUF_TOP
from draftproof.model.hf import _LAYER as HF_LAYER
from draftproof.model.hf import _TOP as HF_TOP
from draftproof.model.tokenizer import _BYTE as BYTES

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
TOKENS = SPECIALS + list(BYTES) + [m.replace(" ", "") for m in MERGES] + ["<tool>"]
TYPES = [3] * 3 + [1] * (len(TOKENS) - 4) + [4]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY = Architecture(
    family="llama", layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=len(TOKENS), context=128,
    eps=1e-5, rope_theta=10000.0,
)  # fmt: skip


def weights(a: Architecture = TINY) -> dict[str, Matrix]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes(a).items()}


def metadata(**changes: object) -> dict[str, object]:
    """Tokenizer metadata as a GGUF file has it. A change to None removes the key."""
    base: dict[str, object] = {
        "model": "gpt2", "pre": "smollm", "tokens": TOKENS, "token_type": TYPES, "merges": MERGES,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    meta = {f"tokenizer.ggml.{k}": v for k, v in {**base, **changes}.items() if v is not None}
    return {**meta, "tokenizer.chat_template": TEMPLATE}


def interleave(w: Matrix, heads: int) -> Matrix:
    """From halves to pairs, as converters to GGUF store llama's q and k."""
    pairs = w.shape[0] // heads // 2
    return w.reshape(heads, 2, pairs, -1).swapaxes(1, 2).reshape(w.shape)


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case list():
            writer.add_array(key, value)


def write_gguf(
    path: Path,
    a: Architecture = TINY,
    arch: str | None = None,
    extra: dict[str, object] | None = None,
    tensors: dict[str, Matrix] | None = None,
    q8: bool = False,
    q4: bool = False,
) -> dict[str, Matrix]:
    """Writes the file and returns the weights in the checkpoint's own layout, before `q8` or `q4` (the layers alone,
    the others in 8 bits) stores them in fewer bits."""
    arch = arch or a.family
    writer = gguf.GGUFWriter(path, arch)
    numbers: dict[str, object] = {
        "block_count": a.layers, "embedding_length": a.width, "attention.head_count": a.heads,
        "attention.head_count_kv": a.kv_heads, "feed_forward_length": a.ffn, "context_length": a.context,
        "attention.layer_norm_rms_epsilon": a.eps, "rope.freq_base": a.rope_theta, "attention.key_length": a.head_dim,
        "attention.value_length": a.head_dim,
    }  # fmt: skip
    for key, value in {**{f"{arch}.{k}": v for k, v in numbers.items()}, **metadata(), **(extra or {})}.items():
        _add(writer, key, value)
    made = weights(a)
    for name, w in made.items():
        layer, _, part = name.partition(".")
        stored = f"blk.{layer}.{GGUF_LAYER[part]}" if part else GGUF_TOP[name]
        heads = {"q": a.heads, "k": a.kv_heads, "q_bias": a.heads, "k_bias": a.kv_heads}.get(part)
        data = interleave(w, heads) if heads and a.family == "llama" else w
        if (q8 or q4) and w.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1 if q4 and part else gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(stored, gguf.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(data))
    for name, w in (tensors or {}).items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def hf_config(a: Architecture = TINY, **changes: object) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": a.family, "num_hidden_layers": a.layers, "hidden_size": a.width, "vocab_size": a.vocab,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "intermediate_size": a.ffn, "max_position_embeddings": a.context, "rms_norm_eps": a.eps,
        "rope_theta": a.rope_theta, "tie_word_embeddings": a.tied, "hidden_act": "silu", "eos_token_id": 2,
    }  # fmt: skip
    return {k: v for k, v in {**config, **changes}.items() if v is not None}


def write_hf(path: Path, a: Architecture = TINY, files: int = 1, **changes: object) -> dict[str, Matrix]:
    """Writes the directory (float32, without tokenizer files) and returns the weights."""
    path.mkdir(exist_ok=True)
    made = weights(a)
    named = {}
    for name, w in made.items():
        layer, _, part = name.partition(".")
        named[f"model.layers.{layer}.{HF_LAYER[part]}" if part else HF_TOP[name]] = w
    names = sorted(named)
    places = {name: f"model-{i % files + 1}.safetensors" for i, name in enumerate(names)}
    if files == 1:
        save_file(named, path / "model.safetensors")
    else:
        for file in set(places.values()):
            save_file({n: named[n] for n in names if places[n] == file}, path / file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (path / "config.json").write_text(json.dumps(hf_config(a, **changes)))
    return made


def write_work(home: Path) -> tuple[str, ...]:
    """Writes a model and prompts of two kinds and lengths; returns the options that name them to a command."""
    write_gguf(home / "tiny.gguf")
    told = [{"prompt": f"hello {i}", "kind": k, "length": n} for k in "ab" for i, n in enumerate(("short", "long"))]
    (home / "p.jsonl").write_text("\n".join(map(json.dumps, told)), encoding="utf-8")
    options = ("--model", str(home / "tiny.gguf"), "--kv-memory", "1", "--threads", "1")
    return (*options, "--prompts", str(home / "p.jsonl"))
