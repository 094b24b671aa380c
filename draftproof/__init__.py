"""Draftproof: speculative decoding that can be proved.

The names below are the public ones; they are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.engine import Engine, Event
    from draftproof.loading import load
    from draftproof.model.checkpoint import ModelError
    from draftproof.model.load import ModelOptions, load_model
    from draftproof.stats import summary
    from draftproof.types import Finish, Kind, Output, RequestError, SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "Engine": "engine",
    "Event": "engine",
    "Finish": "types",
    "Kind": "types",
    "ModelError": "model.checkpoint",
    "ModelOptions": "model.load",
    "Output": "types",
    "RequestError": "types",
    "SamplingParams": "types",
    "load": "loading",
    "load_model": "model.load",
    "summary": "stats",
}
__all__ = [
    "Engine",
    "Event",
    "Finish",
    "Kind",
    "ModelError",
    "ModelOptions",
    "Output",
    "RequestError",
    "SamplingParams",
    "__version__",
    "load",
    "load_model",
    "summary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.{_HOMES[name]}"), name)
