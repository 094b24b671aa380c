"""What PyTorch has to offer here, for `draftproof doctor`. Loads no model."""

from __future__ import annotations

import torch
import transformers

from draftproof.model.torch_linear import can_pack
from draftproof.model.torch_load import default_device, default_precision


def report() -> dict[str, object]:
    """Devices, and what a model would run on. All values are plain JSON."""
    device = default_device()
    precision = default_precision(device)
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "devices": _devices(),
        "device": device,
        "precision": precision,
        "attention": "draftproof's, chunk by chunk" if device == "cpu" else "scaled_dot_product_attention, batched",
        "linear layers": _linear(device),
        "bits promised": device == "cpu" and precision == "f32" and can_pack(torch.empty(0)),
        "threads": torch.get_num_threads(),
        "built for CUDA": torch.version.cuda is not None,
    }


def _devices() -> list[str]:
    names = ["cpu"]
    names += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return names + ["mps"] * torch.backends.mps.is_available()


def _linear(device: str) -> str:
    if device != "cpu":
        return f"PyTorch's for {device}"
    return "oneDNN, packed" if can_pack(torch.empty(0)) else "PyTorch's: rows depend on their number"
