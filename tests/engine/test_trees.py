"""Trees through the whole engine: the joint law by enumeration (I1, I4), planted faults in mask, rows and KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from enumerated import Case, case, distance, emitted
from toys import random_table
from tree_proposers import LikeliestTrees, SampledTrees, Shape

from draftproof import accept, tree
from draftproof.draft import base
from draftproof.law import LawRows
from draftproof.model.tabular import TabularModel
from draftproof.types import Law
from draftproof.verify.enumerate import law_of

EXACT = 1e-6
SMALL: Shape = ((0, 2), (2, 1))
DEEP: Shape = ((0, 2), (1, 1), (2, 2), (5, 1))
CASES: dict[str, tuple[Case, Shape]] = {
    "three tokens": (case(3, 2, max_tokens=3), SMALL),
    "four tokens": (case(4, 1, max_tokens=2), ((0, 3),)),
    "longer": (case(2, 3, max_tokens=4), ((0, 1), (1, 2), (2, 1))),
    "presence and repetition": (case(3, 2, max_tokens=3, presence_penalty=0.7, repetition_penalty=1.8), SMALL),
    "eos after min_tokens": (case(3, 2, eos=(0,), max_tokens=3, min_tokens=2, temperature=0.7), SMALL),
    "stop token": (case(3, 2, max_tokens=3, stop_token_ids=(2,)), SMALL),
    "top-k": (case(3, 2, max_tokens=3, top_k=2), SMALL),
}
LIKELY: dict[str, tuple[Case, Shape]] = {
    "deep": (case(3, 3, max_tokens=4), DEEP),
    "frequency penalty": (case(3, 3, max_tokens=4, frequency_penalty=1.5), DEEP),
}


def error(at: tuple[Case, Shape], rule: str, kind: type[SampledTrees] | type[LikeliestTrees], seed: int = 2) -> float:
    case, shape = at
    case = replace(case, nodes=6)
    make = lambda: kind(random_table(case.vocab, seed), case.vocab, shape)  # noqa: E731
    return distance(case, law_of(lambda path: emitted(case, rule, path, make())))


@pytest.mark.parametrize("rule", ["token", "block", "sampled"])
@pytest.mark.parametrize("name", CASES)
def test_law_with_sampled_trees_is_the_targets(name: str, rule: str) -> None:
    assert error(CASES[name], rule, SampledTrees) < EXACT


@pytest.mark.parametrize("rule", accept.RULES)
@pytest.mark.parametrize("name", LIKELY)
def test_law_with_likeliest_trees_is_the_targets(name: str, rule: str) -> None:
    assert error(LIKELY[name], rule, LikeliestTrees) < EXACT


# planted faults


class ChainRows(LawRows):
    """History of row n: the first n draft tokens, as in a chain."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return self._maker.law(self._logits[i], self._prompt, self._output + self._draft[:i])


class RowsBefore(LawRows):
    """Row of the wrong node: the one before."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return super().__getitem__(max(i - 1, 0))


def shifted(parents: Any, fed: int, rows: int) -> Any:
    """Each node sees the path of the node before it, and itself."""
    seen = right(parents, fed, rows)
    return tuple((*seen[r - 1][: len(seen[r]) - 1], r) if r > fed else s for r, s in enumerate(seen))


def everything(parents: Any, fed: int, rows: int) -> Any:
    """A causal mask: siblings and cousins are seen as well."""
    return tuple(tuple(range(r + 1)) for r in range(rows))


right = tree.visible


def first_sample(p: Law, draft: Any, siblings: Any, depth: int, noise: Any) -> Any:
    """One draw for the whole path."""
    return accept._carrier(draft, siblings, accept.draw(p, noise.sample(0)))


def shared_noise(ask: Any, law: Law, depth: int, first: int, most: int) -> Any:
    """Siblings share their draft noise."""
    drawn: list[tuple[int, Law]] = []
    for _ in range(most):
        weights = law.dense()
        weights[[x for x, _ in drawn]] = 0.0
        drawn += honest_draw(ask, Law(law.vocab, None, weights), depth, first, 1)
    return drawn


honest_draw = base.draw_siblings


def with_replacement(ask: Any, law: Law, depth: int, first: int, most: int) -> Any:
    """Siblings state the law of a draw with replacement."""
    return [(x, law) for x, _ in honest_draw(ask, law, depth, first, most)]


def unmoved(self: TabularModel, pages: Any, moves: Any) -> None:
    """The accepted path's K and V stay where the tree had them."""


def backwards(self: TabularModel, pages: Any, moves: Any) -> None:
    honest_move(self, pages, moves[::-1])


honest_move = TabularModel.move_slots
FAULTS: dict[str, tuple[str, Any, Callable[[], float]]] = {
    "mask off by one": ("draftproof.tree.visible", shifted, lambda: error(LIKELY["deep"], "token", LikeliestTrees)),
    "siblings see each other": (
        "draftproof.tree.visible", everything, lambda: error(CASES["three tokens"], "token", SampledTrees),
    ),
    "depths of a chain": (
        "draftproof.tree.row_depths",
        lambda parents, fed, rows: tuple(range(rows)),
        lambda: error(CASES["three tokens"], "sampled", SampledTrees),
    ),
    "one draw a path": (
        "draftproof.accept._child_by_sample", first_sample, lambda: error(LIKELY["deep"], "sampled", LikeliestTrees),
    ),
    "row of the wrong node": (
        "draftproof.step.LawRows", RowsBefore, lambda: error(LIKELY["deep"], "coupled", LikeliestTrees),
    ),
    "history of a chain": (
        "draftproof.step.LawRows", ChainRows, lambda: error(LIKELY["frequency penalty"], "token", LikeliestTrees),
    ),
    "KV path not moved": (
        "draftproof.model.tabular.TabularModel.move_slots", unmoved,
        lambda: error(LIKELY["deep"], "token", LikeliestTrees),
    ),
    "KV path moved last slot first": (
        "draftproof.model.tabular.TabularModel.move_slots", backwards,
        lambda: error(LIKELY["deep"], "token", LikeliestTrees),
    ),
    "law of a draw with replacement": (
        "tree_proposers.draw_siblings", with_replacement,
        lambda: error(CASES["three tokens"], "token", SampledTrees),
    ),
    "draft noise shared by siblings": (
        "tree_proposers.draw_siblings", shared_noise, lambda: error(CASES["four tokens"], "token", SampledTrees, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, fault, check = FAULTS[name]
    assert check() < EXACT
    monkeypatch.setattr(place, fault)
    try:
        wrong = check()
    except ValueError:  # the toy model has no law for a text with a hole in it
        return
    assert wrong > 1000 * EXACT
