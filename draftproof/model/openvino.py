"""The CPU target: a stateful OpenVINO graph turned into ragged paged attention, with KV pages that we own.

Takes any graph in the form that optimum-intel exports. Knows nothing of sampling, scheduling or page book-keeping: a
chunk says which pages to write, and rolling back is a smaller `past` in the next chunk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import ModelError
from draftproof.types import Chunk, Forward

_FINAL_NORM = -1
_KV_TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16, "u8": ov.Type.u8}
KV_PRECISIONS = tuple(_KV_TYPES)


@dataclass(frozen=True, slots=True)
class OpenVINOOptions:
    """How to run. `precision` is that of the arithmetic; `kv_bytes` bounds the memory of all KV pages together.

    `hidden_layers` asks for hidden states: layer indices, -1 for the state after the final norm.
    """

    precision: str = "f32"
    kv_precision: str = "f32"
    kv_bytes: int = 1 << 30
    kv_pages: int = 0  # number of pages instead of bytes, if not 0
    threads: int = 0  # 0: one per core that this process may use
    hidden_layers: tuple[int, ...] = ()
    trees: bool = False


class OpenVINOModel:
    """A TargetModel on OpenVINO's CPU plugin."""

    def __init__(self, directory: Path, info: ModelInfo, options: OpenVINOOptions) -> None:
        """`info` gives name, context and eos_ids; vocabulary, pages and settings are filled in here."""
        self._options = options
        threads = options.threads or len(os.sched_getaffinity(0))
        model = _read(directory)
        _add_hidden(model, options.hidden_layers)
        _to_paged(model, options.trees)
        _keep_wanted_rows(model)
        self._compiled = _compile(model, options, threads)
        self._request = self._compiled.create_infer_request()
        self._caches, page_bytes = self._allocate(options)
        pages = len(self._caches[0].data)
        settings = {
            "precision": options.precision,
            "kv_precision": options.kv_precision,
            "kv_bytes": pages * page_bytes,
            "threads": threads,
        }
        vocab = self._compiled.output(0).partial_shape[-1].get_length()
        size = int(self._caches[0].shape[2])
        settings = {**info.settings, **settings}
        shape = {"vocab": vocab, "page_size": size, "pages": pages, "min_rows": 2}
        self.info = replace(info, **shape, trees=options.trees, settings=settings)

    def _allocate(self, options: OpenVINOOptions) -> tuple[list[ov.Tensor], int]:
        ports = [p for p in self._compiled.inputs if "_cache." in p.get_any_name()]
        shapes = [[d.get_length() for d in list(p.partial_shape)[1:]] for p in ports]
        page_bytes = sum(int(np.prod(s)) * p.element_type.size for s, p in zip(shapes, ports, strict=True))
        pages = options.kv_pages or max(options.kv_bytes // page_bytes, 1)
        tensors = []
        for port, shape in zip(ports, shapes, strict=True):
            tensor = ov.Tensor(port.element_type, ov.Shape([pages, *shape]))
            self._request.set_tensor(port.get_any_name(), tensor)
            tensors.append(tensor)
        return tensors, page_bytes

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        """See TargetModel. Every chunk needs at least `info.min_rows` rows for the bitwise promise to hold."""
        for name, array in _inputs(chunks, self._options.trees).items():
            self._request.set_tensor(name, ov.Tensor(array))
        self._request.infer()
        logits = self._request.get_output_tensor(0).data
        logits = logits.reshape(-1, logits.shape[-1])
        layers = range(len(self._options.hidden_layers))
        rows = sum(len(c.tokens) for c in chunks)
        states = [self._request.get_output_tensor(1 + i).data.reshape(rows, -1) for i in layers]
        return Forward(logits.copy(), np.stack(states, axis=1) if states else None)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for cache in self._caches:
            data = cache.data
            for source, target in pairs:
                data[target] = data[source]

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Move K and V between slots of one sequence, in order: the accepted path of a tree to its final place."""
        size = self.info.page_size
        for cache in self._caches:
            data = cache.data
            for source, target in moves:
                data[pages[target // size], :, target % size] = data[pages[source // size], :, source % size]


def _read(directory: Path) -> ov.Model:
    path = directory / "openvino_model.xml"
    try:
        model = ov.Core().read_model(path)
    except RuntimeError as e:
        reason = str(e).strip().splitlines()[-1][:200]
        raise ModelError(f"{path} cannot be read as an OpenVINO model ({reason}); convert or download it again") from e
    kinds = {o.get_type_name() for o in model.get_ops()}
    if "ReadValue" not in kinds or "ScaledDotProductAttention" not in kinds:
        raise ModelError(f"{path} has no KV state with attention; export it with task text-generation-with-past")
    return model


def _to_paged(model: ov.Model, trees: bool) -> None:
    try:
        paged_attention_transformation(model, allow_qq_bias=trees)
    except RuntimeError as e:
        reason = str(e).strip().splitlines()[-1][:200]
        raise ModelError(f"this graph cannot be turned into paged attention: {reason}") from e
    left = {o.get_type_name() for o in model.get_ops()} & {"ReadValue", "Assign"}
    if left:
        raise ModelError("this model keeps state besides attention (recurrent layers), which cannot be rolled back")


def _add_hidden(model: ov.Model, layers: Sequence[int]) -> None:
    """Extra results, in the order asked for. Must run before the paged-attention transformation."""
    names = {o.get_friendly_name(): o for o in model.get_ops()} if layers else {}
    for layer in layers:
        wanted = r"final_norm$" if layer == _FINAL_NORM else rf"(layers\.{layer}$|.*layers\.{layer}/aten::add/Add_1$)"
        node = next((o for n, o in names.items() if re.match(wanted, n)), None)
        if node is None:
            raise ModelError(f"this graph does not name the hidden state of layer {layer}")
        model.add_outputs([node.output(0)])


def _keep_wanted_rows(model: ov.Model) -> None:
    """Gather the rows of `sampled_rows` before the last matrix product: a long prompt needs no row of the rest."""
    rows = op.parameter([-1], np.int64)
    rows.set_friendly_name("sampled_rows")
    rows.output(0).get_tensor().set_names({"sampled_rows"})
    axis = op.constant(np.array(0))
    product = model.get_results()[0].input_value(0).get_node()
    while product.get_type_name() != "MatMul":
        if product.get_input_size() == 0:
            raise ModelError("this graph's logits do not come from a matrix product: export the model again")
        product = product.input_value(0).get_node()
    port = product.input(0)
    port.replace_source_output(op.gather(port.get_source_output(), rows, axis).output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def _compile(model: ov.Model, options: OpenVINOOptions, threads: int) -> Any:
    core = ov.Core()
    if options.precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ModelError("this CPU has no bf16 arithmetic: use precision f32 or int8")
    hint = "bf16" if options.precision == "bf16" else "f32"
    settings: dict[str, object] = {
        "INFERENCE_PRECISION_HINT": hint,
        "KV_CACHE_PRECISION": _KV_TYPES[options.kv_precision],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return core.compile_model(model, "CPU", settings)


def _inputs(chunks: Sequence[Chunk], trees: bool) -> dict[str, NDArray[Any]]:
    """The ragged paged batch as OpenVINO's paged attention takes it."""
    rows = [len(c.tokens) for c in chunks]
    starts = np.cumsum([0, *rows])
    ends = [int(s) for s in starts[1:]]
    positions = [c.past + d for c in chunks for d in (c.depths or range(len(c.tokens)))]
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": np.array([t for c in chunks for t in c.tokens], dtype=np.int64),
        "position_ids": np.array(positions, dtype=np.int64),
        "past_lens": np.array([c.past for c in chunks], dtype=np.int32),
        "subsequence_begins": starts.astype(np.int32),
        "block_indices": np.array([p for c in chunks for p in c.pages], dtype=np.int32),
        "block_indices_begins": np.cumsum([0, *(len(c.pages) for c in chunks)]).astype(np.int32),
        "max_context_len": np.array(max(c.past + len(c.tokens) for c in chunks), dtype=np.int32),
        "sampled_rows": np.array(
            [r for c, end in zip(chunks, ends, strict=True) for r in range(end - c.wanted, end)], dtype=np.int64
        ),
    }
    if trees:
        masks = [_tree_mask(c) for c in chunks]
        arrays["qq_bias"] = np.concatenate(masks)
        arrays["qq_bias_begins"] = np.cumsum([0, *(len(m) for m in masks)]).astype(np.int32)
    return arrays


def _tree_mask(chunk: Chunk) -> NDArray[np.uint8]:
    """rows x rows, flat, 1 where a row may attend to another; empty for a plain chain."""
    if not chunk.visible:
        return np.zeros(0, dtype=np.uint8)
    mask = np.zeros((len(chunk.tokens), len(chunk.tokens)), dtype=np.uint8)
    for row, seen in enumerate(chunk.visible):
        mask[row, list(seen)] = 1
    return mask.ravel()
