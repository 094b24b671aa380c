"""Who is asked for trees, of how many nodes, and budgets that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from toys import random_table, toy_engine
from tree_proposers import LikeliestTrees

from draftproof.engine import Engine
from draftproof.model.tabular import tabular_info
from draftproof.nodes import most_nodes
from draftproof.types import RequestError, SamplingParams

VOCAB, NODES = 6, 8
TARGET = random_table(VOCAB, 1)


def engine(**info: Any) -> Engine:
    return toy_engine(TARGET, VOCAB, LikeliestTrees(TARGET, VOCAB), **{"min_rows": 2, "nodes": NODES, **info})


def test_the_largest_budget() -> None:
    assert most_nodes(tabular_info(VOCAB)) == 64
    assert most_nodes(tabular_info(VOCAB, max_rows=32, min_rows=2)) == 29
    assert most_nodes(tabular_info(VOCAB, pages=5)) == 10  # the rest is for the sequence itself
    assert most_nodes(tabular_info(VOCAB, trees=False)) == 0


def asked(**info: Any) -> set[int]:
    rule, bitwise = info.pop("rule", "block"), info.pop("bitwise", True)
    made = engine(bitwise=bitwise, **info)
    made.generate([[1, 2]], SamplingParams(k=4, max_tokens=9, rule=rule))
    return {ask.nodes for ask in made.proposer.asked}  # type: ignore[attr-defined]


def test_who_is_asked_for_trees() -> None:
    assert asked() == {NODES}
    assert asked(nodes=0) == {0}
    assert asked(rule="lenience:1.5") == {0}
    assert asked(rule="coupled") == {NODES}
    assert asked(rule="coupled", trees_bitwise=False) == {0}
    assert asked(rule="sampled", trees_bitwise=False) == {0}
    assert asked(rule="token", trees_bitwise=False) == {NODES}
    assert asked(rule="coupled", trees_bitwise=False, bitwise=False) == {NODES}  # nothing was promised


def test_depth_is_bounded_by_what_can_be_emitted() -> None:
    made = engine()
    made.generate([[1, 2]], SamplingParams(k=4, max_tokens=6))
    asks = made.proposer.asked  # type: ignore[attr-defined]
    assert all(ask.k >= 1 for ask in asks)
    assert min(ask.k for ask in asks) < 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nodes": -1}, "from 0 to"),
        ({"nodes": 65}, "from 0 to 64"),
        ({"nodes": 9, "max_rows": 11}, "from 0 to 8"),
        ({"nodes": 3, "trees": False}, "loaded without trees"),
    ],
)
def test_a_budget_that_cannot_be_honoured_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine(**more)


def test_a_budget_without_a_draft_is_refused() -> None:
    with pytest.raises(RequestError, match="draft is 'none'"):
        toy_engine(TARGET, VOCAB, nodes=3)
