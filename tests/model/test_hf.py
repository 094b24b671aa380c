"""Hugging Face directories: values, types, shards, rope scaling, refusals and what the hub answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_models import TINY, metadata, write_hf

from draftproof.model import hf
from draftproof.model.checkpoint import ModelError
from draftproof.model.gguf_vocab import build_from_gguf

VARIANTS = {
    "llama": TINY,
    "qwen2": replace(TINY, family="qwen2", attention_bias=True, tied=False),
    "qwen3": replace(TINY, family="qwen3", qk_norm=True, head_dim=16),
}


def directory(path: Path, name: str = "llama", **options: object) -> Path:
    write_hf(path, VARIANTS[name], **options)  # type: ignore[arg-type]
    build_from_gguf(metadata()).write(path)
    return path


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_architecture_and_every_tensor_come_back(tmp_path: Path, name: str, files: int) -> None:
    made = write_hf(tmp_path, VARIANTS[name], files=files)
    build_from_gguf(metadata()).write(tmp_path)
    checkpoint, tokenizer = hf.read(tmp_path)
    assert checkpoint.architecture == VARIANTS[name]
    for tensor, w in made.items():
        got = checkpoint.tensor(tensor)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, w, err_msg=tensor)
    assert tokenizer.generation["eos_token_id"] == [2, 0]


def _raw_safetensors(path: Path, dtype: str, name: str, array: np.ndarray) -> None:
    header = json.dumps({name: {"dtype": dtype, "shape": array.shape, "data_offsets": [0, array.nbytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + array.tobytes())


def test_bfloat16_and_float16_are_read(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0, np.inf], np.float32)
    _raw_safetensors(tmp_path / "a.safetensors", "BF16", "x", (values.view(np.uint32) >> 16).astype(np.uint16))
    np.testing.assert_array_equal(hf.table(tmp_path / "a.safetensors")["x"].read(), values)
    save_file({"x": values.astype(np.float16)}, tmp_path / "b.safetensors")
    np.testing.assert_array_equal(hf.table(tmp_path / "b.safetensors")["x"].read(), values.astype(np.float16))


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def test_llama3_factors_are_the_published_case_by_case_formula() -> None:
    theta, dim = 500.0, 32
    got = hf.llama3_factors(LLAMA3, theta, dim)
    kinds = set()
    for i, factor in enumerate(got):
        wave = 2 * np.pi * theta ** (2 * i / dim)
        if wave < 64 / 4:
            want, kind = 1.0, "short"
        elif wave > 64 / 1:
            want, kind = 8.0, "long"
        else:
            smooth = (64 / wave - 1) / (4 - 1)
            want, kind = 1 / ((1 - smooth) / 8 + smooth), "between"
        kinds.add(kind)
        assert factor == pytest.approx(want, rel=1e-12)
    assert kinds == {"short", "long", "between"}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": LLAMA3, "rope_theta": 500.0},
        {"rope_scaling": {**LLAMA3, "type": "llama3"}, "rope_theta": 500.0},
        {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}, "rope_theta": None},
    ],
)
def test_rope_settings_are_found_under_each_name(tmp_path: Path, changes: dict[str, object]) -> None:
    a = hf.read(directory(tmp_path, **changes))[0].architecture
    assert (a.rope_theta, a.rope_factors) == (500.0, hf.llama3_factors(LLAMA3, 500.0, 8))


def test_mistral_is_llama_without_a_window_in_effect(tmp_path: Path) -> None:
    for window in (None, TINY.context):
        config = directory(tmp_path, model_type="mistral", sliding_window=window)
        assert hf.read(config)[0].architecture == TINY
    qwen = directory(tmp_path, "qwen2", sliding_window=8, use_sliding_window=False)
    assert hf.read(qwen)[0].architecture.family == "qwen2"


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "window": ({"model_type": "mistral", "sliding_window": 64}, "sliding-window"),
    "qwen window": ({"use_sliding_window": True, "sliding_window": 64}, "sliding-window"),
    "layer types": ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn rope scaling"),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic rope scaling"),
    "quantised": ({"quantization_config": {"quant_method": "awq"}}, "quantised Hugging Face weights"),
    "activation": ({"hidden_act": "gelu"}, "activation gelu"),
    "part": ({"partial_rotary_factor": 0.5}, "only part of each head"),
    "mamba": ({"model_type": "mamba2"}, "recurrent.*cannot be rolled back"),
    "moe": ({"model_type": "qwen3_moe"}, "mixture of experts"),
    "mixtral": ({"model_type": "mixtral"}, "mixture of experts"),
    "gemma": ({"model_type": "gemma2"}, "gemma2 is not supported; use one of llama, mistral, qwen2, qwen3"),
    "size": ({"hidden_size": None}, "hidden_size"),
    "text": ({"num_hidden_layers": "two"}, "config.json lacks or garbles"),
    "layers": ({"num_hidden_layers": 3}, r"model\.layers\.2\.input_layernorm\.weight is missing"),
    "layers absurd": ({"num_hidden_layers": 2**31}, "fewer tensors than layers"),
    "shape": ({"intermediate_size": 63}, "has shape"),
    "head": ({"tie_word_embeddings": False}, r"lm_head\.weight is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    changes, pattern = REFUSED[name]
    with pytest.raises(ModelError, match=pattern) as caught:
        hf.read(directory(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_unknown_tensors_and_quantised_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds 4 tensors .*k_norm"):
        hf.read(directory(tmp_path, "qwen3", model_type="qwen2"))
    _raw_safetensors(tmp_path / "model.safetensors", "F8_E4M3", "x", np.zeros(4, np.uint8))
    with pytest.raises(ModelError, match="type F8_E4M3"):
        hf.read(tmp_path)


def test_every_truncation_is_one_clear_line(tmp_path: Path) -> None:
    path = directory(tmp_path) / "model.safetensors"
    data = path.read_bytes()
    for size in [0, 4, 8, 100, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"not a readable safetensors file.*fetch it again"):
            hf.read(tmp_path)


def test_a_missing_shard_and_a_broken_index_are_named(tmp_path: Path) -> None:
    directory(tmp_path, files=3)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 3 weight files are missing \(model-2\.safetensors\)"):
        hf.read(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="not a valid index"):
        hf.read(tmp_path)


def test_the_fingerprint_covers_weights_and_template(tmp_path: Path) -> None:
    first = hf.fingerprint(directory(tmp_path))
    assert hf.fingerprint(tmp_path) == first == hf.read(tmp_path)[0].fingerprint
    (tmp_path / "chat_template.jinja").write_text("new")
    second = hf.fingerprint(tmp_path)
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(bytes(data))
    assert len({first, second, hf.fingerprint(tmp_path)}) == 3


def test_without_the_hub_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install draftproof\[hf\]"):
        hf.download("org/name")


def _bare(kind: type[Exception]) -> Exception:
    """An exception of the hub's client without the HTTP answer that its versions want in different forms."""
    error: Exception = type("Bare", (kind,), {"__init__": lambda self: None, "__str__": lambda self: "no"})()
    return error


def _errors() -> dict[str, tuple[Exception, str]]:
    from huggingface_hub import errors

    return {
        "gated": (_bare(errors.GatedRepoError), "accept its terms"),
        "absent": (_bare(errors.RepositoryNotFoundError), "no such path here and no such model"),
        "offline": (_bare(errors.LocalEntryNotFoundError), "cannot be reached"),
        "name": (ValueError("bad name\nmore"), "bad name"),
        "disk": (OSError("disk full"), "disk full"),
        "other": (Exception("connection reset"), "connection reset"),
    }


@pytest.mark.parametrize("kind", ["gated", "absent", "offline", "name", "disk", "other"])
def test_each_failure_of_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    error, pattern = _errors()[kind]

    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelError, match=pattern) as caught:
        hf.download("org/name")
    assert "\n" not in str(caught.value)


def test_only_needed_files_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def snapshot(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    said: list[str] = []
    assert hf.download("org/name", said.append) == tmp_path
    assert asked["name"] == "org/name"
    assert "*.safetensors" in str(asked["allow_patterns"])
    assert "*.bin'" not in str(asked["allow_patterns"])
    assert "*/*" in str(asked["ignore_patterns"])
    assert said == ["fetching org/name from the Hugging Face hub"]
