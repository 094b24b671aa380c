"""Toy worlds: what is asked of their laws, and that their files say the same to an engine's loaders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.model import reference
from draftproof.model.directory import checkpoint
from draftproof.model.load import Loaded, ModelOptions, load_model
from draftproof.types import Chunk, SamplingParams
from draftproof.verify import toy, toy_files, toy_model
from draftproof.verify.contract import Floats, World
from draftproof.verify.toy_model import SPECIAL, VISIBLE, WORDS, Decoder, Toy, forward

TEXT = tuple(int(t) for t in np.random.default_rng(3).choice(VISIBLE, 40))
OPTIONS = ModelOptions(precision="f32", kv_pages=64, threads=1)


def prefixes(count: int, ids: range = VISIBLE, seed: int = 1) -> Iterator[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(int(t) for t in rng.choice(ids, rng.integers(2, 13)))


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def tv(p: Floats, q: Floats) -> float:
    return float(np.abs(p - q).sum()) / 2


def laws(world: World, at: tuple[int, ...]) -> tuple[Floats, Floats]:
    assert world.draft is not None
    return softmax(world.target(at)), softmax(world.draft(at))


def figures(world: World) -> dict[str, float]:
    """Means over random prefixes: entropy, share of laws with a token above 0.6, distance and agreement of the pair."""
    pairs = [laws(world, at) for at in prefixes(300)]
    return {
        "entropy": float(np.mean([-(p[p > 0] * np.log(p[p > 0])).sum() for p, _ in pairs])),
        "peaked": float(np.mean([p.max() > 0.6 for p, _ in pairs])),
        "tv": float(np.mean([tv(p, q) for p, q in pairs])),
        "agree": float(np.mean([p.argmax() == q.argmax() for p, q in pairs])),
        "mode": float(np.mean([p[q.argmax()] for p, q in pairs])),
    }


def reach(world: World, place: int) -> float:
    """How far the law moves, on average, when the token at `place` of the prefix is another one."""
    moved = []
    for at in prefixes(100):
        other = list(at)
        other[place] = VISIBLE[(other[place] + 1) % len(VISIBLE)]
        moved.append(tv(softmax(world.target(at)), softmax(world.target(tuple(other)))))
    return float(np.mean(moved))


def good(name: str, world: World) -> bool:
    seen = figures(world)
    if seen["entropy"] <= 1.5 or seen["peaked"] > 0.05 or min(reach(world, place) for place in (-1, -2, 0)) < 0.1:
        return False
    return 0.3 <= seen["tv"] <= 0.5 if name == "spread" else seen["agree"] >= 0.75 and seen["mode"] >= 0.3


@pytest.mark.parametrize("name", toy.RECIPES)
def test_shipped_laws_are_spread_out_depend_on_the_prefix_and_differ(name: str) -> None:
    assert good(name, toy.world(toy.pair(name)))


def _changed(pair: toy.Pair, **scales: float) -> toy.Pair:
    """All tensors of a kind scaled, in target and draft."""

    def change(model: Toy) -> Toy:
        tensors = {n: w * np.float32(scales.get(n.rpartition(".")[2], 1.0)) for n, w in model.tensors.items()}
        return replace(model, tensors=tensors)

    return replace(pair, target=change(pair.target), draft=change(pair.draft))


@pytest.mark.parametrize("name", toy.RECIPES)
def test_laws_that_will_not_do_are_seen(name: str) -> None:
    pair = toy.pair(name)
    assert not good(name, toy.world(_changed(pair, head=2.0)))  # peaked
    assert not good(name, toy.world(_changed(pair, o=0.0)))  # the last token alone decides
    assert not good(name, toy.world(_changed(pair, embed=20.0)))  # nothing but the last token is heard
    other = replace(pair, draft=toy.pair("spread", seed=9).draft if name == "agreeing" else pair.target)
    assert not good(name, toy.world(other))


@pytest.mark.parametrize("name", toy.RECIPES)
def test_special_tokens_cannot_appear(name: str) -> None:
    pair = toy.pair(name)
    assert toy.world(pair).impossible == (0, 1, 2, 3)
    assert worst_special(pair) == 0.0
    assert worst_special(_changed(pair, head=0.003)) > 1e-12  # the comparison can fail


def worst_special(pair: toy.Pair) -> float:
    """Largest probability of a special token, at a temperature of 4, also behind special tokens."""
    world = toy.world(pair)
    at = [*prefixes(200), *prefixes(200, range(len(WORDS)))]
    assert world.draft is not None
    return max(float(softmax(of(x) / 4)[: len(SPECIAL)].max()) for x in at for of in (world.target, world.draft))


def test_a_pair_is_made_of_its_seed() -> None:
    first, again, other = toy.pair(), toy.pair(), toy.pair(seed=2)
    assert all(np.array_equal(w, again.target.tensors[name]) for name, w in first.target.tensors.items())
    assert not np.array_equal(first.target.tensors["head"], other.target.tensors["head"])
    assert toy.world(toy.pair(eos=9)).eos == (9,)


def test_a_prefix_has_the_same_logits_however_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_model, "_STATES", 3)  # states are lost on the way, and made again
    model = toy.pair().target
    whole, decoder = forward(model, TEXT), Decoder(model)
    asked = np.random.default_rng(2).permutation(np.repeat(np.arange(1, len(TEXT) + 1), 2))
    for n in asked.tolist():
        np.testing.assert_allclose(decoder.logits(TEXT[:n]), whole[n - 1], atol=1e-9)
        np.testing.assert_allclose(decoder.logits((*TEXT[:n], 7)), forward(model, (*TEXT[:n], 7))[-1], atol=1e-9)
    with pytest.raises(ValueError, match="first token"):
        decoder.logits(())


# files


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Toy, str]]]:
    """Name -> (toy, path of its file)."""
    folder, made = tmp_path_factory.mktemp("toys"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_CACHE", str(folder / "cache"))
        for name in toy.RECIPES:
            pair = toy.pair(name)
            for role, model in (("target", pair.target), ("draft", pair.draft)):
                made[f"{name} {role} hf"] = model, str(toy.write_hf(model, folder / f"{name}-{role}"))
                made[f"{name} {role} gguf"] = model, str(toy.write_gguf(model, folder / f"{name}-{role}.gguf"))
        yield made


FILES = [f"{name} {role} {form}" for name in toy.RECIPES for role in ("target", "draft") for form in ("hf", "gguf")]
LOADED = FILES[:2]  # the spread target in both forms


@pytest.fixture(scope="module")
def loaded(written: dict[str, tuple[Toy, str]]) -> dict[str, Loaded]:
    return {name: load_model(written[name][1], OPTIONS) for name in LOADED}


def differs(found: Any, exact: Floats) -> float:
    """Largest difference of a logit that matters. Those of special tokens are in the thousands: by their share."""
    specials = slice(0, len(SPECIAL))
    by_share = np.abs(found[:, specials] / exact[:, specials] - 1.0).max()
    return float(max(np.abs(found[:, len(SPECIAL) :] - exact[:, len(SPECIAL) :]).max(), by_share))


@pytest.mark.parametrize("name", FILES)
def test_a_reader_finds_every_number_in_the_files(written: dict[str, tuple[Toy, str]], name: str) -> None:
    model, path = written[name]
    assert differs(reference.logits(checkpoint(path), TEXT), forward(model, TEXT)) < 1e-4


@pytest.mark.parametrize("name", LOADED)
def test_an_engine_computes_the_same_logits(
    loaded: dict[str, Loaded], written: dict[str, tuple[Toy, str]], name: str
) -> None:
    model, tokenizer = loaded[name]
    pages = tuple(range(-(-len(TEXT) // model.info.page_size)))
    logits = model.forward([Chunk(TEXT, 0, pages, len(TEXT))]).logits
    assert logits.shape == (len(TEXT), len(WORDS))
    assert differs(logits, forward(written[name][0], TEXT)) < 1e-4
    text = "".join(WORDS[t] for t in TEXT)
    assert tokenizer.encode(text) == list(TEXT)
    assert tokenizer.decode(TEXT) == text
    assert tokenizer.names() == {word: i for i, word in enumerate(WORDS)}
    assert tokenizer.eos_ids == (2,)


def test_target_and_draft_run_together(loaded: dict[str, Loaded], written: dict[str, tuple[Toy, str]]) -> None:
    """Coupled text is the target's own, so it is that of plain decoding, and some drafts stand."""
    target, (_, path) = loaded["spread target hf"], written["spread draft gguf"]
    draft = load_model(path, replace(OPTIONS, kv_pages=target.model.info.pages))
    engine = Engine(target.model, target.tokenizer, ModelProposer(draft.model, len(WORDS)))
    params = SamplingParams(seed=1, max_tokens=20, rule="coupled", ignore_eos=True)
    fast, plain = (engine.generate([TEXT[:5]], replace(params, k=k))[0] for k in (3, 0))
    assert fast.tokens == plain.tokens
    assert 0 < sum(step.accepted for step in fast.steps) < sum(len(step.proposed) for step in fast.steps)


