"""Writes a toy as the files that engines load: a Hugging Face directory, a GGUF file.

Knows the two formats and nothing else. safetensors is written here, by hand: eight bytes of length, a JSON header and
raw numbers. GGUF stores the rotary rows of llama's q and k in pairs, so they are permuted on the way out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.verify.toy_model import BEGIN, END, SPECIAL, UNKNOWN, WORDS, Matrix, Sizes, Toy

_HF_TOP = {"embed": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_HF_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_GGUF_TOP = {"embed": "token_embd", "final_norm": "output_norm", "head": "output"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_NORMAL_TOKEN, _UNKNOWN_TOKEN, _CONTROL_TOKEN, _BYTE_TOKEN = 1, 2, 3, 6


def write_hf(toy: Toy, directory: Path) -> Path:
    """A directory that AutoModelForCausalLM and AutoTokenizer load. Returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    named = {_name(name, _HF_TOP, "model.layers", _HF_LAYER) + ".weight": w for name, w in toy.tensors.items()}
    (directory / "model.safetensors").write_bytes(_safetensors(named))
    write_json(toy, directory)
    return directory


def write_json(toy: Toy, directory: Path) -> None:
    """The documents beside the weights: sizes, ends and the tokenizer."""
    ends = {"bos_token_id": BEGIN, "eos_token_id": toy.eos}
    documents = {
        "config": {**_config(toy), **ends},
        "generation_config": {**ends, "do_sample": True},
        "tokenizer": _tokenizer(),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": WORDS[UNKNOWN],
            "bos_token": WORDS[BEGIN],
            "eos_token": WORDS[END],
            "clean_up_tokenization_spaces": False,
            "model_max_length": toy.sizes.context,
        },
    }
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _name(name: str, top: Mapping[str, str], layers: str, parts: Mapping[str, str]) -> str:
    layer, _, part = name.partition(".")
    return f"{layers}.{layer}.{parts[part]}" if part else top[name]


def _safetensors(tensors: Mapping[str, Matrix]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, w in tensors.items():
        blob = w.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def _config(toy: Toy) -> dict[str, object]:
    s = toy.sizes
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocab,
        "hidden_size": s.width,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "max_position_embeddings": s.context,
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _tokenizer() -> dict[str, object]:
    """BPE without merges: every character is a token."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": WORDS[i], **flags} for i in (UNKNOWN, BEGIN, END)]
    bpe = {
        "type": "BPE",
        "dropout": None,
        "unk_token": WORDS[UNKNOWN],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {word: i for i, word in enumerate(WORDS)},
        "merges": [],
    }
    steps = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **steps, "model": bpe}


def write_gguf(toy: Toy, path: Path) -> Path:
    """A file that llama.cpp and readers of its format load. Returns its path."""
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("draftproof toy")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_sizes(writer, toy.sizes)
    _add_vocabulary(writer, toy.eos)
    heads = {"q": toy.sizes.heads, "k": toy.sizes.kv_heads}
    for name, w in toy.tensors.items():
        part = name.rpartition(".")[2]
        stored = paired(w, heads[part]) if part in heads else w
        writer.add_tensor(_name(name, _GGUF_TOP, "blk", _GGUF_LAYER) + ".weight", np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: Any, s: Sizes) -> None:
    writer.add_vocab_size(s.vocab)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.width)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.theta)
    writer.add_layer_norm_rms_eps(s.eps)


def _add_vocabulary(writer: Any, eos: int) -> None:
    """SentencePiece with scores. No score decides anything, since no two tokens make a third."""
    special = {UNKNOWN: _UNKNOWN_TOKEN, BEGIN: _CONTROL_TOKEN, END: _CONTROL_TOKEN, len(SPECIAL) - 1: _BYTE_TOKEN}
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(WORDS))
    writer.add_token_scores([0.0 if i in special else -float(i) for i in range(len(WORDS))])
    writer.add_token_types([special.get(i, _NORMAL_TOKEN) for i in range(len(WORDS))])
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def paired(w: Matrix, heads: int) -> Matrix:
    """Rows of each head from halves (x0 x1 ... y0 y1 ...) to pairs (x0 y0 x1 y1 ...)."""
    pairs = w.shape[0] // heads // 2
    return w.reshape(heads, 2, pairs, -1).swapaxes(1, 2).reshape(w.shape)
