"""A stateful OpenVINO graph as ragged paged attention, with KV pages that we own: what target and draft head share.

Takes any graph in the form that optimum-intel exports. Knows nothing of sampling, scheduling or page book-keeping: a
chunk says which pages to write, and rolling back is a smaller `past` in the next chunk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from draftproof.model.checkpoint import ModelError
from draftproof.types import Chunk

_KV_TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16, "u8": ov.Type.u8}
KV_PRECISIONS = tuple(_KV_TYPES)


@dataclass(frozen=True, slots=True)
class PagedOptions:
    """How to run. `precision` is that of the arithmetic; `kv_bytes` bounds the memory of all KV pages together.

    `lanes`: numbers of rows for whose passes, of one sequence, a graph is kept apart. OpenVINO prepares every layer
    anew when a shape differs from the pass before, which takes as long as a row or two; a lane costs the packed weights
    once more.
    """

    precision: str = "f32"
    kv_precision: str = "f32"
    kv_bytes: int = 1 << 30
    kv_pages: int = 0  # number of pages instead of bytes, if not 0
    threads: int = 0  # 0: one per core that this process may use
    trees: bool = False
    lanes: tuple[int, ...] = ()

    @property
    def cores(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


class PagedGraph:
    """Args: a stateful graph whose first result is the logits; it is changed in place.

    Inputs of `run` are those of `ragged`, and the graph's own beside tokens and positions.
    """

    def __init__(self, model: ov.Model, options: PagedOptions) -> None:
        _to_paged(model, options.trees)
        _keep_wanted_rows(model)
        self._compiled = compiled(model, options)
        self._caches, self.page_bytes = self._allocate(options)
        self._request = self._request_on(self._compiled)
        self._lanes = {rows: self._request_on(compiled(model, options)) for rows in options.lanes}
        self.pages, self.page_size = len(self._first.data), int(self._first.shape[2])
        self.vocab = self._compiled.output(0).partial_shape[-1].get_length()

    @property
    def _first(self) -> Any:
        return next(iter(self._caches.values()))

    def _request_on(self, graph: Any) -> Any:
        request = graph.create_infer_request()
        for name, tensor in self._caches.items():
            request.set_tensor(name, tensor)
        return request

    def _allocate(self, options: PagedOptions) -> tuple[dict[str, ov.Tensor], int]:
        ports = [p for p in self._compiled.inputs if "_cache." in p.get_any_name()]
        shapes = [[d.get_length() for d in list(p.partial_shape)[1:]] for p in ports]
        page_bytes = sum(int(np.prod(s)) * p.element_type.size for s, p in zip(shapes, ports, strict=True))
        pages = options.kv_pages or max(options.kv_bytes // page_bytes, 1)
        tensors = {
            port.get_any_name(): ov.Tensor(port.element_type, ov.Shape([pages, *shape]))
            for port, shape in zip(ports, shapes, strict=True)
        }
        return tensors, page_bytes

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Every result of the graph. The arrays are lent: the next run overwrites them."""
        alone = len(inputs["past_lens"]) == 1
        request = self._lanes.get(len(inputs["input_ids"]), self._request) if alone else self._request
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(array))
        request.infer()
        return [request.get_output_tensor(i).data for i in range(len(self._compiled.outputs))]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for cache in self._caches.values():
            data = cache.data
            for source, target in pairs:
                data[target] = data[source]

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Move K and V between slots of one sequence, in order: the accepted path of a tree to its final place."""
        size = self.page_size
        for cache in self._caches.values():
            data = cache.data
            for source, target in moves:
                data[pages[target // size], :, target % size] = data[pages[source // size], :, source % size]


def _to_paged(model: ov.Model, trees: bool) -> None:
    try:
        paged_attention_transformation(model, allow_qq_bias=trees)
    except RuntimeError as e:
        reason = str(e).strip().splitlines()[-1][:200]
        raise ModelError(f"this graph cannot be turned into paged attention: {reason}") from e
    left = {o.get_type_name() for o in model.get_ops()} & {"ReadValue", "Assign"}
    if left:
        raise ModelError("this model keeps state besides attention (recurrent layers), which cannot be rolled back")


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


def compiled(model: ov.Model, options: PagedOptions) -> Any:
    core = ov.Core()
    if options.precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ModelError("this CPU has no bf16 arithmetic: use precision f32 or int8")
    hint = "bf16" if options.precision == "bf16" else "f32"
    settings: dict[str, object] = {
        "INFERENCE_PRECISION_HINT": hint,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # of activations, with VNNI: other numbers than the model's
        "KV_CACHE_PRECISION": _KV_TYPES[options.kv_precision],
        "INFERENCE_NUM_THREADS": options.cores,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return core.compile_model(model, "CPU", settings)


def ragged(chunks: Sequence[Chunk], trees: bool = False) -> dict[str, NDArray[Any]]:
    """The ragged paged batch as OpenVINO's paged attention takes it. If one row alone is wanted it comes out twice."""
    rows = [len(c.tokens) for c in chunks]
    starts = np.cumsum([0, *rows])
    ends = [int(s) for s in starts[1:]]
    positions = [c.past + d for c in chunks for d in (c.depths or range(len(c.tokens)))]
    wanted = [r for c, end in zip(chunks, ends, strict=True) for r in range(end - c.wanted, end)]
    if len(wanted) == 1:
        wanted *= 2  # with 8-bit weights the product for one row alone has other last bits
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": np.array([t for c in chunks for t in c.tokens], dtype=np.int64),
        "position_ids": np.array(positions, dtype=np.int64),
        "past_lens": np.array([c.past for c in chunks], dtype=np.int32),
        "subsequence_begins": starts.astype(np.int32),
        "block_indices": np.array([p for c in chunks for p in c.pages], dtype=np.int32),
        "block_indices_begins": np.cumsum([0, *(len(c.pages) for c in chunks)]).astype(np.int32),
        "max_context_len": np.array(max(c.past + len(c.tokens) for c in chunks), dtype=np.int32),
        "sampled_rows": np.array(wanted, dtype=np.int64),
    }
    if trees:
        masks = [_tree_mask(c) for c in chunks]
        arrays["qq_bias"] = np.concatenate(masks)
        arrays["qq_bias_begins"] = np.cumsum([0, *(len(m) for m in masks)]).astype(np.int32)
    elif any(c.visible for c in chunks):  # without a mask every row would see all rows before it
        raise ValueError("a chunk is a tree, but the graph was loaded without trees")
    return arrays


def _tree_mask(chunk: Chunk) -> NDArray[np.uint8]:
    """rows x rows, flat, 1 where a row may attend to another; empty for a plain chain."""
    if not chunk.visible:
        return np.zeros(0, dtype=np.uint8)
    mask = np.zeros((len(chunk.tokens), len(chunk.tokens)), dtype=np.uint8)
    for row, seen in enumerate(chunk.visible):
        mask[row, list(seen)] = 1
    return mask.ravel()
