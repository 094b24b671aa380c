"""Toys as OpenVINO directories: the exported graph, its tokenizer, our loader, and OpenVINO GenAI where it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as op
import pytest
from numpy.typing import NDArray

from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.model.load import ModelOptions, load_model
from draftproof.types import Chunk, SamplingParams
from draftproof.verify import toy, toy_openvino
from draftproof.verify.contract import Floats
from draftproof.verify.toy_model import SPECIAL, VISIBLE, WORDS, Decoder, Sizes, Toy, forward
from draftproof.verify.toy_openvino import write_openvino

TEXT = tuple(int(t) for t in np.random.default_rng(3).choice(VISIBLE, 40))
OPTIONS = ModelOptions(precision="f32", kv_pages=64, threads=1)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
TOYS = [(name, role) for name in toy.RECIPES for role in ("target", "draft")]


def made(name: str, role: str) -> Toy:
    pair = toy.pair(name)
    return {"target": pair.target, "draft": pair.draft}[role]


def grouped() -> Toy:
    """Four query heads that share two of keys: the shipped toys have one head of keys, which any grouping serves."""
    rng, s = np.random.default_rng(8), Sizes(heads=4, kv_heads=2, layers=1)
    inner, shared = s.heads * s.head_dim, s.kv_heads * s.head_dim
    shapes = {"embed": (s.vocab, s.width), "final_norm": (s.width,), "head": (s.vocab, s.width)}
    shapes |= {"0.attn_norm": (s.width,), "0.q": (inner, s.width), "0.k": (shared, s.width), "0.v": (shared, s.width)}
    shapes |= {"0.o": (s.width, inner), "0.ffn_norm": (s.width,), "0.gate": (s.ffn, s.width), "0.up": (s.ffn, s.width)}
    shapes |= {"0.down": (s.width, s.ffn)}
    return Toy(s, {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()})


def differs(found: Floats, exact: Floats) -> float:
    """Largest difference of a visible token's logit, or share of a special one's, which is in the thousands."""
    by_share = np.abs(found[:, : len(SPECIAL)] - exact[:, : len(SPECIAL)]) / (1 + np.abs(exact[:, : len(SPECIAL)]))
    return float(max(np.abs(found[:, len(SPECIAL) :] - exact[:, len(SPECIAL) :]).max(), by_share.max()))


# the graph by itself


def stateful(directory: Path, beams: Sequence[int] = (1, 0)) -> list[NDArray[np.float32]]:
    """Logits of TEXT, and of its end behind padding: in three calls, rows changing places before the last."""
    compiled = ov.Core().compile_model(directory / "openvino_model.xml", "CPU", {**EXACT, "INFERENCE_NUM_THREADS": 1})
    request = compiled.create_infer_request()
    mask = np.ones((2, len(TEXT)), dtype=np.int64)
    mask[1, :7] = 0
    ids, places = np.array([TEXT, TEXT]) * mask, np.maximum(mask.cumsum(axis=1) - 1, 0)
    rows: list[list[NDArray[np.float32]]] = [[], []]
    for start, end, order in ((0, 25, (0, 1)), (25, 26, (0, 1)), (26, len(TEXT), (1, 0))):
        wanted = list(order)
        beam_idx = np.array(beams if wanted == [1, 0] else wanted, dtype=np.int32)
        inputs = {"input_ids": ids[wanted, start:end], "position_ids": places[wanted, start:end]}
        logits = request.infer({**inputs, "attention_mask": mask[wanted, :end], "beam_idx": beam_idx})["logits"]
        for at, row in enumerate(wanted):
            rows[row].append(logits[at].copy())
    return [np.concatenate(rows[0]), np.concatenate(rows[1])[7:]]


def graph_differs(directory: Path, model: Toy, beams: Sequence[int] = (1, 0)) -> float:
    found, exact = stateful(directory, beams), (forward(model, TEXT), forward(model, TEXT[7:]))
    return max(differs(*pair) for pair in zip(found, exact, strict=True))


@pytest.mark.parametrize(("name", "role"), TOYS)
def test_the_graph_keeps_state_takes_padding_and_follows_beams(name: str, role: str, tmp_path: Path) -> None:
    model = made(name, role)
    assert graph_differs(write_openvino(model, tmp_path), model) < 1e-4
    assert graph_differs(tmp_path, model, beams=(0, 1)) > 0.1  # the call's rows stay as they were: seen


def test_query_heads_share_keys(tmp_path: Path) -> None:
    assert graph_differs(write_openvino(grouped(), tmp_path), grouped()) < 1e-4


class _Neighbours(toy_openvino._Graph):
    """Rotary positions of neighbours (2j, 2j + 1) instead of halves."""

    def _rotate(self, x: Any) -> Any:
        half = self._s.head_dim // 2
        order = np.arange(2 * half).reshape(2, half).T.ravel()  # 0, half, 1, half + 1, ...
        one = op.constant(np.array(3))
        turned = super()._rotate(op.gather(x, op.constant(np.argsort(order)), one))
        return op.gather(turned, op.constant(order), one)


class _LaterVisible(toy_openvino._Graph):
    def _visible(self) -> Any:
        real = op.not_equal(op.unsqueeze(self._mask, op.constant(np.array([1, 2]))), op.constant(np.array(0)))
        return op.select(real, op.constant(np.float32(0)), op.constant(np.float32(-1e30)))


class _PaddingVisible(toy_openvino._Graph):
    def _visible(self) -> Any:
        self._mask, honest = op.maximum(self._mask, op.constant(np.array(1))), self._mask
        seen = super()._visible()
        self._mask = honest
        return seen


class _Dealt(toy_openvino._Graph):
    """Query heads take key heads in turn (0 1 0 1) instead of in groups (0 0 1 1)."""

    def _shared(self, x: Any) -> Any:
        return op.concat([x] * (self._s.heads // self._s.kv_heads), 1)


GRAPH_FAULTS = {
    "neighbours": (_Neighbours, made("spread", "target")),
    "later tokens visible": (_LaterVisible, made("spread", "target")),
    "padding visible": (_PaddingVisible, made("spread", "target")),
    "heads dealt": (_Dealt, grouped()),
}


@pytest.mark.parametrize("fault", GRAPH_FAULTS)
def test_faults_of_the_graph_are_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, model = GRAPH_FAULTS[fault]
    monkeypatch.setattr(toy_openvino, "_Graph", wrong)
    assert graph_differs(write_openvino(model, tmp_path), model) > 1e-2


# our loader


def paged(directory: Path) -> NDArray[np.float32]:
    model = load_model(str(directory), OPTIONS).model
    pages = tuple(range(-(-len(TEXT) // model.info.page_size)))
    return model.forward([Chunk(TEXT, 0, pages, len(TEXT))]).logits


@pytest.mark.parametrize(("name", "role"), TOYS)
def test_our_loader_finds_the_oracles_logits(name: str, role: str, tmp_path: Path) -> None:
    model = made(name, role)
    assert differs(paged(write_openvino(model, tmp_path)), forward(model, TEXT)) < 1e-4


def _swapped(a: str, b: str) -> Callable[[Toy], Toy]:
    def change(model: Toy) -> Toy:
        names = {f"0.{a}": f"0.{b}", f"0.{b}": f"0.{a}"}
        return replace(model, tensors={name: model.tensors[names.get(name, name)] for name in model.tensors})

    return change


def _sizes(**changes: float) -> Callable[[Toy], Toy]:
    return lambda model: replace(model, sizes=replace(model.sizes, **changes))  # type: ignore[arg-type]


WRITER_FAULTS = {
    "gate and up swapped": _swapped("gate", "up"),
    "keys and values swapped": _swapped("k", "v"),
    "norms swapped": _swapped("attn_norm", "ffn_norm"),
    "another rotary base": _sizes(theta=500.0),
    "another epsilon": _sizes(eps=1e-2),
}


@pytest.mark.parametrize("fault", WRITER_FAULTS)
def test_faults_of_the_writer_are_seen_by_our_loader(fault: str, tmp_path: Path) -> None:
    model = made("spread", "target")
    assert differs(paged(write_openvino(WRITER_FAULTS[fault](model), tmp_path)), forward(model, TEXT)) > 1e-3


def test_rotary_neighbours_are_seen_by_our_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_openvino, "_Graph", _Neighbours)
    model = made("spread", "target")
    assert differs(paged(write_openvino(model, tmp_path)), forward(model, TEXT)) > 0.1


def test_target_and_draft_run_together(tmp_path: Path) -> None:
    """Coupled text is the target's own, so it is that of plain decoding, and some drafts stand."""
    pair = toy.pair("agreeing")
    target = load_model(str(write_openvino(pair.target, tmp_path / "target")), OPTIONS)
    draft = load_model(str(write_openvino(pair.draft, tmp_path / "draft")), OPTIONS)
    engine = Engine(target.model, target.tokenizer, ModelProposer(draft.model, len(WORDS)))
    params = SamplingParams(seed=1, max_tokens=20, rule="coupled", ignore_eos=True)
    fast, plain = (engine.generate([TEXT[:5]], replace(params, k=k))[0] for k in (3, 0))
    assert fast.tokens == plain.tokens
    assert 0 < sum(step.accepted for step in fast.steps) < sum(len(step.proposed) for step in fast.steps)


