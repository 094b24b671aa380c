"""A draft head on OpenVINO: its graph from a checkpoint, and ragged paged passes over it.

A row is a token and the state that goes with it: what `fuse` makes of the target's states, or the output of the row
before. Knows nothing of drafts, laws or page book-keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray

from draftproof.model import graph, paged
from draftproof.model.base import HeadPass
from draftproof.model.checkpoint import Architecture, Checkpoint, Matrix, ModelError
from draftproof.model.headfile import HeadCheckpoint, HeadSizes
from draftproof.model.openvino import FINAL_NORM
from draftproof.types import Chunk

_PARTS = {
    "0.q": "self_attn.q_proj",
    "0.k": "self_attn.k_proj",
    "0.v": "self_attn.v_proj",
    "0.o": "self_attn.o_proj",
    "0.gate": "mlp.gate_proj",
    "0.up": "mlp.up_proj",
    "0.down": "mlp.down_proj",
    "token_norm": "input_layernorm",
    "state_norm": "hidden_norm",
    "0.ffn_norm": "post_attention_layernorm",
}
States = NDArray[np.float32]


class HeadModel:
    """Args: a head, the checkpoint of the target whose tokens it embeds, and how to run."""

    def __init__(self, head: HeadCheckpoint, target: Checkpoint, options: paged.PagedOptions) -> None:
        check(head, target)
        self.ids, self.sizes = head.ids, head.sizes
        stored, options = options.precision, replace(options, precision="f32")
        self._builder = _Head(_completed(head, target), stored)  # bf16 weights lie in its memory as long as they run
        self._fuse = paged.compiled(self._builder.fusing(), options).create_infer_request()
        self._graph, self._trees = paged.PagedGraph(self._builder.model(), options), options.trees
        self.page_size, self.pages = self._graph.page_size, self._graph.pages

    def fuse(self, states: NDArray[np.floating]) -> States:
        """[rows, layers, width] of the target -> [rows, width]."""
        flat = np.ascontiguousarray(states.reshape(len(states), -1), dtype=np.float32)
        self._fuse.infer([flat])
        return np.array(self._fuse.get_output_tensor(0).data)

    def forward(self, chunks: Sequence[Chunk], states: States) -> HeadPass:
        """One ragged pass: writes K and V for every row. states: [all rows, width], in the chunks' order."""
        if len(states) == 1:  # 8-bit products of one row alone have other last bits: it is fed beside itself
            twice = self.forward([*chunks, *chunks], np.concatenate([states, states]))
            return HeadPass(twice.logits[:1], twice.outputs[:1])
        logits, outputs = self._graph.run({**paged.ragged(chunks, self._trees), "states": states[:, None, :]})
        wanted = sum(c.wanted for c in chunks)
        return HeadPass(logits.reshape(-1, logits.shape[-1])[:wanted].copy(), outputs.reshape(len(states), -1).copy())

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._graph.copy_pages(pairs)


def check(head: HeadCheckpoint, target: Checkpoint) -> None:
    """Refuse a head that was made for another model.

    Raises:
        ModelError: it was.
    """
    a, s = target.architecture, head.sizes
    if head.target and head.target != target.fingerprint:
        raise ModelError(
            f"this head was trained for another model (weights {head.target[:12]}, the target has "
            f"{target.fingerprint[:12]}): use that one, or train a head with draftproof distill"
        )
    if s.width != a.width or head.ids[-1] >= a.vocab:
        raise ModelError(
            f"this head is for a model of width {s.width} with at least {head.ids[-1] + 1} tokens; the target has "
            f"width {a.width} and {a.vocab} tokens"
        )
    own = head.tensors.get("embed_tokens.weight")
    if own is not None and len(own) < a.vocab:
        raise ModelError(f"this head embeds {len(own)} tokens, the target has {a.vocab}: it is another model's")
    if not all(1 <= n <= a.layers for n in s.states):
        raise ModelError(f"this head reads states {list(s.states)}, the target has states 1 to {a.layers}")


def layers(sizes: HeadSizes, target: Checkpoint) -> tuple[int, ...]:
    """Which hidden states to ask the target for, as OpenVINOOptions counts them."""
    count = target.architecture.layers
    return tuple(FINAL_NORM if n == count else n - 1 for n in sizes.states)


def _completed(head: HeadCheckpoint, target: Checkpoint) -> Checkpoint:
    """The head as a decoder of one layer, with the target's embedding and output rows unless it has its own."""
    a, s, tensors = target.architecture, head.sizes, head.tensors

    def tensor(name: str) -> Matrix:
        match name:
            case "embed":
                return tensors["embed_tokens.weight"] if "embed_tokens.weight" in tensors else target.tensor("embed")
            case "head":
                if "lm_head.weight" in tensors:
                    return tensors["lm_head.weight"]
                return np.ascontiguousarray(target.tensor("embed" if a.tied else "head")[head.ids])
            case "fc" | "norm":
                return tensors[f"{name}.weight"]
        return tensors[f"layers.0.{_PARTS[name]}.weight"]

    own = Architecture(
        family="head",
        layers=1,
        width=s.width,
        heads=s.heads,
        kv_heads=s.heads,
        head_dim=s.head_dim,
        ffn=s.ffn,
        vocab=a.vocab,
        context=a.context,
        eps=s.eps,
        rope_theta=s.rope_theta,
        tied=False,
    )
    return Checkpoint(own, tensor, target.fingerprint)


class _Head(graph.Builder):
    """One decoder layer over token and state side by side."""

    def model(self) -> ov.Model:
        a = self._a
        states = op.parameter([-1, -1, a.width], np.float32)
        graph.named(states, "states")
        embedded = op.gather(self.weight(self._tensor("embed")), self._ids, graph.c(0))
        self._cos, self._sin, self._causal = *self._rotary(), self._causal_mask()
        sides = [
            graph.rms_norm(embedded, self._tensor("token_norm"), a.eps),
            graph.rms_norm(states, self._tensor("state_norm"), a.eps),
        ]
        x = op.add(states, self._attention(0, op.concat(sides, -1)))
        x = op.add(x, self._feed_forward(0, graph.rms_norm(x, self._tensor("0.ffn_norm"), a.eps)))
        logits = op.matmul(
            graph.rms_norm(x, self._tensor("norm"), a.eps), self.weight(self._tensor("head")), False, True
        )
        parameters = [self._ids, self._mask, self._positions, self._beam, states]
        return ov.Model([op.result(logits), op.result(x)], self._sinks, parameters, "head")

    def fusing(self) -> ov.Model:
        """[rows, states * width] -> [rows, width]: the target's states of one token as one state.

        In float32 whatever the precision: state channels differ a thousandfold in size and the matrix undoes that, so
        in int8, with one scale a row, the columns of large channels would be rounded to nothing.
        """
        matrix = np.ascontiguousarray(self._tensor("fc"), dtype=np.float32)
        given = op.parameter([-1, matrix.shape[1]], np.float32)
        return ov.Model([op.result(op.matmul(given, op.constant(matrix), False, True))], [given], "fuse")
