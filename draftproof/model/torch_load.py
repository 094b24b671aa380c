"""From a name or path to a model on PyTorch with its tokenizer. Importing this imports torch and transformers.

Hugging Face models are read by transformers; GGUF files by our own reader, so that both backends run the same numbers.
Knows nothing of engines or of what may be promised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from draftproof.model import export, gguf, hf
from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import Checkpoint, ModelError
from draftproof.model.directory import locate, remembered_sha256
from draftproof.model.fetch import Progress
from draftproof.model.tokenizer import Tokenizer
from draftproof.model.torch import TYPES, TorchModel, TorchOptions
from draftproof.model.torch_hooks import context

disable_progress_bar()  # the commands have their own
DEVICES = ("auto", "cpu", "cuda", "mps")


def default_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def default_precision(device: str) -> str:
    """float32 where it can be bitwise; bfloat16 on CUDA, whose float32 is slow."""
    return "bf16" if device == "cuda" else "f32"


def check_device(device: str) -> None:
    """Raises ModelError for a device that is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = device.partition(":")[0]
    if kind not in there:
        raise ModelError(f"device {device!r} is unknown: use one of {', '.join(DEVICES)}")
    if not there[kind]:
        known = ", ".join(name for name, is_there in there.items() if is_there)
        raise ModelError(f"PyTorch sees no {kind} device here: use {known}, or install a PyTorch build for {kind}")


def use_threads(threads: int) -> None:
    """For everything that PyTorch computes in this process; 0 leaves them as they are."""
    if threads:
        torch.set_num_threads(threads)


def load(
    name: str, precision: str, longest: int, options: TorchOptions, progress: Progress
) -> tuple[TorchModel, Tokenizer]:
    """`longest` bounds the tokens of a sequence; 0: what the model was made for."""
    if precision not in TYPES:
        raise ModelError(f"precision {precision!r} is not one of the torch backend's: use auto or {', '.join(TYPES)}")
    found = locate(name, progress)
    if isinstance(found, Path):
        raise ModelError(f"{name} is an OpenVINO directory: leave out torch:, or give the original model")
    progress(f"loading {name} with PyTorch")
    if found.kind == "gguf":
        checkpoint, files = gguf.read(found.path, remembered_sha256)
        model, tokenizer = from_checkpoint(checkpoint, name), Tokenizer(files, name)
        model = model.to(TYPES[precision])
    else:
        model, tokenizer = _pretrained(found.path, precision), Tokenizer.from_dir(found.path)
    settings: dict[str, object] = {"model": f"torch:{name}", "source": found.kind, "fingerprint": found.fingerprint()}
    most = _context(name, model.config.get_text_config(), longest)
    info = ModelInfo(name, 0, most, 0, 0, tokenizer.eos_ids, settings=settings)
    try:
        return TorchModel(model, info, options), tokenizer
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error


def _pretrained(path: Path, precision: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(path)
        if str(config.model_type).startswith(hf.RECURRENT):
            raise ModelError(f"{path}: {config.model_type} is recurrent: its state cannot be rolled back")
        return AutoModelForCausalLM.from_pretrained(path, dtype=TYPES[precision], use_safetensors=True)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, RuntimeError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(f"{path}: transformers cannot load it as a causal model ({reason})") from error


def _context(name: str, config: Any, longest: int) -> int:
    most = context(config)
    if not most:
        raise ModelError(f"{name}: its configuration does not say max_position_embeddings: add it")
    if longest > most:
        raise ModelError(f"context {longest} is more than {name} was made for ({most})")
    return longest or most


def from_checkpoint(checkpoint: Checkpoint, name: str) -> Any:
    """A float32 model of transformers with the checkpoint's own matrices."""
    a = checkpoint.architecture
    if a.rope_factors:
        raise ModelError(
            f"{name}: GGUF files with scaled rotary frequencies: give the Hugging Face model, or no torch:"
        )
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**export.config(a)), dtype=torch.float32)
    weights = {called: torch.tensor(checkpoint.tensor(own)) for own, called in hf.names(a).items()}
    result = model.load_state_dict(weights, strict=False)
    missing = set(result.missing_keys) - ({"lm_head.weight"} if a.tied else set())
    if missing or result.unexpected_keys:
        odd = sorted(missing | set(result.unexpected_keys))[0]
        raise ModelError(f"{name}: the tensor {odd} does not fit transformers' {a.family}; leave out torch:")
    model.tie_weights()
    return model
