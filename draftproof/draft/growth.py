"""One tree as it grows from a head's confidences: the most probable paths are followed, then the best nodes are kept.

A node's worth is the product of the head's probabilities along its path, which on average is how often it will stand
(EAGLE-2: Li et al. 2024, section 4). What is kept is a tree, since no node is worth more than the one it hangs from.
Deterministic: its nodes are ranked, not sampled, so each law is a point mass. Knows no model and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof import tree
from draftproof.draft.base import point_tree
from draftproof.kv.table import PageTable
from draftproof.types import Chunk, Draft

_WIDTH, _BRANCHES = 4, 4  # nodes of a level that are followed, and how many children each is given
Row = NDArray[np.float32]


@dataclass(slots=True)
class _Node:
    token: int
    parent: int  # number of the node that it hangs from; 0: the last committed token
    depth: int
    worth: float
    state: Row  # the output of its parent's row


class Growth:
    """Args: where its rows are written, logits and output of the last committed row, ids of the logits, most depth."""

    def __init__(self, table: PageTable, logits: Row, output: Row, ids: NDArray[np.int64], depth: int) -> None:
        self.table, self._ids, self._depth = table, ids, depth
        self._nodes: list[_Node] = []
        self.fed: list[int] = []  # numbers of the nodes in the next pass, parents first; the last `fresh` are new
        self.fresh = 0
        self._add(0, 1.0, logits, output)

    @property
    def most_rows(self) -> int:
        return _WIDTH * max(self._depth - 1, 0)

    def _add(self, parent: int, worth: float, logits: Row, output: Row) -> None:
        """The likeliest children of a node."""
        with np.errstate(invalid="ignore"):  # `draft` says so
            weights = np.exp(logits - logits.max())
        total = float(weights.sum())
        count = min(_BRANCHES, len(weights))
        best = np.argpartition(-weights, count - 1)[:count]
        depth = self._nodes[parent - 1].depth + 1 if parent else 1
        for i in sorted(best, key=lambda i: (-weights[i], i)):
            share = float(weights[i]) / total
            self._nodes.append(_Node(int(self._ids[i]), parent, depth, worth * share, output))

    def spread(self, worth: float) -> bool:
        """Choose what to follow: the best nodes of the last level that are worth it. False if there are none."""
        deepest = self._nodes[-1].depth
        level = [n for n, node in enumerate(self._nodes, 1) if node.depth == deepest and node.worth > worth]
        if deepest >= self._depth:
            return False
        chosen = sorted(sorted(level, key=lambda n: (-self._nodes[n - 1].worth, n))[:_WIDTH])
        kept = [n for n in self.fed if any(n in self._path(c) for c in chosen)]
        self.fed, self.fresh = [*kept, *chosen], len(chosen)
        return bool(chosen)

    def _path(self, number: int) -> list[int]:
        return tree.path([node.parent for node in self._nodes], number)

    @property
    def states(self) -> Row:
        return np.stack([self._nodes[n - 1].state for n in self.fed])

    def chunk(self) -> Chunk:
        place = {n: i for i, n in enumerate(self.fed)}
        visible = tuple(tuple(place[a] for a in self._path(n)) for n in self.fed)
        depths = tuple(self._nodes[n - 1].depth - 1 for n in self.fed)
        tokens = tuple(self._nodes[n - 1].token for n in self.fed)
        return Chunk(tokens, self.table.length, self.table.pages, self.fresh, depths, visible)

    def take(self, outputs: Sequence[Row], logits: Sequence[Row]) -> None:
        """The rows of the last pass: give the new nodes their children."""
        new = len(self.fed) - self.fresh
        for n, output, row in zip(self.fed[new:], outputs[new:], logits, strict=True):
            self._add(n, self._nodes[n - 1].worth, row, output)

    def draft(self, most: int, worth: float, vocab: int) -> Draft:
        """The best nodes, at most `most`, that are worth it; the likeliest child of the root in any case."""
        if not np.isfinite([node.worth for node in self._nodes]).all():
            return Draft(error="draft head: its logits are no numbers of which a law can be made")
        ranked = sorted(range(1, len(self._nodes) + 1), key=lambda n: (-self._nodes[n - 1].worth, n))[:most]
        kept = sorted(n for n in ranked if n == ranked[0] or self._nodes[n - 1].worth > worth)
        place = {0: 0, **{n: i + 1 for i, n in enumerate(kept)}}
        chosen = [self._nodes[n - 1] for n in kept]
        return point_tree([c.token for c in chosen], [place[c.parent] for c in chosen], vocab)
