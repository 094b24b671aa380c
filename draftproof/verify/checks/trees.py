"""Tree drafts for the enumeration of accept rules: how they are drawn, and one step with them.

Siblings are drawn here, one after the other without replacement, or taken as point masses in the order of their mass;
every rule is to be exact for both. Knows no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from draftproof.verify.contract import Floats, RuleUnderTest

Tokens = tuple[int, ...]
Table = Callable[[Tokens], Floats]
SHAPES = (((0, 2),), ((0, 2), (2, 1)), ((0, 1), (1, 1), (0, 1)))  # (node, most children), in the order of drawing


class Tree(NamedTuple):
    tokens: Tokens = ()
    laws: tuple[Floats, ...] = ()
    parents: Tokens = ()

    def text(self, node: int) -> Tokens:
        """Draft tokens from the first level down to a node."""
        return (*self.text(self.parents[node - 1]), self.tokens[node - 1]) if node else ()

    def with_child(self, node: int, token: int, law: Floats) -> Tree:
        return Tree((*self.tokens, token), (*self.laws, law), (*self.parents, node))


def drawn(q: Table, prefix: Tokens, shape: Sequence[tuple[int, int]], sampled: bool, noise: Any) -> Tree:
    tree = Tree()
    for node, most in shape:
        for _ in range(most if node <= len(tree.tokens) else 0):
            left = q(prefix + tree.text(node)).copy()
            left[[x for x, parent in zip(tree.tokens, tree.parents, strict=True) if parent == node]] = 0.0
            if not left.any():
                break
            if sampled:
                token = _pick(left, noise.uniform(len(tree.tokens), "tree"))
                tree = tree.with_child(node, token, left / left.sum())
            else:
                token = int(left.argmax())
                tree = tree.with_child(node, token, np.eye(len(left))[token])
    return tree


def _pick(weights: Floats, u: Any) -> int:
    sums = list(accumulate(weights / weights.sum()))
    last = int(np.flatnonzero(weights)[-1])
    return next((x for x in range(last) if weights[x] > 0 and u < sums[x]), last)


def step(rule: RuleUnderTest, p: Table, prefix: Tokens, tree: Tree, noise: Any) -> Tokens:
    """What the rule emits behind `prefix` with this draft."""
    rows = [rule.law(p(prefix + tree.text(node))) for node in range(len(tree.tokens) + 1)]
    verdict: Any = rule.verdict(rows, rule.draft(tree.tokens, [rule.law(q) for q in tree.laws], tree.parents), noise)
    path = tuple(verdict.path)
    if len(path) != verdict.accepted:
        raise ValueError(f"{verdict.accepted} accepted on a path of {len(path)} nodes")
    return (*(tree.tokens[n - 1] for n in path), verdict.token)
