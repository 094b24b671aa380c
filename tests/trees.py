"""Tree drafts in small worlds: how they are drawn, a rule written once more with faults to switch on, and formulas.

Knows the rules only through a decoder's `propose` and `verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from worlds import Tokens, World

from draftproof.accept import RULES, draw
from draftproof.noise import Purpose
from draftproof.types import Draft, Kind, Law, Verdict
from draftproof.verify.enumerate import outcomes

Dense = NDArray[np.float64]
Taken = list[tuple[int, Law]]
Siblings = Callable[[Law, int, int, Any], Taken]  # (q, first node, most, noise) -> tokens with their laws
Shape = Sequence[tuple[int, int]]  # (node, most children), in the order of drawing
# vocabulary, shape, length of the joint law: depths 1 to 3, one to three children, more steps than one
SHAPES: dict[str, tuple[int, Shape, int]] = {
    "pair": (3, [(0, 2)], 3),
    "whole vocabulary": (3, [(0, 3)], 3),
    "three of four": (4, [(0, 3)], 2),
    "two levels": (2, [(0, 2), (1, 2), (2, 2)], 3),
    "second child deeper": (3, [(0, 2), (2, 2)], 3),
    "three levels": (2, [(0, 2), (2, 2), (3, 1)], 4),
    "a chain": (2, [(0, 1), (1, 1), (2, 1)], 4),
    "elder sibling late": (2, [(0, 1), (1, 2), (0, 1)], 3),
}


def without(q: Law, tokens: Sequence[int]) -> Dense:
    weights = q.dense().copy()
    weights[list(tokens)] = 0.0
    return weights


def sampled(q: Law, first: int, most: int, noise: Any) -> Taken:
    """Without replacement, each with the law it was drawn from."""
    taken: Taken = []
    while len(taken) < most:
        weights = without(q, [x for x, _ in taken])
        if not weights.any():
            break
        law = Law(q.vocab, None, weights)
        taken.append((draw(law, noise.uniform(first + len(taken) - 1, Purpose.DRAFT)), law))
    return taken


def likeliest(q: Law, first: int, most: int, noise: Any) -> Taken:
    """Not sampled: point masses."""
    order = np.argsort(-q.dense(), kind="stable")[:most]
    return [(int(x), Law.point(q.vocab, int(x))) for x in order]


def mixed(q: Law, first: int, most: int, noise: Any) -> Taken:
    """One is sampled, the likeliest others are not."""
    taken = sampled(q, first, 1, noise)
    weights = without(q, [taken[0][0]])
    rest = Law(q.vocab, None, weights) if weights.any() else q
    more = [(x, law) for x, law in likeliest(rest, first, most - 1, noise) if x != taken[0][0]]
    return taken + more


STYLES: dict[str, Siblings] = {"sampled": sampled, "likeliest": likeliest, "mixed": mixed}


def text_of(draft: Draft, node: int) -> Tokens:
    """The draft tokens from the first level down to a node."""
    return (*text_of(draft, draft.parents[node - 1]), draft.tokens[node - 1]) if node else ()


def grow(world: World, prefix: Tokens, shape: Shape, noise: Any, siblings: Siblings) -> Draft:
    draft = Draft()
    for node, most in shape:
        if node > len(draft.tokens):  # there were fewer children than that
            continue
        elder = [draft.tokens[i] for i, parent in enumerate(draft.parents) if parent == node]
        left = without(world.q(prefix + text_of(draft, node)), elder)
        if not left.any():
            continue
        for x, law in siblings(Law(world.vocab, None, left), len(draft.tokens) + 1, most, noise):
            draft = Draft((*draft.tokens, x), (*draft.laws, law), None, (*draft.parents, node))
    return draft


def rows_of(world: World, prefix: Tokens, draft: Draft) -> list[Law]:
    return [world.p(prefix + text_of(draft, node)) for node in range(len(draft.tokens) + 1)]


@dataclass(frozen=True)
class TreeDecoder:
    """A rule or a planted fault on trees."""

    verdict: Callable[[Sequence[Law], Draft, Any], Verdict]
    siblings: Siblings = sampled
    rows: Callable[[World, Tokens, Draft], Sequence[Law]] = rows_of
    emit: Callable[[Draft, Verdict], Tokens] = lambda draft, v: tuple(draft.tokens[n - 1] for n in v.path)

    def judge(self, world: World, prefix: Tokens, shape: Shape, noise: Any) -> tuple[Draft, Verdict]:
        draft = grow(world, prefix, shape, noise, self.siblings)
        return draft, self.verdict(self.rows(world, prefix, draft), draft, noise)

    def step(self, world: World, shape: Shape) -> Callable[[Tokens, int, Any], Tokens]:
        def step(prefix: Tokens, origin: int, noise: Any) -> Tokens:
            draft, verdict = self.judge(world, prefix, shape, noise)
            return (*self.emit(draft, verdict), verdict.token)

        return step


TREE = {name: TreeDecoder(rule.verdict) for name, rule in RULES.items()}


def styled(rule: str, style: str) -> TreeDecoder:
    return replace(TREE[rule], siblings=STYLES[style])


# the rule of siblings, written once more in dense arrays


@dataclass(frozen=True)
class Rejection:
    """Honest as it stands. Each part is to be replaced by a faulty one."""

    left: Callable[[Dense, Dense, Dense], Dense] = lambda p, left, q: np.maximum(left - q, 0.0)  # after a rejection
    normal: Callable[[Dense], Dense] = lambda left: left / left.sum()
    judged_by: Callable[[Dense, Dense], Dense] = lambda p, left: left
    law: Callable[[Draft, int], Dense] = lambda draft, n: draft.laws[n - 1].dense()
    key: Callable[[int, int], int] = lambda depth, node: node - 1  # of the accept uniform

    def __call__(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        path: list[int] = []
        while True:
            node, depth = (path[-1] if path else 0), len(path)
            below = [i + 1 for i, parent in enumerate(draft.parents) if parent == node]
            p = rows[node].dense()
            left, chosen = p, 0
            for n in below:
                q, x = self.law(draft, n), draft.tokens[n - 1]
                if noise.uniform(self.key(depth, n), Purpose.ACCEPT) * q[x] < self.judged_by(p, left)[x]:
                    chosen = n
                    break
                rest = self.left(p, left, q)
                left = self.normal(rest) if rest.sum() > 0 else left
            if not chosen:
                token = draw(Law(len(p), None, left), noise.uniform(depth, Purpose.NEXT))
                return Verdict(depth, token, Kind.RESIDUAL if below else Kind.BONUS, path=tuple(path))
            path.append(chosen)


# acceptance by formula


def drafts_of(world: World, shape: Shape, siblings: Siblings) -> Iterator[tuple[Draft, float]]:
    """Every tree that may be drawn behind the empty text, with its probability."""
    yield from outcomes(lambda noise: grow(world, (), shape, noise, siblings))


def expected_accepted(rule: str, world: World, draft: Draft, node: int = 0) -> float:
    """Mean accepted nodes below `node`, given the tree: the children's own laws are those of the draws behind it."""
    p, total, reached = world.p(text_of(draft, node)).dense(), 0.0, 1.0
    left = p
    for n in (i + 1 for i, parent in enumerate(draft.parents) if parent == node):
        x, q = draft.tokens[n - 1], draft.laws[n - 1].dense()
        stands = p[x] if rule in ("sampled", "coupled") else reached * min(left[x] / q[x], 1.0)
        reached -= stands
        rest = np.maximum(left - q, 0.0)
        left = rest / rest.sum() if rest.any() else left
        total += stands * (1 + expected_accepted(rule, world, draft, n))
    return total