# the tokenizer

TEXTS = ["abcp", "", "p", "".join(WORDS[t] for t in TEXT), "ab!é"]


def tokenized(directory: Path, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, by its mask; the padding must be on the left."""
    compiled = ov.Core().compile_model(directory / "openvino_tokenizer.xml", "CPU")
    found = compiled(ov.Tensor(np.array(texts)))
    ids, mask = found["input_ids"], found["attention_mask"]
    assert (np.diff(mask, axis=1) >= 0).all()
    return [row[seen == 1].tolist() for row, seen in zip(ids, mask, strict=True)]


def spoken(directory: Path, ids: Sequence[Sequence[int]]) -> list[str]:
    compiled = ov.Core().compile_model(directory / "openvino_detokenizer.xml", "CPU")
    found = compiled([np.array(ids, dtype=np.int64)])[0]
    return [str(text) for text in found.tolist()]


def test_the_tokenizer_graphs_say_what_tokenizer_json_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_model(str(write_openvino(made("spread", "target"), tmp_path)), OPTIONS).tokenizer
    assert tokenized(tmp_path, TEXTS[:4]) == [tokenizer.encode(text) for text in TEXTS[:4]]
    assert tokenized(tmp_path, TEXTS) == [[4, 5, 6, 19], [], [19], list(TEXT), [4, 5, 0, 0, 0]]  # "é" is two bytes
    assert tokenized(tmp_path, [""]) == [[]]
    ids = [[4, 2, 5, 19], [2, 1, 0, 2], [19, 18, 4, 4]]
    assert spoken(tmp_path, ids) == [tokenizer.decode(row) for row in ids] == ["abp", "", "poaa"]
    assert spoken(tmp_path, [[4, 3, 5]]) == ["a\nb"]
    monkeypatch.setattr(toy_openvino, "WORDS", (*SPECIAL, *WORDS[:3:-1]))  # letters in another order: seen
    write_openvino(made("spread", "target"), tmp_path / "wrong")
    assert tokenized(tmp_path / "wrong", ["abcp"]) != [[4, 5, 6, 19]]
    assert spoken(tmp_path / "wrong", [[4, 5]]) != ["ab"]


def test_a_visible_token_may_be_declared_the_end(tmp_path: Path) -> None:
    tokenizer = load_model(str(write_openvino(toy.pair(eos=9).target, tmp_path)), OPTIONS).tokenizer
    assert (9 in tokenizer.eos_ids, tokenizer.decode([8, 9, 10])) == (True, "efg")


# OpenVINO GenAI


def greedy(law: Decoder, prompt: tuple[int, ...], count: int) -> list[int]:
    """Tokens of largest logit, as long as they are the largest by more than float32 can spoil."""
    tokens = list(prompt)
    for _ in range(count):
        logits = law.logits(tuple(tokens))
        second, first = np.sort(logits)[-2:]
        if first - second < 1e-3:
            break
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def genai_agrees(pair: toy.Pair, drafted: bool, folder: Path) -> bool:
    """Whether token ids and texts of OpenVINO GenAI begin as the oracle's do."""
    genai = pytest.importorskip("openvino_genai")
    target, draft = write_openvino(pair.target, folder / "target"), write_openvino(pair.draft, folder / "draft")
    extra = {"draft_model": genai.draft_model(str(draft), "CPU", **EXACT)} if drafted else {}
    pipe = genai.LLMPipeline(str(target), "CPU", **EXACT, **extra)
    config = genai.GenerationConfig(str(target / "generation_config.json"))
    assert config.eos_token_id == pair.target.eos
    config.do_sample, config.max_new_tokens = False, 40
    if drafted:
        config.num_assistant_tokens = 4
    decoder, same = Decoder(pair.target), True
    for prompt in (TEXT[:1], TEXT[:6], TEXT):
        expected = greedy(decoder, prompt, 40)
        assert len(expected) >= 10
        words = ["".join(WORDS[t] for t in tokens) for tokens in (prompt, expected)]
        ids = pipe.generate(ov.Tensor(np.array([prompt], dtype=np.int64)), config).tokens[0]
        text = pipe.generate(words[:1], config).texts[0]
        same = same and list(ids)[: len(expected)] == expected and text.startswith(words[1])
    return same


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("name", toy.RECIPES)
def test_genai_writes_the_oracles_greedy_text(name: str, drafted: bool, tmp_path: Path) -> None:
    assert genai_agrees(toy.pair(name), drafted, tmp_path)


def test_rotary_neighbours_are_seen_in_genais_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_openvino, "_Graph", _Neighbours)
    assert not genai_agrees(toy.pair(), False, tmp_path)
