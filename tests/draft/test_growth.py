"""The tree is made of the nodes that are likeliest to stand, and is a tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from heads import PROMPTS, Watching, engine
from toys import random_table

from draftproof import tree
from draftproof.draft.base import point_tree
from draftproof.draft.growth import Growth
from draftproof.kv.pages import PagePool
from draftproof.kv.table import PageTable
from draftproof.types import Chunk, Draft, SamplingParams

VOCAB = 4
IDS = np.arange(VOCAB, dtype=np.int64)


def grown(seed: int, depth: int, nodes: int, worth: float = 0.0) -> tuple[Draft, list[Chunk]]:
    """A tree on a table of laws; each row's state is the path that it stands for, so a mix-up shows."""
    table = random_table(VOCAB, seed, sharpness=4.0)

    def row(path: tuple[int, ...]) -> np.ndarray:
        return np.log(table(path)).astype(np.float32)

    growth = Growth(PageTable(PagePool(8, 32)), row(()), np.zeros(3, dtype=np.float32), IDS, depth)
    chunks = []
    while growth.spread(worth):
        chunk = growth.chunk()
        chunks.append(chunk)
        paths = [tuple(chunk.tokens[i] for i in seen) for seen in chunk.visible]
        outputs = [np.array([len(p), p[-1], 1], dtype=np.float32) for p in paths]
        growth.take(outputs, [row(p) for p in paths[len(paths) - chunk.wanted :]])
    return growth.draft(nodes, worth, VOCAB), chunks


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    return [
        tuple(draft.tokens[n - 1] for n in tree.path(draft.parents, node)) for node in range(1, len(draft.tokens) + 1)
    ]


def worth_of(seed: int, path: tuple[int, ...]) -> float:
    table = random_table(VOCAB, seed, sharpness=4.0)
    return float(np.prod([table(path[:i])[token] for i, token in enumerate(path)]))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("nodes", [1, 3, 6])
def test_the_best_nodes_are_kept(seed: int, nodes: int) -> None:
    draft, _ = grown(seed, 3, nodes)
    every = [p for n in (1, 2, 3) for p in np.ndindex(*(VOCAB,) * n)]
    best = sorted(every, key=lambda p: -worth_of(seed, p))[:nodes]
    assert sorted(paths_of(draft)) == sorted(best)
    assert tree.fault(draft.parents, draft.tokens) is None
    assert all(law.is_point for law in draft.laws)


def own_share_only(self: Growth, parent: int, worth: float, logits: np.ndarray, output: np.ndarray) -> None:
    add(self, parent, 1.0, logits, output)


def last_of_the_level(self: Growth, worth: float) -> bool:
    """Follows the last nodes of a level, not the best."""
    going = spread(self, worth)
    deepest = self._nodes[-1].depth
    last = [n for n, node in enumerate(self._nodes, 1) if node.depth == deepest][-self.fresh :]
    kept = sorted({a for n in last for a in self._path(n)[:-1]})
    self.fed = [*kept, *last] if going else self.fed
    return going


def in_order_of_growth(self: Growth, most: int, worth: float, vocab: int) -> Draft:
    kept = self._nodes[:most]
    return point_tree([n.token for n in kept], [n.parent for n in kept], vocab)


add, spread = Growth._add, Growth.spread
FAULTS = {"_add": own_share_only, "spread": last_of_the_level, "draft": in_order_of_growth}


@pytest.mark.parametrize("method", FAULTS)
def test_a_tree_that_is_not_the_best_is_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with a node whose parent is not in it breaks while it is put together."""

    def check() -> None:
        for seed in range(12):
            test_the_best_nodes_are_kept(seed, 6)

    monkeypatch.setattr(Growth, method, FAULTS[method])
    with pytest.raises((AssertionError, KeyError)):
        check()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_node_is_too_deep(depth: int) -> None:
    draft, chunks = grown(3, depth, 16)
    assert max(tree.depths(draft.parents)) == depth
    assert len(chunks) == depth - 1


def test_a_node_must_be_worth_its_row_but_one_is_always_drafted() -> None:
    for worth in (0.05, 0.2, 0.5):
        draft, _ = grown(1, 4, 16, worth)
        assert all(worth_of(1, p) > worth for p in paths_of(draft)[1:])
    assert len(grown(1, 4, 16, 2.0)[0].tokens) == 1


def test_rows_see_their_own_path_alone() -> None:
    _, chunks = grown(2, 4, 16)
    for chunk in chunks:
        for row, seen in enumerate(chunk.visible):
            assert seen[-1] == row
            assert [chunk.depths[i] for i in seen] == list(range(len(seen)))


def test_trees_leave_greedy_text_as_it_is() -> None:
    made = engine(k=4, nodes=10)
    watch = Watching(made)
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    drafted = made.generate([list(p) for p in PROMPTS], params)
    plain = made.generate([list(p) for p in PROMPTS], replace(params, k=0))
    assert [o.tokens for o in drafted] == [o.tokens for o in plain]
    assert any(len(set(d.parents)) < len(d.parents) for _, _, d in watch.drafts)
    assert sum(s.accepted for o in drafted for s in o.steps) > 10
    made.audit()
    watch.inner.audit()
