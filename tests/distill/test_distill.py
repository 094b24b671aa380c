"""`distill` on a toy checkpoint: the head learns, a stopped run ends at the same weights, bad wishes are refused."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from draftproof import load
from draftproof.cli.main import main
from draftproof.distill import collect, run, train
from draftproof.distill.collect import Rounds, Sizes
from draftproof.distill.run import Progress, Wish, distill
from draftproof.model import headfile
from draftproof.model.checkpoint import ModelError
from draftproof.model.load import ModelOptions, load_model
from draftproof.types import SamplingParams
from draftproof.verify import toy

SMALL = Sizes(20, 4, 4, 4, 24, 24, 24)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy.write_hf(toy.pair().target, tmp_path_factory.mktemp("toy") / "target"))


@pytest.fixture(scope="module")
def wish(target: str) -> Wish:
    return Wish(target, tokens=3000, vocabulary=12, batch=512, sizes=SMALL)


@pytest.fixture(scope="module")
def made(wish: Wish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("head")
    distill(wish, out)
    return out


def stop_at(what: str, done: float) -> Callable[[Progress], None]:
    def said(at: Progress) -> None:
        if at.what == what and at.done >= done:
            raise KeyboardInterrupt

    return said


@pytest.mark.parametrize(
    ("what", "done"), [("collecting", 0.0), ("collecting", 0.3), ("training", 0.1), ("training", 0.8)]
)
def test_a_stopped_run_ends_at_the_same_weights(wish: Wish, made: Path, tmp_path: Path, what: str, done: float) -> None:
    with pytest.raises(KeyboardInterrupt):
        distill(wish, tmp_path, stop_at(what, done))
    assert not (tmp_path / "model.safetensors").exists()
    distill(wish, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


def test_another_seed_gives_other_weights(wish: Wish, made: Path, tmp_path: Path) -> None:
    distill(replace(wish, seed=2), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() != (made / "model.safetensors").read_bytes()


def test_the_head_learns(wish: Wish, made: Path, tmp_path: Path) -> None:
    """Held-out alpha rises; an untrained head (one step) stays below."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "plan.json").write_text(json.dumps({"seed": 1, "steps": 1, "tokens": 512, "rate": 2e-3}))
    distill(wish, tmp_path)

    def last(out: Path) -> list[float]:
        line = (out / "work" / "training.jsonl").read_text().splitlines()[-1]
        return list(json.loads(line)["alpha"])

    assert all(later > first + 0.04 for later, first in zip(last(made), last(tmp_path), strict=True)), (
        last(made),
        last(tmp_path),
    )


def test_the_head_drafts_and_keeps_the_text(target: str, made: Path) -> None:
    options = ModelOptions(precision="f32", kv_pages=64, threads=1)
    engine = load(target, f"head:{made}", k=3, options=options, draft_options=options)
    prompts = [[4, 5, 6], [9], [7, 7, 12, 4]]
    drafted = engine.generate(prompts, SamplingParams(max_tokens=40, seed=3, rule="coupled", ignore_eos=True))
    plain = engine.generate(prompts, SamplingParams(max_tokens=40, seed=3, rule="coupled", ignore_eos=True, k=0))
    assert [o.tokens for o in drafted] == [o.tokens for o in plain]
    assert sum(s.accepted for o in drafted for s in o.steps) > 20


def test_texts_may_come_from_pytorch(wish: Wish, target: str, made: Path, tmp_path: Path) -> None:
    """Another draw of the same law's texts, with the same states: as good a head, and it serves either backend."""
    pytest.importorskip("transformers")
    distill(replace(wish, model=f"torch:{target}"), tmp_path)
    logs = [(out / "work" / "training.jsonl").read_text().splitlines() for out in (made, tmp_path)]
    ours, theirs = (json.loads(lines[-1])["alpha"] for lines in logs)
    assert theirs == pytest.approx(ours, abs=0.1)
    options = ModelOptions(precision="f32", kv_pages=64)
    for model in (target, f"torch:{target}"):
        engine = load(model, f"head:{tmp_path}", k=3, options=options, draft_options=options)
        text = engine.generate([4, 5, 6], SamplingParams(max_tokens=40, seed=3, ignore_eos=True))[0]
        assert sum(s.accepted for s in text.steps) > 5


def test_other_wishes_need_another_folder(wish: Wish, made: Path) -> None:
    with pytest.raises(ModelError, match="was begun with other options"):
        distill(replace(wish, seed=9), made)


def test_a_head_of_another_model_is_refused(made: Path, tmp_path: Path) -> None:
    other = toy.write_hf(toy.pair("agreeing").target, tmp_path / "other")
    with pytest.raises(ModelError, match="trained for another model"):
        load(str(other), f"head:{made}", options=ModelOptions(kv_pages=8))


def test_no_space_is_said(wish: Wish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(collect.np, "savez", full)
    with pytest.raises(ModelError, match=r"No space left on device.*free some space"):
        distill(wish, tmp_path)
    assert not list((tmp_path / "work").glob("*.tmp"))


@pytest.mark.parametrize("kept", ["vocabulary.pt", "snapshot.pt"])
def test_no_space_while_training_is_said_and_can_be_gone_on_from(
    wish: Wish, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    save = train.torch.save

    def full(value: object, path: Path) -> None:
        save(value, path)
        if path.stem == kept.partition(".")[0]:
            raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(train.torch, "save", full)
    with pytest.raises(ModelError, match=rf"{kept}.*No space left on device.*free some space"):
        distill(wish, tmp_path)
    monkeypatch.undo()
    distill(wish, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


def test_without_torch_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith("draftproof.distill")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["distill", "smollm2", "--out", str(tmp_path / "head")]) == 2
    assert "pip install 'draftproof[train]'" in capsys.readouterr().err


def test_the_command_trains_and_measures(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_EPOCHS", 1)
    out = tmp_path / "head"
    assert main(["distill", target, "--out", str(out), "--tokens", "500", "--measure", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["temperature"] for row in told["measured"]] == [0.0, 1.0]
    assert told["card"]["tokens"] >= 500
    assert headfile.read(out).card["steps"] == told["card"]["steps"]


def test_states_are_those_of_one_pass_over_the_text(target: str, tmp_path: Path) -> None:
    """What was recorded step by step in a batch, against a plain pass; rows moved by one are far off."""
    layers = (0, -1)
    loaded = load_model(target, ModelOptions("f32", hidden_layers=layers, bitwise=False, kv_pages=512, threads=1))
    rounds = Rounds(loaded, tmp_path, seed=5, sizes=SMALL)
    rounds.make(0)
    from draftproof.types import Chunk

    for text in collect.read(rounds.path(0))[::7]:
        n = len(text.tokens)
        out = loaded.model.forward([Chunk(tuple(text.tokens.tolist()), 0, tuple(range(-(-n // 32))), 1)])
        assert out.hidden is not None
        assert abs(out.hidden - text.states).max() < 0.02
        assert abs(out.hidden[1:] - text.states[:-1]).max() > 0.5
