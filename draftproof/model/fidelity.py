"""How faithful is a loaded model to its file? Overlap of next-token laws with a float32 pass over the file's weights.

The overlap at a position is the sum of min(p, p_float32), 1 - TV; the figure is its mean over the positions of a text
of ours. Results are remembered in the cache, so that every later load can state them. Knows nothing of engines.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays
from draftproof.model.base import TargetModel
from draftproof.model.checkpoint import ModelError
from draftproof.model.fetch import cache_dir, locked
from draftproof.types import Chunk


class Fidelity(NamedTuple):
    """Means over positions; `entropy` and `entropy_float32` in nats."""

    overlap: float
    lowest: float
    argmax_agreement: float
    entropy: float
    entropy_float32: float
    positions: int


def text() -> str:
    """The text that is measured on: encyclopaedic prose, written for this purpose."""
    return resources.files("draftproof.model").joinpath("fidelity.txt").read_text(encoding="utf-8")


def compare(ours: NDArray[np.float32], exact: NDArray[np.float32]) -> Fidelity:
    """Both [positions, vocab] logits."""
    p, r = _softmax(ours), _softmax(exact)
    shared = np.minimum(p, r).sum(axis=1)
    agree = (ours.argmax(axis=1) == exact.argmax(axis=1)).mean()
    return Fidelity(float(shared.mean()), float(shared.min()), float(agree), _entropy(p), _entropy(r), len(shared))


def all_logits(model: TargetModel, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits after each token, in passes as the engine makes them. Uses the first pages of a model at rest."""
    step = max(model.info.min_rows, min(64, model.info.max_rows))
    if len(tokens) < step:
        raise ModelError(f"fidelity needs at least {step} tokens of text, got {len(tokens)}: raise --tokens")
    pages = tuple(range(-(-len(tokens) // model.info.page_size)))
    starts = range(0, len(tokens) - len(tokens) % step, step)
    parts = [arrays.host(model.forward([Chunk(tokens[s : s + step], s, pages, step)]).logits) for s in starts]
    return np.concatenate(parts)


def mass(model: TargetModel, tokens: Sequence[int], ids: NDArray[np.int64]) -> float:
    """Mean probability, over the positions of a text, that the tokens `ids` have together. As `all_logits`."""
    room = min(len(tokens), model.info.context, model.info.pages * model.info.page_size)
    return float(_softmax(all_logits(model, tuple(tokens[:room])))[:, ids].sum(axis=1).mean())


# Overlaps of the default model, from LOG.md: (start of the file's fingerprint, precision, KV), 384 positions.
_MEASURED = {
    ("b179c9523d0e6a0f", "f32", "f32"): 1.0000,
    ("b179c9523d0e6a0f", "int4", "f32"): 1.0000,
    ("b179c9523d0e6a0f", "bf16", "bf16"): 0.9866,
    ("b179c9523d0e6a0f", "int8", "f32"): 0.9648,
}


def recorded(directory: Path | None, settings: Mapping[str, object]) -> float | None:
    """The overlap measured before for this OpenVINO directory (None: on PyTorch) and these settings, here or by us;
    None if nobody did."""
    value = _read().get(_key(directory, settings))
    if isinstance(value, (int, float)):
        return float(value)
    if directory is None:
        return None
    fingerprint = str(settings.get("fingerprint"))[:16]
    return _MEASURED.get((fingerprint, str(settings.get("precision")), str(settings.get("kv_precision"))))


def record(directory: Path | None, settings: Mapping[str, object], result: Fidelity) -> None:
    book = _book()
    book.parent.mkdir(parents=True, exist_ok=True)
    with locked(book):
        part = book.with_suffix(".part")
        part.write_text(json.dumps({**_read(), _key(directory, settings): result.overlap}, indent=1), encoding="utf-8")
        part.replace(book)


def _key(directory: Path | None, settings: Mapping[str, object]) -> str:
    where = directory or f"torch {settings.get('device')} {settings.get('fingerprint')}"
    return f"{where} {settings.get('precision')} kv={settings.get('kv_precision')} {platform.machine()}"


def _book() -> Path:
    return cache_dir() / "fidelity.json"


def _read() -> dict[str, object]:
    try:
        known = json.loads(_book().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _entropy(p: NDArray[np.float64]) -> float:
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean())