def test_a_visible_token_may_be_declared_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    model = toy.pair(eos=9).target
    for source in (toy.write_hf(model, tmp_path / "hf"), toy.write_gguf(model, tmp_path / "toy.gguf")):
        tokenizer = load_model(str(source), OPTIONS).tokenizer
        assert (9 in tokenizer.eos_ids, tokenizer.decode([8, 9, 10])) == (True, "efg")
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"] == 9


# planted faults


def _side_by_side(x: Floats, positions: Any, theta: float) -> Floats:
    """Rotary positions of neighbours (2j, 2j + 1), as GPT-J pairs them."""
    half = x.shape[-1] // 2
    order = np.arange(2 * half).reshape(2, half).T.ravel()  # 0, half, 1, half + 1, ...
    turned = _honest_rotate(x[..., np.argsort(order)], positions, theta)
    return np.asarray(turned[..., order])


_honest_rotate = toy_model.rotate


def test_rotary_positions_of_neighbours_are_seen(
    written: dict[str, tuple[Toy, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = written["spread target hf"]
    found = reference.logits(checkpoint(path), TEXT)
    monkeypatch.setattr(toy_model, "rotate", _side_by_side)
    assert differs(found, forward(model, TEXT)) > 0.1


def _swapped(names: tuple[str, str]) -> Callable[[Toy], Toy]:
    def change(model: Toy) -> Toy:
        tensors = dict(model.tensors)
        for i in range(model.sizes.layers):
            a, b = (f"{i}.{name}" for name in names)
            tensors[a], tensors[b] = tensors[b], tensors[a]
        return replace(model, tensors=tensors)

    return change


def _sizes(**changes: float) -> Callable[[Toy], Toy]:
    return lambda model: replace(model, sizes=replace(model.sizes, **changes))  # type: ignore[arg-type]


WRITER_FAULTS: dict[str, Callable[[Toy], Toy]] = {
    "gate and up swapped": _swapped(("gate", "up")),
    "keys and values swapped": _swapped(("k", "v")),
    "norms swapped": _swapped(("attn_norm", "ffn_norm")),
    "another rotary base": _sizes(theta=500.0),
    "another epsilon": _sizes(eps=1e-2),
}


@pytest.mark.parametrize("form", ["hf", "gguf"])
@pytest.mark.parametrize("fault", WRITER_FAULTS)
def test_faults_of_a_writer_are_seen(fault: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    model = toy.pair().target
    wrong = WRITER_FAULTS[fault](model)
    path = toy.write_hf(wrong, tmp_path / "hf") if form == "hf" else toy.write_gguf(wrong, tmp_path / "toy.gguf")
    assert differs(reference.logits(checkpoint(str(path)), TEXT), forward(model, TEXT)) > 1e-3


def test_rotary_rows_that_are_not_permuted_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toy_files, "paired", lambda w, heads: w)
    model = toy.pair().target
    path = toy.write_gguf(model, tmp_path / "toy.gguf")
    assert differs(reference.logits(checkpoint(str(path)), TEXT), forward(model, TEXT)) > 0.1


# tables


@pytest.mark.parametrize("vocab", range(3, 9))
def test_tables_are_laws_that_differ_by_prefix_position_and_model(vocab: int) -> None:
    world = toy.tabular_world(vocab, seed=vocab)
    at = list(prefixes(60, range(vocab)))
    pairs = [laws(world, x) for x in at]
    for x, (p, q) in zip(at, pairs, strict=True):
        assert np.exp(world.target(x)).sum() == pytest.approx(1.0)
        assert tv(p, q) == pytest.approx(0.35)
        assert tv(p, laws(world, (0, *x))[0]) > 1e-6
    assert np.mean([tv(p, laws(world, x[::-1])[0]) for x, (p, _) in zip(at, pairs, strict=True)]) > 0.1
    again = toy.tabular_world(vocab, seed=vocab)
    np.testing.assert_array_equal(world.target(at[0]), again.target(at[0]))
    assert not np.array_equal(world.target(at[0]), toy.tabular_world(vocab, seed=99).target(at[0]))


def test_tables_with_zeros_have_them_apart() -> None:
    world = toy.tabular_world(5, zeros=0.4)
    pairs = [laws(world, x) for x in prefixes(100, range(5))]
    assert all(p.sum() == pytest.approx(1.0) and q.sum() == pytest.approx(1.0) for p, q in pairs)
    for has, lacks in (0, 1), (1, 0):
        assert sum(bool(((pair[has] > 0) & (pair[lacks] == 0)).any()) for pair in pairs) > 50
