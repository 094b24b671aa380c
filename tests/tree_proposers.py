"""Small proposers of trees: the likeliest children of a table, or children sampled from it without replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from toys import Table

from draftproof import tree
from draftproof.draft.base import Ask, Stateless, draw_siblings, point_draft, point_tree
from draftproof.types import Draft, Law

Shape = Sequence[tuple[int, int]]  # (node, most children), parents first
BUSHY: Shape = ((0, 2), (1, 2), (2, 1), (3, 2), (5, 1))


class _Trees(Stateless):
    """Args: a table, the target's vocabulary and the shape to draw, cut to what is asked for.

    Every third request is drafted a chain for, every fourth nothing, so that batches are mixed.
    """

    def __init__(self, table: Table, vocab: int, shape: Shape = BUSHY, mixed: bool = False) -> None:
        self._table, self._vocab, self._shape, self._mixed = table, vocab, shape, mixed
        self.asked: list[Ask] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.asked += asks
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Draft:
        name = ask.view.request.id if self._mixed else 1
        if name % 4 == 0:
            return Draft()
        if name % 3 == 0 or not ask.nodes:
            return point_draft([int(self.law(ask, []).dense().argmax())], self._vocab)
        tokens: list[int] = []
        laws: list[Law] = []
        parents: list[int] = []
        for node, most in self._shape:
            depth = tree.depths(parents)[node] if node <= len(parents) else ask.k
            room = min(most, ask.nodes - len(tokens)) if depth < ask.k else 0
            text = [tokens[n - 1] for n in tree.path(parents, node)] if room else []
            for x, law in self.children(ask, text, depth, len(tokens) + 1, room) if room else []:
                tokens.append(x)
                laws.append(law)
                parents.append(node)
        return Draft(tuple(tokens), tuple(laws), None, tuple(parents))

    def law(self, ask: Ask, text: Sequence[int]) -> Law:
        tokens = (*ask.view.tokens, *text)
        prompt = ask.view.request.prompt
        with np.errstate(divide="ignore"):
            logits = np.log(self._table(tokens)).astype(np.float32)
        return ask.laws.law(logits, prompt, tokens[len(prompt) :])

    def children(self, ask: Ask, text: Sequence[int], depth: int, first: int, most: int) -> list[tuple[int, Law]]:
        raise NotImplementedError


class SampledTrees(_Trees):
    def children(self, ask: Ask, text: Sequence[int], depth: int, first: int, most: int) -> list[tuple[int, Law]]:
        return draw_siblings(ask, self.law(ask, text), depth, first, most)


class LikeliestTrees(_Trees):
    def children(self, ask: Ask, text: Sequence[int], depth: int, first: int, most: int) -> list[tuple[int, Law]]:
        law = self.law(ask, text)
        best = [int(x) for x in np.argsort(-law.dense(), kind="stable")[:most]]
        draft = point_tree(best, [0] * len(best), self._vocab)
        return list(zip(draft.tokens, draft.laws, strict=True))
