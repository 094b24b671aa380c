"""Checkpoint -> stateful OpenVINO graph, the form that optimum-intel exports too.

The matrices are the checkpoint's own, so the conversion is as faithful as the precision asked for. Knows nothing of
files other than the one it writes, of paged attention or of tokenizers.

q, k and v are one matrix product, and so are gate and up. That saves passes over the activations, and the split behind
the product keeps the plugin from fusing the activation function into it: on AVX2 the fused kernel's bits depend on the
number of rows, and with them the promise that batching changes no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray
from openvino.op.util import Variable, VariableInfo

from draftproof.model.checkpoint import Architecture, Checkpoint, Matrix, ModelError

Node = Any  # openvino's node classes carry no types
PRECISIONS = ("f32", "bf16", "int8", "int4")
_GROUP = 32  # inputs that share a scale in int4, as in GGUF's 4- and 8-bit blocks
_ROUNDING = 1e-4  # of a scale: what float32 may lose on the way to codes and back


def save(checkpoint: Checkpoint, precision: str, directory: Path) -> bool:
    """Write openvino_model.xml and .bin into `directory`, with weights stored in `precision`, one of PRECISIONS.
    Returns whether nothing was lost.

    int8 is symmetric per output channel; int4 has groups of 32 inputs and loses nothing of Q4_1 layers.
    Inputs input_ids, attention_mask, position_ids [batch, tokens] (int64) and beam_idx [batch] (int32); output logits
    [batch, tokens, vocab]. Hidden states after layer i are named `layers.i`, those after the last norm `final_norm`.
    """
    if precision not in PRECISIONS:
        raise ModelError(f"precision {precision!r} is unknown: use one of {', '.join(PRECISIONS)}")
    a = checkpoint.architecture
    if precision == "int4" and any(size % _GROUP for size in (a.width, a.ffn, a.heads * a.head_dim)):
        raise ModelError(f"int4 needs widths that are multiples of {_GROUP}: use int8")
    builder = Builder(checkpoint, precision)
    ov.save_model(builder.model(), directory / "openvino_model.xml", compress_to_fp16=False)
    return builder.lossless


def c(value: object, dtype: type = np.int64) -> Node:
    return op.constant(np.asarray(value, dtype=dtype))


def _f(value: float) -> Node:
    return c(value, np.float32)


def _parameter(name: str, rank: int, dtype: type) -> Node:
    node = op.parameter([-1] * rank, dtype)
    named(node, name)
    return node


def named(node: Node, name: str) -> None:
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})


def to_bfloat16(matrix: Matrix) -> NDArray[np.uint16]:
    """The upper half of a float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(matrix, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rms_norm(x: Node, gain: Matrix, eps: float) -> Node:
    mean = op.reduce_mean(op.power(x, _f(2)), c([-1]), True)
    return op.multiply(op.multiply(x, op.divide(_f(1), op.sqrt(op.add(mean, _f(eps))))), op.constant(gain))


def _int8(values: Matrix) -> Node:
    """Symmetric, one scale along the last axis."""
    scale = _symmetric(values)
    return op.multiply(op.convert(op.constant(np.rint(values / scale).astype(np.int8)), "f32"), op.constant(scale))


def _symmetric(values: Matrix) -> Matrix:
    """Scales of 8-bit codes."""
    scale: Matrix = np.abs(values).max(axis=-1, keepdims=True) / 127
    scale[scale == 0] = 1
    return scale


class Builder:
    def __init__(self, checkpoint: Checkpoint, precision: str) -> None:
        self._a: Architecture = checkpoint.architecture
        self._tensor, self._precision = checkpoint.tensor, precision
        self._ids = _parameter("input_ids", 2, np.int64)
        self._mask = _parameter("attention_mask", 2, np.int64)
        self._positions = _parameter("position_ids", 2, np.int64)
        self._beam = _parameter("beam_idx", 1, np.int32)
        self._sinks: list[Node] = []
        self._kept: list[NDArray[Any]] = []
        self.lossless = precision in {"f32", "int4"}  # so far

    def model(self) -> ov.Model:
        a = self._a
        embed = self.weight(self._tensor("embed"))
        x = op.gather(embed, self._ids, c(0))
        self._cos, self._sin, self._causal = *self._rotary(), self._causal_mask()
        for i in range(a.layers):
            x = op.add(x, self._attention(i, rms_norm(x, self._tensor(f"{i}.attn_norm"), a.eps)))
            x = op.add(x, self._feed_forward(i, rms_norm(x, self._tensor(f"{i}.ffn_norm"), a.eps)))
            named(x, f"layers.{i}")
        x = rms_norm(x, self._tensor("final_norm"), a.eps)
        named(x, "final_norm")
        logits = op.matmul(x, embed if a.tied else self.weight(self._tensor("head")), False, True)
        result = op.result(logits)
        named(logits, "logits")
        parameters = [self._ids, self._mask, self._positions, self._beam]
        return ov.Model([result], self._sinks, parameters, a.family)

    def weight(self, matrix: Matrix) -> Node:
        """A [out, in] matrix in the stored precision, as float32."""
        match self._precision:
            case "int8":
                return _int8(matrix)
            case "int4":
                return self._int4(matrix)
            case "bf16":
                return op.convert(self._packed(to_bfloat16(matrix), list(matrix.shape), ov.Type.bf16), "f32")
        return op.constant(np.ascontiguousarray(matrix, dtype=np.float32))

    def _int4(self, matrix: Matrix) -> Node:
        """Groups of 32 inputs: 4 bits with a scale and a real-valued minimum; embedding and head 8 bits.

        A minimum that is rounded to a whole zero point is what makes common conversions of such files unfaithful.
        """
        groups = matrix.reshape(len(matrix), -1, _GROUP)
        if len(matrix) == self._a.vocab:
            values = _int8(groups)
            self._note_loss(groups / _symmetric(groups))
        else:
            low = groups.min(axis=2, keepdims=True)
            scale = (groups.max(axis=2, keepdims=True) - low) / 15
            scale[scale == 0] = 1
            codes = (groups - low) / scale
            self._note_loss(codes)
            pairs = np.rint(codes).astype(np.uint8).reshape(-1, 2)
            packed = self._packed(pairs[:, 0] | (pairs[:, 1] << 4), list(groups.shape), ov.Type.u4)
            shifted = op.subtract(op.convert(packed, "f32"), op.constant(-low / scale))
            values = op.multiply(shifted, op.constant(scale))
        return op.reshape(values, c(matrix.shape), False)

    def _note_loss(self, codes: Matrix) -> None:
        """Codes that are no whole numbers are rounded."""
        self.lossless = self.lossless and float(np.abs(codes - np.rint(codes)).max()) <= _ROUNDING

    def _packed(self, data: NDArray[Any], shape: list[int], kind: ov.Type) -> Node:
        self._kept.append(data)  # the constant only points at this memory
        return op.constant(ov.Tensor(data, shape, kind))

    def linear(self, x: Node, names: Sequence[str]) -> Node:
        """One product for several matrices of the same input, stacked along their outputs."""
        return op.matmul(x, self.weight(np.concatenate([self._tensor(n) for n in names])), False, True)

    def _rotary(self) -> tuple[Node, Node]:
        a = self._a
        frequencies = 1.0 / a.rope_theta ** (np.arange(0, a.head_dim, 2) / a.head_dim)
        if a.rope_factors:
            frequencies = frequencies / np.asarray(a.rope_factors)
        positions = op.convert(op.unsqueeze(self._positions, c(2)), "f32")
        angles = op.multiply(positions, op.constant(frequencies.astype(np.float32).reshape(1, 1, -1)))
        both = op.concat([angles, angles], -1)
        return op.unsqueeze(op.cos(both), c(1)), op.unsqueeze(op.sin(both), c(1))

    def _causal_mask(self) -> Node:
        """[batch, 1, tokens, total]: 0 where attention is allowed, -inf elsewhere."""
        total = op.squeeze(op.gather(op.shape_of(self._mask), c([1]), c(0)), c(0))
        rows = op.squeeze(op.gather(op.shape_of(self._ids), c([1]), c(0)), c(0))
        query = op.unsqueeze(op.range(op.subtract(total, rows), total, c(1), "i64"), c(1))
        key = op.unsqueeze(op.range(c(0), total, c(1), "i64"), c(0))
        present = op.convert(op.unsqueeze(op.unsqueeze(self._mask, c(1)), c(1)), "boolean")
        return op.select(op.logical_and(op.less_equal(key, query), present), _f(0), _f(-np.inf))

    def _rotate(self, x: Node) -> Node:
        half = self._a.head_dim // 2
        low = op.slice(x, c([0]), c([half]), c([1]), c([3]))
        high = op.slice(x, c([half]), c([2**62]), c([1]), c([3]))
        turned = op.concat([op.multiply(high, _f(-1)), low], -1)
        return op.add(op.multiply(x, self._cos), op.multiply(turned, self._sin))

    def _heads(self, x: Node, count: int) -> Node:
        """[batch, tokens, count * head_dim] -> [batch, count, tokens, head_dim]"""
        shaped = op.reshape(x, c([0, 0, count, self._a.head_dim]), True)
        return op.transpose(shaped, c([0, 2, 1, 3]))

    def _attention(self, i: int, x: Node) -> Node:
        a = self._a
        sizes = [a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.head_dim]
        qkv = self.linear(x, [f"{i}.q", f"{i}.k", f"{i}.v"])
        if a.attention_bias:
            qkv = op.add(qkv, op.constant(np.concatenate([self._tensor(f"{i}.{n}_bias") for n in "qkv"])))
        flat_q, flat_k, flat_v = op.variadic_split(qkv, c(-1), c(sizes)).outputs()
        q, k, v = self._heads(flat_q, a.heads), self._heads(flat_k, a.kv_heads), self._heads(flat_v, a.kv_heads)
        if a.qk_norm:
            q = rms_norm(q, self._tensor(f"{i}.q_norm"), a.eps)
            k = rms_norm(k, self._tensor(f"{i}.k_norm"), a.eps)
        k, v = self._cached(i, "key", self._rotate(k)), self._cached(i, "value", v)
        scale = _f(a.head_dim**-0.5)
        mixed = op.scaled_dot_product_attention(self._rotate(q), k, v, self._causal, scale, causal=False)
        flat = op.reshape(op.transpose(mixed, c([0, 2, 1, 3])), c([0, 0, a.heads * a.head_dim]), True)
        return self.linear(flat, [f"{i}.o"])

    def _cached(self, i: int, what: str, new: Node) -> Node:
        """Append to the layer's state; repeat the heads for grouped-query attention."""
        a = self._a
        batch = op.gather(op.shape_of(self._ids), c([0]), c(0))
        empty = op.broadcast(_f(0), op.concat([batch, c([a.kv_heads, 0, a.head_dim])], 0))
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, a.kv_heads, -1, a.head_dim])
        info.data_type = ov.Type.f32
        info.variable_id = f"past_key_values.{i}.{what}present.{i}.{what}"
        state = Variable(info)
        past = op.gather(op.read_value(empty, state), self._beam, c(0))
        whole = op.concat([past, new], -2)
        self._sinks.append(op.assign(whole, state))
        if a.heads == a.kv_heads:
            return whole
        shape = op.shape_of(whole)
        ends = [op.gather(shape, c(axes), c(0)) for axes in ([0, 1], [2, 3])]
        target = op.concat([ends[0], c([a.heads // a.kv_heads]), ends[1]], 0)
        repeated = op.broadcast(op.unsqueeze(whole, c(2)), target, "BIDIRECTIONAL")
        return op.reshape(repeated, c([0, a.heads, -1, a.head_dim]), True)

    def _feed_forward(self, i: int, x: Node) -> Node:
        both = self.linear(x, [f"{i}.gate", f"{i}.up"])
        gate, up = op.variadic_split(both, c(-1), c([self._a.ffn, self._a.ffn])).outputs()
        return self.linear(op.multiply(op.swish(gate), up), [f"{i}.down"])
