"""Options are resolved or refused; what was measured before is stated; drafts of another vocabulary are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import write_gguf

from draftproof import ModelOptions, SamplingParams, load
from draftproof.cli.main import main
from draftproof.model import fidelity
from draftproof.model.checkpoint import ModelError
from draftproof.model.load import default_precision, load_model, precision_for
from draftproof.types import Chunk

SMALL = ModelOptions(kv_pages=8, threads=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    write_gguf(tmp_path / "tiny.gguf")
    return str(tmp_path / "tiny.gguf")


def test_settings_are_resolved_and_stated(tiny: str) -> None:
    model, tokenizer = load_model(tiny, replace(SMALL, context=100))
    settings = model.info.settings
    assert settings["precision"] == default_precision()
    assert settings["kv_precision"] in {"f32", "bf16"}
    assert settings["threads"] == 1
    assert settings["bitwise"] in {True, False}
    assert settings["overlap with float32"] is None  # nobody measured it yet
    assert model.info.context == 100
    assert model.info.eos_ids == tokenizer.eos_ids


@pytest.fixture(params=["f32", "bf16"])
def otherwise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is run where no file decides: as on a CPU without bf16, and on one with it."""
    monkeypatch.setattr("draftproof.model.load.default_precision", lambda: request.param)
    return str(request.param)


@pytest.mark.usefixtures("otherwise")
def test_a_file_of_four_bits_is_run_as_it_is(tmp_path: Path) -> None:
    """A quarter of the bytes, and the same numbers."""
    path = tmp_path / "four.gguf"
    write_gguf(path, q4=True)
    model, whole = (load_model(str(path), replace(SMALL, precision=p)).model for p in ("auto", "f32"))
    assert (model.info.settings["precision"], model.info.settings["lossless"]) == ("int4", True)
    chunk = [Chunk((5, 3, 2, 7), 0, (0,), 4)]
    np.testing.assert_allclose(model.forward(chunk).logits, whole.forward(chunk).logits, atol=2e-4)


@pytest.mark.parametrize("q8", [False, True])
def test_other_files_are_not_cut_to_four_bits(tmp_path: Path, q8: bool, otherwise: str) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, q8=q8)
    assert precision_for(str(path)) == otherwise
    lossy = load_model(str(path), replace(SMALL, precision="int4")).model.info.settings
    assert lossy["lossless"] is False


def test_planted_blocks_that_do_not_use_their_range_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, otherwise: str
) -> None:
    """Codes of 3 to 11 in a block of Q4_1: its largest and smallest values are no codes of int4's."""
    quantize = gguf.quantize

    def narrow(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
        blocks = quantize(data, kind)
        if kind == gguf.GGMLQuantizationType.Q4_1:
            codes = blocks.reshape(-1, 20)[:, 4:]
            codes[:] = np.clip(codes & 15, 3, 11) | (np.clip(codes >> 4, 3, 11) << 4)
        return blocks

    monkeypatch.setattr("tiny_models.gguf.quantize", narrow)
    path = tmp_path / "narrow.gguf"
    write_gguf(path, q4=True)
    assert precision_for(str(path)) == otherwise


def test_an_openvino_directory_loads_like_its_source(tiny: str, cache: Path) -> None:
    first = load(tiny, "none", options=SMALL)
    directory = next(d for d in (cache / "converted").iterdir() if d.is_dir())
    second = load(str(directory), "none", options=SMALL)
    params = SamplingParams(seed=3, max_tokens=6, rule="coupled")
    assert first.generate("hello", params)[0].tokens == second.generate("hello", params)[0].tokens


@pytest.mark.parametrize(
    "bad", [{"compile": True}, {"kv_pages": -1}, {"threads": -2}, {"kv_precision": "i3"}, {"context": 10**6}]
)
def test_bad_options_name_themselves(tiny: str, bad: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=next(iter(bad))):
        load_model(tiny, replace(SMALL, **bad))  # type: ignore[arg-type]


def test_measured_fidelity_is_stated_at_the_next_load(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fidelity", "--model", tiny, "--precisions", "f32,int8", "--tokens", "64", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["f32"]["overlap"] > 0.999
    assert result["int8"]["overlap"] < result["f32"]["overlap"]
    assert main(["fidelity", "--model", tiny, "--precisions", "f32", "--tokens", "64"]) == 0
    assert "overlap" in capsys.readouterr().out
    loaded = load_model(tiny, replace(SMALL, precision="f32"))
    assert loaded.model.info.settings["overlap with float32"] == result["f32"]["overlap"]
    assert load_model(tiny, replace(SMALL, precision="int4")).model.info.settings["overlap with float32"] is None


def test_overlap_by_hand() -> None:
    p, q = np.log([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]), np.log([[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]])
    result = fidelity.compare(p.astype(np.float32), q.astype(np.float32))
    assert result.overlap == pytest.approx((0.7 + 1.0) / 2)
    assert result.lowest == pytest.approx(0.7)
    assert result.argmax_agreement == 0.5
    assert result.positions == 2


def test_draft_that_is_no_model_says_what_a_draft_can_be(tiny: str) -> None:
    with pytest.raises(ModelError, match="ngram"):
        load(tiny, "nothing-like-it", options=SMALL)


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, draftproof; print([m for m in ('numpy', 'openvino', 'torch', 'rich') if m in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == "[]"
