"""The CPU target: a model directory read into OpenVINO and run as ragged paged attention.

Knows nothing of sampling, scheduling or page book-keeping.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openvino as ov

from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import ModelError
from draftproof.model.paged import PagedGraph, PagedOptions, ragged
from draftproof.types import Chunk, Forward

FINAL_NORM = -1


@dataclass(frozen=True, slots=True)
class OpenVINOOptions(PagedOptions):
    """`hidden_layers` asks for hidden states: layer indices, FINAL_NORM for the state after the final norm."""

    hidden_layers: tuple[int, ...] = ()


class OpenVINOModel:
    """A TargetModel on OpenVINO's CPU plugin."""

    def __init__(self, directory: Path, info: ModelInfo, options: OpenVINOOptions) -> None:
        """`info` gives name, context and eos_ids; vocabulary, pages and settings are filled in here."""
        self._options = options
        model = _read(directory)
        _add_hidden(model, options.hidden_layers)
        self._graph = graph = PagedGraph(model, options)
        settings = {
            "precision": options.precision,
            "kv_precision": options.kv_precision,
            "kv_bytes": graph.pages * graph.page_bytes,
            "threads": options.cores,
            "lanes": options.lanes,
        }
        settings = {**info.settings, **settings}
        shape = {"vocab": graph.vocab, "page_size": graph.page_size, "pages": graph.pages, "min_rows": 2}
        self.info = replace(info, **shape, trees=options.trees, settings=settings)

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        """See TargetModel. Every chunk needs at least `info.min_rows` rows for the bitwise promise to hold."""
        logits, *states = self._graph.run(ragged(chunks, self._options.trees))
        rows, wanted = sum(len(c.tokens) for c in chunks), sum(c.wanted for c in chunks)
        hidden = [s.reshape(rows, -1) for s in states]
        kept = logits.reshape(-1, logits.shape[-1])[:wanted].copy()
        return Forward(kept, np.stack(hidden, axis=1) if hidden else None)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._graph.copy_pages(pairs)

    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        self._graph.move_slots(pages, moves)


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


def _add_hidden(model: ov.Model, layers: Sequence[int]) -> None:
    """Extra results, in the order asked for. Must run before the paged-attention transformation."""
    names = {o.get_friendly_name(): o for o in model.get_ops()} if layers else {}
    for layer in layers:
        wanted = r"final_norm$" if layer == FINAL_NORM else rf"(layers\.{layer}$|.*layers\.{layer}/aten::add/Add_1$)"
        node = next((o for n, o in names.items() if re.match(wanted, n)), None)
        if node is None:
            raise ModelError(f"this graph does not name the hidden state of layer {layer}")
        model.add_outputs([node.output(0)])
