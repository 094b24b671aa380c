"""Tiny causal models of many architectures with random weights, made from configurations. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, CONTEXT, WINDOW = 61, 96, 7
_SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
_GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT, "rotary_dim": 4, "n_inner": 64}
_SOFT = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0, "query_pre_attn_scalar": 4}
_ALTERNATE = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": WINDOW}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {}),
    "mistral with windows": ("mistral", {"sliding_window": WINDOW}),
    "gemma2, softcap and windows": ("gemma2", _SOFT | _ALTERNATE),
    "gemma3": ("gemma3_text", _ALTERNATE),
    "phi, partly rotary": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {}),
    "gpt-neox, parallel": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt2, learned positions": ("gpt2", _GPT),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "gpt-oss, sinks and experts": ("gpt_oss", _ALTERNATE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "cohere, scaled logits": ("cohere", {}),
    "granite, scaled attention": ("granite", {"attention_multiplier": 0.3}),
    "olmo2": ("olmo2", {}),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
}


def made(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A model of a transformers model type, in evaluation mode, with weights that spread its laws."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_SMALL, **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def architecture(name: str, seed: int = 0) -> Any:
    kind, changes = ARCHITECTURES[name]
    return made(kind, seed, **changes)
