"""Heads on disk: what is written is read, and what is wrong is said in one line with the fix."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from heads import IDS, head_path, random_head, source, target
from safetensors.numpy import load_file, save_file

from draftproof import load
from draftproof.model import headfile
from draftproof.model.checkpoint import ModelError
from draftproof.model.head import HeadModel, check, layers
from draftproof.model.paged import PagedOptions
from draftproof.types import Chunk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    headfile.write(random_head(), tmp_path, {"seed": 7})
    return tmp_path


def test_what_is_written_is_read(path: Path) -> None:
    head, read = random_head(), headfile.read(path)
    assert (read.sizes, read.target, read.card["seed"]) == (head.sizes, head.target, 7)
    np.testing.assert_array_equal(read.ids, IDS)
    for name, values in head.tensors.items():
        np.testing.assert_allclose(read.tensors[name], values, rtol=2**-8)


def test_ids_are_stored_as_offsets_and_states_by_the_conventions_numbers(path: Path) -> None:
    from draftproof.model import hf

    offsets = hf.table(path / "model.safetensors")["d2t"].raw()
    np.testing.assert_array_equal(offsets, IDS - np.arange(len(IDS)))
    assert json.loads((path / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    assert layers(headfile.read(path).sizes, source()) == (0, -1)  # after the first layer; after the final norm


def edit(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def relayer(path: Path, **changes: object) -> None:
    layer = json.loads((path / "config.json").read_text())["transformer_layer_config"]
    edit(path, transformer_layer_config={**layer, **changes})


def own(name: str, rows: int, width: int = 64) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({f"{name}.weight": np.ones((rows, width), "f4")})


BIAS = "layers.0.self_attn.q_proj.bias"


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def retensor(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Rewrite the tensors as float32, changed."""
    head = random_head()
    tensors: dict[str, np.ndarray] = {**head.tensors, "d2t": head.ids - np.arange(len(head.ids))}
    change(tensors)
    save_file(tensors, path / "model.safetensors")


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no such directory": (lambda p: (p / "config.json").unlink(), "config.json cannot be read"),
    "garbled config": (lambda p: (p / "config.json").write_text("{"), "config.json cannot be read"),
    "another kind": (lambda p: edit(p, speculators_model_type="mlp"), "only eagle3 is known"),
    "norm before residual": (lambda p: edit(p, norm_before_residual=True), "norm_before_residual"),
    "no sizes": (lambda p: edit(p, transformer_layer_config={}), "lacks or garbles"),
    "sizes in no object": (lambda p: edit(p, transformer_layer_config="x"), "lacks transformer_layer_config"),
    "missing tensor": (lambda p: retensor(p, lambda t: t.pop("fc.weight")), "tensor fc.weight is missing"),
    "no vocabulary": (lambda p: retensor(p, lambda t: t.pop("d2t")), "tensor d2t is missing"),
    "wrong shape": (lambda p: retensor(p, lambda t: t.update({"norm.weight": np.ones(3, "f4")})), "has shape"),
    "another size": (lambda p: edit(p, draft_vocab_size=11), "d2t has 10 entries, not 11"),
    "ids that fall": (lambda p: retensor(p, lambda t: t.update({"d2t": np.array([9, *[-1] * 9])})), "rising"),
    "ids that repeat": (lambda p: retensor(p, lambda t: t.update({"d2t": np.array([4, *[3] * 9])})), "rising"),
    "d2t of another type": (lambda p: retensor(p, lambda t: t.update({"d2t": np.ones(10, "f4")})), "whole numbers"),
    "d2t of another shape": (
        lambda p: retensor(p, lambda t: t.update({"d2t": np.ones((5, 2), "i8")})),
        "whole numbers",
    ),
    "no tensors": (lambda p: (p / "model.safetensors").unlink(), "not a readable safetensors file"),
    "no object": (lambda p: (p / "config.json").write_text("[]"), "only eagle3 is known"),
    "not text": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe"), "config.json cannot be read"),
    "a garbled card": (lambda p: edit(p, draftproof="x"), "garbles draftproof"),
    "no states": (lambda p: edit(p, eagle_aux_hidden_state_layer_ids=[]), "tensor fc.weight has shape"),
    "grouped keys": (lambda p: relayer(p, num_key_value_heads=1), "grouped keys"),
    "two layers": (lambda p: relayer(p, num_hidden_layers=2), "several layers"),
    "another activation": (lambda p: relayer(p, hidden_act="gelu"), "only silu is known"),
    "scaled rotation": (lambda p: relayer(p, rope_scaling={"rope_type": "llama3"}), "rope scaling is llama3"),
    "a garbled size": (lambda p: relayer(p, intermediate_size="many"), "lacks or garbles"),
    "biases": (lambda p: retensor(p, lambda t: t.update({BIAS: np.ones(64, "f4")})), "another kind of layer"),
    "too few output rows": (lambda p: retensor(p, own("lm_head", 3)), "lm_head.weight has 3 rows for 10 tokens"),
    "narrow embeddings": (lambda p: retensor(p, own("embed_tokens", 20, 5)), "rows need 64 numbers"),
    "another norm": (lambda p: retensor(p, own("input_norm", 1)), "input_norm.weight is of another kind"),
    "garbled positions": (lambda p: relayer(p, rope_scaling=[1]), "garbles its rope"),
    "an endless width": (lambda p: relayer(p, hidden_size=float("inf")), "lacks or garbles"),
    "no heads": (lambda p: relayer(p, num_attention_heads=0, num_key_value_heads=0, head_dim=None), "lacks or garbles"),
    "states not told": (lambda p: edit(p, eagle_aux_hidden_state_layer_ids=None), "lacks or garbles"),
    "cut short": (lambda p: cut_short(p / "model.safetensors"), "not a readable safetensors file"),
    "damaged": (lambda p: (p / "model.safetensors").write_bytes(b"x" * 40), "not a readable safetensors file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str, path: Path) -> None:
    spoil, message = WRONG[name]
    spoil(path)
    with pytest.raises(ModelError, match=message) as told:
        headfile.read(path)
    assert "\n" not in str(told.value)


def test_a_head_of_another_model_is_refused() -> None:
    head = random_head()
    check(head, source())
    with pytest.raises(ModelError, match="trained for another model"):
        check(replace(head, target="ab" * 32), source())
    with pytest.raises(ModelError, match="at least 1000 tokens"):
        check(replace(head, target="", ids=np.array([3, 999])), source())
    few = {**head.tensors, "embed_tokens.weight": np.ones((5, 64), "f4")}
    with pytest.raises(ModelError, match="embeds 5 tokens, the target has 20"):
        check(replace(head, target="", tensors=few), source())
    with pytest.raises(ModelError, match="width 32"):
        check(replace(head, target="", sizes=replace(head.sizes, width=32)), source())
    with pytest.raises(ModelError, match="states 1 to 2"):
        check(replace(head, sizes=replace(head.sizes, states=(1, 5))), source())


def test_absolute_ids_are_not_taken_for_offsets(path: Path) -> None:
    """Planted: d2t as a file would hold it that stores ids themselves. They name tokens beyond the target's."""
    retensor(path, lambda t: t.update({"d2t": IDS}))
    read = headfile.read(path)
    assert read.ids.tolist() != IDS.tolist()
    with pytest.raises(ModelError, match=f"at least {IDS[-1] + len(IDS)} tokens"):
        check(replace(read, target=""), source())


def test_the_base_of_the_rotation_is_found_in_either_place(path: Path) -> None:
    relayer(path, rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    assert headfile.read(path).sizes.rope_theta == 5e5


def test_an_engine_refuses_another_models_head(path: Path) -> None:
    edit(path, draftproof={"target": "ab" * 32})
    with pytest.raises(ModelError, match=r"trained for another model.*draftproof distill") as told:
        load(str(target()), f"head:{path}")
    assert "\n" not in str(told.value)


def test_names_that_lead_to_no_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="draftproof distill"):
        load(str(target()), "head")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        load(str(target()), f"head:{tmp_path}")


def test_no_space_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ModelError, match=r"No space left on device.*free some space"):
        headfile.write(random_head(), tmp_path, {})


def test_foreign_heads_with_embeddings_and_maps_of_their_own_load(path: Path) -> None:
    """Own rows are used: zero output rows give equal logits, the target's do not."""
    embed = source().tensor("embed")
    mask = np.zeros(len(embed), dtype=np.bool_)
    mask[IDS] = True

    def with_its_own(tensors: dict[str, np.ndarray]) -> None:
        tensors |= {
            "t2d": mask,
            "verifier_norm.weight": np.ones(embed.shape[1], "f4"),
            "embed_tokens.weight": embed,
            "lm_head.weight": np.zeros((len(IDS), embed.shape[1]), "f4"),
        }

    retensor(path, with_its_own)
    edit(path, draftproof={})
    assert "t2d" in load_file(path / "model.safetensors")
    options = PagedOptions(kv_pages=2, threads=1)
    states = np.ones((3, embed.shape[1]), dtype=np.float32)
    chunk = [Chunk((4, 5, 6), 0, (0,), 2)]
    foreign = HeadModel(headfile.read(path), source(), options).forward(chunk, states)
    ours = HeadModel(headfile.read(head_path()), source(), options).forward(chunk, states)
    assert not foreign.logits.any()
    assert ours.logits.any()
