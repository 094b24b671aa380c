"""From a name or path to a model that is ready to run, with its tokenizer. Names concrete model classes.

Knows which precision suits this CPU. Knows nothing of engines, proposers or requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import openvino as ov

from draftproof.model import fidelity
from draftproof.model.base import ModelInfo, TargetModel
from draftproof.model.checkpoint import ModelError
from draftproof.model.directory import TORCH, in_four_bits, prepare
from draftproof.model.fetch import Progress, silent
from draftproof.model.graph import PRECISIONS
from draftproof.model.openvino import OpenVINOModel, OpenVINOOptions
from draftproof.model.paged import KV_PRECISIONS
from draftproof.model.selftest import with_promise
from draftproof.model.tokenizer import Tokenizer

_MOST_ROWS = 512  # of a pass, where nothing else bounds them: more gain nothing and take memory


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model; "auto" and 0 choose for this machine. See OpenVINOOptions for the rest.

    `device` is for the torch backend: cpu, cuda or mps; so is `compile`, which gives up the promise of bits.

    `lanes`: see PagedOptions. None: two where drafts are made, which take some 130 MB each for the default model.

    `bitwise` False gives up the promise that batching changes no bit, and with it the second row of plain sequences
    and the bound on rows a pass: large plain batches run nearly twice as fast.
    """

    precision: str = "auto"
    kv_precision: str = "auto"
    kv_bytes: int = 1 << 30
    kv_pages: int = 0
    threads: int = 0
    context: int = 0  # most tokens a sequence may have; 0: what the model was made for
    hidden_layers: tuple[int, ...] = ()
    trees: bool = False
    lanes: tuple[int, ...] | None = None
    bitwise: bool = True
    device: str = "auto"
    compile: bool = False


class Loaded(NamedTuple):
    model: TargetModel
    tokenizer: Tokenizer


def default_precision() -> str:
    """bf16 where the CPU computes in it; f32 elsewhere, since int8 is not faithful enough to be a default."""
    return "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def precision_for(source: str, progress: Progress = silent) -> str:
    """What "auto" stands for: int4 where the file holds just that, else `default_precision`. The numbers are those of
    f32, and few rows read a quarter of its bytes. bf16 is faster from about eight rows a pass on, and less faithful.

    Raises:
        ModelError: there is no such model.
    """
    return "int4" if in_four_bits(source, progress) else default_precision()


def load_model(source: str, options: ModelOptions | None = None, progress: Progress = silent) -> Loaded:
    """Fetch and convert if that was not done before, compile, and test what may be promised.

    `source` with torch: in front is run on PyTorch, as it is; without, it is converted to OpenVINO.

    Raises:
        ModelError: one line that says what is wrong and what to do.
    """
    options = options or ModelOptions()
    _check_sizes(options)
    if source.startswith(TORCH):
        return _load_torch(source.removeprefix(TORCH), options, progress)
    precision, kv = _resolved(source, options, progress)
    directory = prepare(source, precision, progress)
    precision, weights = _stored(source, directory, options.precision, precision)
    tokenizer = Tokenizer.from_dir(directory)
    progress(f"loading {source}")
    model = OpenVINOModel(directory, _info(source, directory, tokenizer, options), _backend(options, precision, kv))
    if options.bitwise:
        progress("testing that batching changes no bit")
        info = with_promise(model)
    else:
        info = replace(model.info, min_rows=1, max_rows=_MOST_ROWS)
    known = fidelity.recorded(directory, model.info.settings)
    stated = {"weights": weights, "context": info.context, "bitwise": info.bitwise, "overlap with float32": known}
    model.info = replace(info, settings={**info.settings, **stated})
    return Loaded(model, tokenizer)


@contextmanager
def _needs_torch() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        needs = "the torch backend needs PyTorch and transformers, run `pip install draftproof[torch]`"
        raise ModelError(f"{needs} ({error})") from error


def devices() -> dict[str, object]:
    """OpenVINO's devices with what each computes in, and the precision that "auto" stands for."""
    core = ov.Core()
    found = {name: list(core.get_property(name, "OPTIMIZATION_CAPABILITIES")) for name in core.available_devices}
    return {"devices": found, "device": "CPU", "precision": default_precision(), "attention": "OpenVINO's, paged"}


