"""The target on PyTorch: any causal model of transformers whose only state is attention.

Knows nothing of files, sampling, scheduling or page book-keeping. Runs on a CPU; CUDA and MPS take the same path with
PyTorch's fused attention, and were not run by its authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import ModelError
from draftproof.model.torch_graphs import Filled, Graphs, Out
from draftproof.model.torch_hooks import Attend, Decoder, missing_windows, odd_layers
from draftproof.model.torch_linear import can_pack, pack
from draftproof.model.torch_pages import Batch, How, Pages, Planned, attend
from draftproof.types import Chunk, Forward

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Mean difference from transformers' own pass, in standard deviations of its logits, that rounding may cause.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
_CHECKED = 24  # tokens


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """`together` computes chunks of about one length in one call, as on accelerators. `laws_here` hands logits out as
    tensors, so that laws are made and judged on the device; always so on CUDA. MPS has no float64 for that. `compile`
    takes a minute at load, and then saves launches and passes over memory between products. `graphs` records passes of
    few rows (`torch_graphs.py`); None: on CUDA, unless `compile`."""

    device: str = "cpu"
    kv_bytes: int = 1 << 30
    kv_pages: int = 0  # number of pages instead of bytes, if not 0
    page_size: int = 32
    trees: bool = False
    hidden_layers: tuple[int, ...] = ()
    together: bool = False
    laws_here: bool = False
    compile: bool = False
    graphs: bool | None = None


class TorchModel:
    """A TargetModel on PyTorch. Takes the module over: its attention and, on a CPU, its linear layers are replaced."""

    def __init__(self, model: Any, info: ModelInfo, options: TorchOptions) -> None:
        """`model` is a causal model of transformers in one of TYPES, which is that of K and V too. `info` gives name,
        context and eos_ids; vocabulary, pages and settings are filled in here.

        Raises:
            ModelError: the model has state that cannot be rolled back, or paged passes differ from its own.
        """
        self._device = torch.device(options.device)
        self._together = options.together or self._device.type != "cpu"
        self._laws_here = options.laws_here or self._device.type == "cuda"
        self._decoder = Decoder(model.to(self._device).eval(), options.hidden_layers)
        seen = _seen(self._decoder, self._device)
        like = torch.empty(0, dtype=model.dtype, device=self._device)
        page_bytes = options.page_size * like.element_size() * sum(h * w for kv in seen.shapes for h, w in kv)
        pages = max(options.kv_pages or options.kv_bytes // page_bytes, 2)  # two sequences are checked
        self._pages = Pages(seen.shapes, pages, options.page_size, like)
        shape = {"vocab": seen.vocab, "page_size": options.page_size, "pages": pages, "trees": options.trees}
        by_itself = self._device.type == "cuda" and not options.compile
        graphs = by_itself if options.graphs is None else options.graphs
        stated = {**_settings(like, options), "graphs": graphs, "kv_bytes": pages * page_bytes}
        self.info = replace(info, **shape, settings={**info.settings, **stated})  # type: ignore[arg-type]
        self._graphs = Graphs(self._filled, options.page_size, self._device) if graphs else None
        tokens = _random(min(_CHECKED, info.context, pages // 2 * options.page_size), seen.vocab)
        expected = self._decoder.unpaged(torch.tensor(tokens, device=self._device)).float().cpu()
        if options.compile:
            self._decoder.compile()
            self._warm()
        elif can_pack(like):
            pack(model)
        self._check(tokens, expected, _TOLERANCE[model.dtype])

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        """See TargetModel."""
        found = self._graphs.run(chunks) if self._graphs else None
        logits, states = found or self._pass(chunks)
        hidden = _host(torch.stack(states, dim=1)) if states else None
        # a tensor stands for an array of NumPy, see arrays.py
        return Forward(logits.float() if self._laws_here else _host(logits), hidden)  # type: ignore[arg-type]

    def _pass(self, chunks: Sequence[Chunk]) -> Out:
        batch = Batch(chunks, self.info.page_size, self._device, self._together)
        return self._decoder.run(batch.tokens, batch.positions, batch.wanted, self._paged(batch))

    def _filled(self, batch: Filled) -> Out:
        """All rows, since which are wanted differs from pass to pass."""
        rows = batch.groups[0].rows.flatten()
        return self._decoder.run(batch.tokens, batch.positions, rows, self._paged(batch))

    def _paged(self, batch: Planned) -> Attend:
        def paged(layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
            return attend(batch, self._pages.layers[layer], q, k, v, how)

        return paged

    @torch.inference_mode()
    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._pages.copy(pairs)

    @torch.inference_mode()
    def move_slots(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        self._pages.move(pages, moves)

    def _warm(self) -> None:
        """One row, and one wanted row of several, are compiled apart."""
        try:
            for rows, wanted in ((1, 1), (2, 1), (3, 1), (3, 2)):
                self.forward([Chunk((0,) * rows, 0, (0,), wanted)])
        except Exception as error:  # whatever PyTorch's compilers may raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(
                f"torch.compile failed ({reason}): leave compile out; on a CPU it needs a C++ compiler"
            ) from error

    def _check(self, tokens: Sequence[int], expected: Tensor, tolerance: float) -> None:
        """Two sequences side by side, in small chunks, with a roll-back: is it what transformers computes?"""
        rows, size = len(tokens), self.info.page_size
        count = -(-rows // size)
        tables, cut = (tuple(range(count)), tuple(range(count, 2 * count))), rows // 3
        wrong = [(t + 1) % self.info.vocab for t in tokens]
        got = []
        parts = ((tokens, 0, cut), (wrong, cut, 2 * cut), (tokens, cut, 2 * cut), (tokens, 2 * cut, rows))
        for fed, start, end in parts:
            part = tuple(fed[start:end])
            out = self.forward([Chunk(part, start, table, len(part)) for table in tables])
            got.append(torch.as_tensor(out.logits).cpu().view(2, len(part), -1))
        ours = torch.cat([got[0], *got[2:]], dim=1)
        off = float((ours - expected).abs().mean() / expected.std().clamp(min=1e-12))
        if not off <= tolerance:
            raise ModelError(
                f"{self.info.name}: paged passes differ from transformers' own by {off:.2g} standard deviations of its "
                "logits; this architecture is not supported by the torch backend"
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    shapes: list[tuple[tuple[int, int], tuple[int, int]]]  # (heads, width) of K and V, by layer
    vocab: int


def _seen(decoder: Decoder, device: torch.device) -> _Seen:
    """What a pass of two tokens shows of a model. Refuses what keeps state besides attention."""
    odd = odd_layers(decoder.config)
    if odd:
        raise ModelError(
            f"it has {odd[0]} layers: state that cannot be rolled back after a rejection, or attention that this "
            "backend does not have"
        )
    shapes: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
    windows: dict[int, int] = {}

    def look(layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        if layer in shapes:
            raise ModelError("its layers share K and V, which this backend does not support")
        shapes[layer] = ((k.shape[1], k.shape[2]), (v.shape[1], v.shape[2]))
        windows[layer] = how.window
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[2])

    ids = torch.arange(2, device=device)
    logits, _ = decoder.run(ids, ids, ids, look)
    layers = int(decoder.config.num_hidden_layers)
    if not shapes:
        raise ModelError("transformers cannot exchange its attention; use a model that follows AttentionInterface")
    if sorted(shapes) != list(range(layers)):
        raise ModelError(f"only {len(shapes)} of its {layers} layers are attention: the others' state, if they keep "
                         "any, cannot be rolled back after a rejection")  # fmt: skip
    if missing_windows(decoder.config, [windows[i] for i in range(layers)]):
        raise ModelError("its attention does not say how far its windows reach; it is not supported")
    return _Seen([shapes[i] for i in range(layers)], int(logits.shape[-1]))


def _settings(like: Tensor, options: TorchOptions) -> dict[str, object]:
    precision = next(name for name, kind in TYPES.items() if kind == like.dtype)
    return {
        "backend": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "device": options.device,
        "precision": precision,
        "kv_precision": precision,
        "threads": torch.get_num_threads(),
        "compiled": options.compile,
    }


def _random(count: int, vocab: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(count).integers(0, vocab, count)]


def _host(x: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    found: np.ndarray[Any, np.dtype[np.float32]] = x.float().cpu().numpy()
    return found
