"""GGUF files: values, order of rotary rows, and one clear line for everything that is refused."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import TINY, write_gguf

from draftproof.model.checkpoint import Matrix, ModelError
from draftproof.model.fetch import smollm2_gguf
from draftproof.model.gguf import half_split, read

VARIANTS = {
    "llama": TINY,
    "llama-untied-bias": replace(TINY, tied=False, attention_bias=True),
    "qwen2": replace(TINY, family="qwen2", attention_bias=True, rope_theta=1e6),
    "qwen3": replace(TINY, family="qwen3", qk_norm=True, head_dim=16),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_architecture_and_every_tensor_come_back(tmp_path: Path, name: str) -> None:
    a = VARIANTS[name]
    made = write_gguf(tmp_path / "m.gguf", a)
    checkpoint, _ = read(tmp_path / "m.gguf")
    assert replace(checkpoint.architecture, eps=a.eps) == a  # eps is stored as float32
    assert checkpoint.architecture.eps == pytest.approx(a.eps)
    for tensor, w in made.items():
        got = checkpoint.tensor(tensor)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, w, err_msg=tensor)


def test_quantised_tensors_are_the_packages_own_numbers(tmp_path: Path) -> None:
    a = replace(TINY, family="qwen2", attention_bias=True)
    made = write_gguf(tmp_path / "m.gguf", a, q8=True)
    checkpoint, _ = read(tmp_path / "m.gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    want = gguf.dequantize(gguf.quantize(made["1.down"], kind), kind)
    np.testing.assert_array_equal(checkpoint.tensor("1.down"), want)
    assert np.abs(want - made["1.down"]).max() > 0


def test_fingerprint_is_the_files_sha256(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    assert read(path)[0].fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def _rotate(x: Matrix, position: int, first: np.ndarray, second: np.ndarray, theta: float = 1e4) -> Matrix:
    """Rotates the pairs (first[i], second[i]) of one head."""
    angle = position * theta ** (-2.0 * np.arange(len(first)) / len(x))
    out = np.empty_like(x)
    out[first] = x[first] * np.cos(angle) - x[second] * np.sin(angle)
    out[second] = x[first] * np.sin(angle) + x[second] * np.cos(angle)
    return out


@pytest.mark.parametrize("unpermute", [True, False])
def test_attention_scores_agree_only_with_rows_in_half_split_order(unpermute: bool) -> None:
    rng = np.random.default_rng(3)
    dim, heads = 8, 3
    q, k = rng.standard_normal((2, heads * dim, 5))
    x, y = rng.standard_normal((2, 5))
    even, low = np.arange(0, dim, 2), np.arange(dim // 2)
    fix = half_split if unpermute else lambda w, _: w
    q2, k2 = fix(q, heads), fix(k, heads)
    for h in range(heads):
        rows = slice(h * dim, (h + 1) * dim)
        stored = _rotate((q @ x)[rows], 9, even, even + 1) @ _rotate((k @ y)[rows], 4, even, even + 1)
        ours = _rotate((q2 @ x)[rows], 9, low, low + dim // 2) @ _rotate((k2 @ y)[rows], 4, low, low + dim // 2)
        assert np.isclose(stored, ours, rtol=1e-9) == unpermute


def test_llama3_rope_factors_are_read(tmp_path: Path) -> None:
    factors = np.array([1, 1, 4, 8], np.float32)
    write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    assert read(tmp_path / "m.gguf")[0].architecture.rope_factors == (1.0, 1.0, 4.0, 8.0)


REFUSED: dict[str, tuple[str | None, dict[str, object], str]] = {
    "yarn": (None, {"llama.rope.scaling.type": "yarn"}, "yarn rope scaling"),
    "linear": (None, {"llama.rope.scaling.type": "linear"}, "linear rope scaling"),
    "experts": (None, {"llama.expert_count": 8}, "mixture of experts"),
    "window": (None, {"llama.attention.sliding_window": 64}, "sliding-window"),
    "split": (None, {"split.count": 3}, "split model.*gguf-split --merge"),
    "part": (None, {"llama.rope.dimension_count": 4}, "part of each head"),
    "layers differ": (None, {"llama.attention.head_count_kv": [2, 1]}, "differs between layers"),
    "many layers": (None, {"llama.block_count": 2**31}, "fewer tensors than layers"),
    "pre": (None, {"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer tekken.*smollm.*qwen2"),
    "mamba": ("mamba", {}, "mamba is recurrent.*cannot be rolled back"),
    "rwkv": ("rwkv7", {}, "recurrent.*cannot be rolled back"),
    "jamba": ("jamba", {}, "recurrent.*cannot be rolled back"),
    "moe": ("qwen3moe", {}, "mixture of experts"),
    "gemma": ("gemma2", {}, "gemma2 is not supported; use one of llama, qwen2, qwen3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    arch, extra, pattern = REFUSED[name]
    write_gguf(tmp_path / "m.gguf", arch=arch, extra=extra)
    with pytest.raises(ModelError, match=pattern) as caught:
        read(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_window_as_long_as_the_context_is_no_window(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", extra={"llama.attention.sliding_window": TINY.context})
    read(tmp_path / "m.gguf")


def test_unknown_missing_and_misshapen_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tensors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match="attn_sinks"):
        read(path)
    write_gguf(path, replace(TINY, layers=1), extra={"llama.block_count": 2})
    with pytest.raises(ModelError, match=r"blk\.1\.attn_norm\.weight is missing"):
        read(path)
    write_gguf(path, extra={"llama.feed_forward_length": 63})
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate\.weight has shape"):
        read(path)


def test_every_truncation_is_one_clear_line(tmp_path: Path) -> None:
    path, cut = tmp_path / "m.gguf", tmp_path / "cut.gguf"
    write_gguf(path)
    data = path.read_bytes()
    for size in [*range(0, 200), *range(200, len(data), 997), len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"not a readable GGUF file.*fetch it again"):
            read(cut)
    with pytest.raises(ModelError, match=r"before the end of tensor"):
        read(cut)


def test_an_absurd_array_length_neither_hangs_nor_exhausts_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for kind in (4, 8, 9):
        field = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, kind, 2**60)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + bytes(64))
        with pytest.raises(ModelError, match="not a readable GGUF file"):
            read(path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    folder = tmp_path_factory.mktemp("damaged")
    write_gguf(folder / "m.gguf")
    return (folder / "m.gguf").read_bytes(), folder / "damaged.gguf"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 8000), value=st.integers(0, 255))
def test_a_damaged_byte_is_read_or_refused(damaged: tuple[bytes, Path], at: int, value: int) -> None:
    data, path = damaged
    changed = bytearray(data)
    changed[at] = value
    path.write_bytes(bytes(changed))
    try:
        checkpoint, _ = read(path)
    except ModelError as error:
        message = str(error)
    else:
        message = str(checkpoint.architecture)
    assert "\n" not in message


@pytest.mark.model
def test_the_default_model_is_read() -> None:
    checkpoint, _ = read(smollm2_gguf())
    a = checkpoint.architecture
    assert (a.layers, a.width, a.heads, a.kv_heads, a.vocab, a.tied) == (30, 576, 9, 3, 49152, True)
    reader = gguf.GGUFReader(smollm2_gguf())
    stored = {t.name: t for t in reader.tensors}["blk.3.attn_k.weight"]
    w = gguf.dequantize(stored.data, stored.tensor_type)
    np.testing.assert_array_equal(checkpoint.tensor("3.k"), half_split(w, 3))
    assert not np.array_equal(checkpoint.tensor("3.k"), w)
