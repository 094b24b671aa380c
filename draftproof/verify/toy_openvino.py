"""Writes a toy as an OpenVINO directory in the form that optimum-intel exports: for OpenVINO GenAI, and for ours.

Knows that format and nothing of any engine; the graph is written from the toy's own definition, not by an engine's
converter. The tokenizer is two graphs of OpenVINO's own operations, since a word of the toys is one byte: no tokenizer
package is needed to write them. Importing this module imports OpenVINO.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as op
from openvino.op.util import Variable, VariableInfo

from draftproof.verify.toy_files import write_json
from draftproof.verify.toy_model import BEGIN, END, SPECIAL, UNKNOWN, WORDS, Matrix, Sizes, Toy

Node = Any  # OpenVINO's nodes carry no types
_HIDDEN = float(np.finfo(np.float32).min)  # not -inf: a row of padding may see nothing at all, and must not become NaN


def write_openvino(toy: Toy, directory: Path) -> Path:
    """A directory that LLMPipeline, ContinuousBatchingPipeline and optimum-intel load. Returns it.

    The graph has inputs input_ids, attention_mask, position_ids [batch, tokens] and beam_idx [batch], keys and values
    as state, and the output logits [batch, tokens, vocab], all in float32. tokenizer.json and the other documents are
    those of `write_hf`. The plugin keeps keys and values in 8 bits unless it is told KV_CACHE_PRECISION f32: not exact.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json(toy, directory)
    models = {"model": _Graph(toy).model(), "tokenizer": _tokenizer(toy), "detokenizer": _detokenizer()}
    for name, model in models.items():
        ov.save_model(model, directory / f"openvino_{name}.xml", compress_to_fp16=False)
    return directory


def _ints(*values: int) -> Node:
    return op.constant(np.array(values, dtype=np.int64))


def _int(value: int) -> Node:
    return op.constant(np.array(value, dtype=np.int64))


def _real(value: float) -> Node:
    return op.constant(np.array(value, dtype=np.float32))


def _named(node: Node, name: str) -> Node:
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def _input(name: str, rank: int, kind: ov.Type) -> Node:
    return _named(op.parameter([-1] * rank, kind), name)


def _size(node: Node, axis: int) -> Node:
    """Length of an axis, as a list of one."""
    return op.gather(op.shape_of(node), _ints(axis), _int(0))


def _count(size: Node) -> Node:
    """0 .. size - 1. Shape [size]."""
    return op.range(_int(0), op.squeeze(size, _int(0)), _int(1), "i64")


