"""Names with torch: in front, both backends side by side, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftproof.cli.main import main
from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.loading import load
from draftproof.model.checkpoint import ModelError
from draftproof.model.fidelity import all_logits
from draftproof.model.load import Loaded, ModelOptions, load_model
from draftproof.types import SamplingParams
from draftproof.verify import toy

SMALL = ModelOptions(precision="f32", kv_pages=16, threads=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pair, folder = toy.pair("spread"), tmp_path_factory.mktemp("toys")
    return {name: str(toy.write_hf(getattr(pair, name), folder / name)) for name in ("target", "draft")}


@pytest.fixture(scope="module")
def loaded(folders: dict[str, str]) -> dict[str, Loaded]:
    """The pair on both backends."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    names = {"torch:target": "torch:" + folders["target"], "torch:draft": "torch:" + folders["draft"], **folders}
    return {key: load_model(name, SMALL) for key, name in names.items()}


def test_both_backends_run_the_same_numbers(loaded: dict[str, Loaded]) -> None:
    tokens = tuple(int(t) for t in np.random.default_rng(0).integers(4, 20, 64))
    for name in ("target", "draft"):
        ours, theirs = (all_logits(loaded[key].model, tokens) for key in (f"torch:{name}", name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    assert loaded["torch:target"].model.info.bitwise
    assert loaded["torch:target"].model.info.settings["bitwise"] is True
    assert loaded["torch:target"].model.info.eos_ids == loaded["target"].model.info.eos_ids


@pytest.mark.parametrize(("target", "draft"), [("torch:target", "draft"), ("target", "torch:draft")])
def test_draft_and_target_may_be_on_different_backends(loaded: dict[str, Loaded], target: str, draft: str) -> None:
    """Under the coupled rule a text depends on target and seed alone: the draft's backend must not show."""
    model, tokenizer = loaded[target].model, loaded[target].tokenizer
    params = [SamplingParams(temperature=0.8, seed=s, max_tokens=24, rule="coupled", ignore_eos=True) for s in range(3)]
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    plain = Engine(model, tokenizer).generate(prompts, params)
    made = Engine(model, tokenizer, ModelProposer(loaded[draft].model, model.info.vocab), k=3).generate(prompts, params)
    assert [o.tokens for o in made] == [o.tokens for o in plain]
    assert sum(s.accepted for o in made for s in o.steps) > 0


def test_an_engine_loads_by_name(folders: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    engine = load("torch:" + folders["target"], "torch:" + folders["draft"], k=2, options=SMALL, draft_options=SMALL)
    assert "torch" in str(engine.settings["backend"])
    assert len(engine.generate([[5, 6]], SamplingParams(seed=1, max_tokens=5, ignore_eos=True))[0].tokens) == 5
    engine.audit()


def test_fidelity_on_pytorch_is_its_own(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured for one backend, it says nothing of the other."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    name = folders["target"]
    command = ["fidelity", "--model", f"torch:{name}", "--precisions", "f32,bf16", "--tokens", "64", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bf16"]["overlap"] < found["f32"]["overlap"] == pytest.approx(1.0, abs=1e-4)
    for precision in ("f32", "bf16"):
        loaded = load_model(f"torch:{name}", replace(SMALL, precision=precision))
        assert loaded.model.info.settings["overlap with float32"] == found[precision]["overlap"]
    assert load_model(name, SMALL).model.info.settings["overlap with float32"] is None


def test_gguf_and_hugging_face_files_give_the_same_model(tmp_path: Path) -> None:
    torch_load = pytest.importorskip("draftproof.model.torch_load")
    import tiny_models
    import torch

    from draftproof.model import gguf, hf

    tiny_models.write_gguf(tmp_path / "m.gguf")
    tiny_models.write_hf(tmp_path / "m")
    from_file = torch_load.from_checkpoint(gguf.read(tmp_path / "m.gguf")[0], "m").state_dict()
    weights = hf.table(tmp_path / "m" / "model.safetensors")
    for name, stored in weights.items():
        assert torch.equal(from_file[name], torch.tensor(stored.read())), name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ModelOptions(device="cuda:0"), "no cuda device"),
        (ModelOptions(device="tpu"), "unknown"),
        (ModelOptions(precision="int8"), "f32, bf16, f16"),
        (ModelOptions(precision="f32", kv_precision="u8"), "K and V in f32"),
        (ModelOptions(context=100_000), "made for"),
        (ModelOptions(kv_pages=-1), "negative"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(
    folders: dict[str, str], options: ModelOptions, reason: str
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() and reason == "no cuda device":
        pytest.skip("there is one")
    with pytest.raises(ModelError, match=reason):
        load_model("torch:" + folders["target"], options)


def test_a_device_without_torch_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="torch:NAME"):
        load_model(folders["target"], ModelOptions(device="cuda"))


def test_low_precision_promises_no_bits(folders: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    info = load_model("torch:" + folders["target"], ModelOptions(precision="bf16", kv_pages=16)).model.info
    assert not info.bitwise
    assert info.settings["precision"] == "bf16"


def test_recurrent_models_are_refused_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="rolled back"):
        load_model(f"torch:{tmp_path}")


def test_missing_torch_names_the_fix(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.startswith("draftproof.model.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"pip install draftproof\[torch\]"):
        load_model("torch:" + folders["target"])


def test_nothing_of_torch_is_imported_without_being_asked_for() -> None:
    code = (
        "import sys, draftproof.cli.main as m, draftproof.loading, draftproof.engine\n"
        "from importlib import import_module\n"
        "[import_module(f'draftproof.cli.{c}') for c in m.COMMANDS]\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'torch', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
