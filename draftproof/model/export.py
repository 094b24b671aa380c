"""A checkpoint as a Hugging Face directory, so that other engines are measured on the very same weights.

Knows that format alone. Weights are float32, whatever the file held: the same numbers that our engine starts from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp

from draftproof.model import directory, hf
from draftproof.model.checkpoint import Architecture, Checkpoint, ModelError
from draftproof.model.fetch import Progress, cache_dir, locked, silent
from draftproof.model.tokenizer import TokenizerFiles

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def hugging_face(source: str, progress: Progress = silent) -> Path:
    """The directory of a model that we can load, made once and kept in the cache; its own if it is one.

    Raises:
        ModelError: there is no such model, or it cannot be written like that.
    """
    own = Path(source).expanduser()
    if (own / "config.json").is_file() and any(own.glob("*.safetensors")):
        return own
    checkpoint, files = directory.original(source, progress)
    target = cache_dir() / "exported" / f"{checkpoint.fingerprint[:16]}-hf"
    with locked(target, progress):
        if not target.is_dir():
            progress(f"writing {source} as a Hugging Face directory (once)")
            work = Path(mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
            try:
                write_hf(checkpoint, files, work)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


def write_hf(checkpoint: Checkpoint, files: TokenizerFiles, path: Path) -> None:
    """config.json, model.safetensors and the tokenizer, into a directory that is there.

    Raises:
        ModelError: rotary frequencies are scaled, which has no field for any factors; or safetensors is missing.
    """
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError as error:
        raise ModelError("writing a Hugging Face directory needs safetensors: pip install 'draftproof[hf]'") from error
    a = checkpoint.architecture
    if a.rope_factors:
        raise ModelError("a model with scaled rotary frequencies cannot be exported: name its own directory instead")
    tensors = {there: checkpoint.tensor(here) for here, there in hf.names(a).items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    files.write(path)
    told = {**config(a), "eos_token_id": files.generation.get("eos_token_id")}
    (path / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def config(a: Architecture) -> dict[str, object]:
    """What config.json says of it."""
    return {
        "architectures": [_CLASSES[a.family]],
        "model_type": a.family,
        "vocab_size": a.vocab,
        "hidden_size": a.width,
        "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "max_position_embeddings": a.context,
        "rms_norm_eps": a.eps,
        "rope_theta": a.rope_theta,
        "hidden_act": "silu",
        "attention_bias": a.attention_bias,
        "mlp_bias": False,
        "tie_word_embeddings": a.tied,
        "torch_dtype": "float32",
    }