def torch_report() -> dict[str, object]:
    """What PyTorch has to offer here. Raises ModelError where it, or transformers, is missing."""
    with _needs_torch():
        from draftproof.model.torch_report import report
    return report()


def _load_torch(name: str, options: ModelOptions, progress: Progress) -> Loaded:
    """Bits are promised in float32 on a CPU alone: elsewhere nobody has looked why rows should not depend on others."""
    with _needs_torch():
        from draftproof.model import torch_load
        from draftproof.model.torch import TorchOptions
    device = torch_load.default_device() if options.device == "auto" else options.device
    torch_load.check_device(device)
    precision = torch_load.default_precision(device) if options.precision == "auto" else options.precision
    if options.kv_precision not in {"auto", precision}:
        raise ModelError(f"kv_precision {options.kv_precision!r}: the torch backend keeps K and V in {precision}")
    torch_load.use_threads(options.threads)
    o = options
    wanted = TorchOptions(
        device, o.kv_bytes, o.kv_pages, trees=o.trees, hidden_layers=o.hidden_layers, compile=o.compile
    )
    model, tokenizer = torch_load.load(name, precision, options.context, wanted, progress)
    info = model.info
    if options.bitwise and not options.compile and (device, precision) == ("cpu", "f32"):
        progress("testing that batching changes no bit")
        info = with_promise(model)
    if not info.bitwise:
        info = replace(info, max_rows=_MOST_ROWS)
    known = fidelity.recorded(None, model.info.settings)
    stated = {"weights": precision, "context": info.context, "bitwise": info.bitwise, "overlap with float32": known}
    model.info = replace(info, settings={**info.settings, **stated})
    return Loaded(model, tokenizer)


def _check_sizes(options: ModelOptions) -> None:
    for name in ("kv_bytes", "kv_pages", "threads", "context"):
        if getattr(options, name) < 0:
            raise ModelError(f"{name} must not be negative, got {getattr(options, name)}")


def _resolved(source: str, options: ModelOptions, progress: Progress) -> tuple[str, str]:
    precision = precision_for(source, progress) if options.precision == "auto" else options.precision
    kv = options.kv_precision
    kv = ("bf16" if precision == "bf16" else "f32") if kv == "auto" else kv
    for name, value, known in (("precision", precision, PRECISIONS), ("kv_precision", kv, KV_PRECISIONS)):
        if value not in known:
            raise ModelError(f"{name} {value!r} is unknown: use auto or one of {', '.join(known)}")
    if options.device not in {"auto", "cpu"}:
        raise ModelError(f"device {options.device!r} is for the torch backend: name the model as in torch:NAME")
    if options.compile:
        raise ModelError("compile is for the torch backend: name the model as in torch:NAME")
    return precision, kv


def _stored(source: str, directory: Path, asked: str, precision: str) -> tuple[str, str]:
    """Precision of the arithmetic, and of the weights as they are stored. A ready directory's weights stay as they are.

    Raises:
        ModelError: another precision was asked for by name than the directory has.
    """
    made = _config(directory).get("draftproof", {}).get("precision")
    if made == precision:
        return precision, precision
    if asked != "auto" and (made is not None or asked in {"int8", "int4"}):
        raise ModelError(f"{source} is a ready OpenVINO directory ({made or 'as exported'}): leave precision at auto")
    return (made, made) if made else (precision, "as exported")


def _backend(options: ModelOptions, precision: str, kv: str) -> OpenVINOOptions:
    o = options
    return OpenVINOOptions(precision, kv, o.kv_bytes, o.kv_pages, o.threads, o.trees, o.lanes or (), o.hidden_layers)


def _info(source: str, directory: Path, tokenizer: Tokenizer, options: ModelOptions) -> ModelInfo:
    config = _config(directory)
    context = int(config.get("max_position_embeddings") or 0)
    if not context:
        raise ModelError(f"{directory}/config.json does not say max_position_embeddings: add it")
    if options.context > context:
        raise ModelError(f"context {options.context} is more than the model was made for ({context})")
    settings = {"model": source, **config.get("draftproof", {})}
    return ModelInfo(source, 0, options.context or context, 0, 0, tokenizer.eos_ids, settings=settings)


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{directory}/config.json is missing or unreadable ({error}); export the model again"
        ) from error
    return config if isinstance(config, dict) else {}