class _Graph:
    """The toy of `toy_model`, operation by operation. Shapes: B batch, N new tokens, S all tokens."""

    def __init__(self, toy: Toy) -> None:
        self._s: Sizes = toy.sizes
        self._tensors: Mapping[str, Matrix] = toy.tensors
        self._ids = _input("input_ids", 2, ov.Type.i64)
        self._mask = _input("attention_mask", 2, ov.Type.i64)
        self._positions = _input("position_ids", 2, ov.Type.i64)
        self._beam = _input("beam_idx", 1, ov.Type.i32)
        self._cos, self._sin = self._turns()
        self._bias = self._visible()
        self._sinks: list[Node] = []

    def model(self) -> ov.Model:
        x = op.gather(self._weight("embed"), self._ids, _int(0))
        for i in range(self._s.layers):
            x = op.add(x, self._attention(i, self._norm(x, f"{i}.attn_norm")))
            h = self._norm(x, f"{i}.ffn_norm")
            gate, up = op.swish(self._times(h, f"{i}.gate")), self._times(h, f"{i}.up")
            x = op.add(x, self._times(op.multiply(gate, up), f"{i}.down"))
        result = op.result(_named(self._times(self._norm(x, "final_norm"), "head"), "logits"))
        return ov.Model([result], self._sinks, [self._ids, self._mask, self._positions, self._beam], "toy")

    def _weight(self, name: str) -> Node:
        return op.constant(np.ascontiguousarray(self._tensors[name], dtype=np.float32))

    def _times(self, x: Node, name: str) -> Node:
        return op.matmul(x, self._weight(name), False, True)

    def _norm(self, x: Node, name: str) -> Node:
        mean = op.reduce_mean(op.power(x, _real(2)), _ints(-1), True)
        scale = op.divide(_real(1), op.sqrt(op.add(mean, _real(self._s.eps))))
        return op.multiply(self._weight(name), op.multiply(x, scale))

    def _turns(self) -> tuple[Node, Node]:
        """Cosine and sine of each position's angles, for both halves of a head. Shape [B, 1, N, dim]."""
        half = self._s.head_dim // 2
        frequencies = (self._s.theta ** (-np.arange(half) / half)).astype(np.float32)
        positions = op.convert(op.unsqueeze(self._positions, _ints(1, 3)), "f32")
        angles = op.multiply(positions, op.constant(np.tile(frequencies, 2)[None, None, None]))
        return op.cos(angles), op.sin(angles)

    def _rotate(self, x: Node) -> Node:
        low, high = op.split(x, _int(3), 2).outputs()
        turned = op.concat([op.negative(high), low], 3)
        return op.add(op.multiply(x, self._cos), op.multiply(turned, self._sin))

    def _visible(self) -> Node:
        """What is added to scores: 0 for tokens that are there and not later. Shape [B, 1, N, S]."""
        everything, new = _size(self._mask, 1), _size(self._ids, 1)
        keys = _count(everything)
        queries = op.unsqueeze(op.add(_count(new), op.subtract(everything, new)), _int(1))
        real = op.not_equal(op.unsqueeze(self._mask, _ints(1, 2)), _int(0))
        return op.select(op.logical_and(real, op.less_equal(keys, queries)), _real(0), _real(_HIDDEN))

    def _attention(self, i: int, x: Node) -> Node:
        s = self._s
        q = self._rotate(self._split(self._times(x, f"{i}.q"), s.heads))
        k = self._rotate(self._split(self._times(x, f"{i}.k"), s.kv_heads))
        v = self._split(self._times(x, f"{i}.v"), s.kv_heads)
        k, v = (self._shared(self._with_past(new, f"{i}.{name}")) for new, name in ((k, "key"), (v, "value")))
        mixed = op.scaled_dot_product_attention(q, k, v, self._bias, _real(s.head_dim**-0.5), causal=False)
        together = op.reshape(op.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, s.heads * s.head_dim), True)
        return self._times(together, f"{i}.o")

    def _split(self, x: Node, heads: int) -> Node:
        """[B, N, heads * dim] -> [B, heads, N, dim]."""
        return op.transpose(op.reshape(x, _ints(0, 0, heads, self._s.head_dim), True), _ints(0, 2, 1, 3))

    def _with_past(self, new: Node, name: str) -> Node:
        """The state's rows that beam_idx chooses, and `new` behind them: the next state. [B, kv_heads, S, dim]."""
        s, info = self._s, VariableInfo()
        info.data_shape = ov.PartialShape([-1, s.kv_heads, -1, s.head_dim])
        info.data_type = ov.Type.f32
        info.variable_id = f"past_key_values.{name}present.{name}"  # optimum-intel's names
        state = Variable(info)
        start = op.broadcast(_real(0), op.concat([_size(self._ids, 0), _ints(s.kv_heads, 0, s.head_dim)], 0))
        past = op.gather(op.read_value(start, state), self._beam, _int(0))
        whole = op.concat([past, new], 2)
        self._sinks.append(op.assign(whole, state))
        return whole

    def _shared(self, x: Node) -> Node:
        """Each key or value head, once for every query head that shares it. [B, heads, S, dim]."""
        s = self._s
        shape = op.concat([_size(x, 0), _ints(s.kv_heads, s.heads // s.kv_heads), _size(x, 2), _ints(s.head_dim)], 0)
        return op.reshape(op.broadcast(op.unsqueeze(x, _int(2)), shape), _ints(0, s.heads, -1, s.head_dim), True)


def _tokenizer(toy: Toy) -> ov.Model:
    """Texts [batch] -> input_ids, attention_mask [batch, tokens], padded on the left. Bytes of no word are unknown."""
    ids = np.full(256, UNKNOWN, dtype=np.int64)
    for i in range(len(SPECIAL), len(WORDS)):
        ids[ord(WORDS[i])] = i
    texts = _input("string_input", 1, ov.Type.string)
    begins, ends, characters = (op.convert(o, "i64") for o in op.string_tensor_unpack(texts).outputs())
    lengths = op.subtract(ends, begins)
    longest = op.reduce_max(lengths, _ints(0), True)
    places = op.subtract(_count(longest), op.unsqueeze(op.subtract(longest, lengths), _int(1)))
    there = op.greater_equal(places, _int(0))
    at = op.select(there, op.add(places, op.unsqueeze(begins, _int(1))), _int(0))
    some = op.concat([characters, _ints(0)], 0)  # so that there is something at 0 when all texts are empty
    found = op.gather(op.constant(ids), op.gather(some, at, _int(0)), _int(0))
    results = {"input_ids": op.select(there, found, _int(END)), "attention_mask": op.convert(there, "i64")}
    model = ov.Model([op.result(_named(node, name)) for name, node in results.items()], [texts], "tokenizer")
    for name, value in {"bos_token_id": BEGIN, "eos_token_id": toy.eos, "pad_token_id": END}.items():
        model.set_rt_info(value, name)
    return model


def _detokenizer() -> ov.Model:
    """Tokens [batch, tokens] -> texts [batch]. Special tokens are left out, but for the line feed."""
    last = len(SPECIAL) - 1
    letters = np.frombuffer("".join(["\0" * last, "\n", *WORDS[len(SPECIAL) :]]).encode(), dtype=np.uint8)
    ids = _input("input_ids", 2, ov.Type.i64)
    kept = op.greater_equal(ids, _int(last))
    counts = op.reduce_sum(op.convert(kept, "i64"), _ints(1), False)
    ends = op.cum_sum(counts, _int(0))
    places = op.squeeze(op.non_zero(op.reshape(kept, _ints(-1), False)), _int(0))
    words = op.gather(op.reshape(ids, _ints(-1), False), places, _int(0))
    characters = op.gather(op.constant(letters), words, _int(0))
    begins, ends = (op.convert(node, "i32") for node in (op.subtract(ends, counts), ends))
    text = _named(op.string_tensor_pack(begins, ends, characters), "string_output")
    return ov.Model([op.result(text)], [ids], "detokenizer")
