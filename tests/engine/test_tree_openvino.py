"""Trees on a tiny OpenVINO model: greedy text is plain greedy text, with the right branch among wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY, weights
from toys import Words, finished

from draftproof import tree
from draftproof.draft.base import Ask, Stateless, point_draft, point_tree
from draftproof.engine import Engine
from draftproof.model import graph
from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import Checkpoint
from draftproof.model.openvino import OpenVINOModel, OpenVINOOptions
from draftproof.types import Draft, SamplingParams

SMALL = replace(TINY, width=64, head_dim=16, ffn=96, vocab=70, rope_theta=1000.0)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [58], [9, 7, 9]]
PARAMS = SamplingParams(temperature=0, max_tokens=40, k=4)


class Knowing(Stateless):
    """Knows what greedy decoding says. Every seventh token of its tree's right branch is wrong; the last request gets
    chains, the others trees of different shapes in which the right child is not the first."""

    def __init__(self, texts: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        self._texts = texts

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Draft:
        prompt, done = ask.view.request.prompt, len(ask.view.tokens) - len(ask.view.request.prompt)
        coming = self._texts[prompt][done : done + ask.k]
        right = [t if (done + i) % 7 else (t + 1) % SMALL.vocab for i, t in enumerate(coming)]
        if ask.view.request.id % 4 == 3:
            return point_draft(right, SMALL.vocab)
        tokens: list[int] = []
        parents: list[int] = []
        node = 0
        for token in right:
            wrong = [(token + 2 + n) % SMALL.vocab for n in range(1 + ask.view.request.id % 2)]
            siblings = [*wrong, token]
            tokens += siblings
            parents += [node] * len(siblings)
            node = len(tokens)
        return point_tree(tokens, parents, SMALL.vocab)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenVINOModel:
    scaled = {name: w * (0.3 if w.ndim == 2 else 1.0) for name, w in weights(SMALL).items()}
    folder: Path = tmp_path_factory.mktemp("tiny")
    graph.save(Checkpoint(SMALL, scaled.__getitem__, "test"), "f32", folder)
    options = OpenVINOOptions(kv_pages=24, threads=1, trees=True, hidden_layers=(-1,))
    return OpenVINOModel(folder, ModelInfo("tiny", 0, 400, 0, 0), options)


def texts(model: OpenVINOModel, proposer: Any = None, nodes: int = 0) -> dict[tuple[int, ...], tuple[int, ...]]:
    engine = Engine(model, Words([b"x"] * SMALL.vocab), proposer, nodes=nodes)
    for prompt in PROMPTS:
        engine.add(prompt, replace(PARAMS, k=PARAMS.k if proposer else 0))
    outputs = finished(engine)
    accepted = [s.accepted for o in outputs.values() for s in o.steps]
    assert not proposer or max(accepted) == PARAMS.k
    return {o.prompt: o.tokens for o in outputs.values()}


def test_greedy_text_is_plain_greedy_text(model: OpenVINOModel) -> None:
    assert model.info.trees
    plain = texts(model)
    assert texts(model, Knowing(plain), nodes=12) == plain


FAULTS = {
    "KV not moved": ("draftproof.model.openvino.OpenVINOModel.move_slots", lambda self, pages, moves: None),
    "every row sees all rows before it": (
        "draftproof.tree.visible", lambda parents, fed, rows: tuple(tuple(range(r + 1)) for r in range(rows)),
    ),
    "mask off by one": (
        "draftproof.tree.visible",
        lambda parents, fed, rows: (
            *right(parents, fed, rows)[: fed + 1],
            *((*seen[:-2], seen[-2] - 1, seen[-1]) for seen in right(parents, fed, rows)[fed + 1 :]),
        ),
    ),
    "positions of a chain": ("draftproof.tree.row_depths", lambda parents, fed, rows: tuple(range(rows))),
}  # fmt: skip
right = tree.visible


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, model: OpenVINOModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = texts(model)
    monkeypatch.setattr(*FAULTS[name])
    assert texts(model, Knowing(plain), nodes=12) != plain
