"""Each planted fault in the rules on trees must be caught by the joint law, and the honest rules must pass it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trees import SHAPES, STYLES, TREE, Rejection, Taken, TreeDecoder, grow, rows_of, sampled, styled, text_of
from worlds import Tokens, World, distance

from draftproof.accept import RULES
from draftproof.noise import Purpose
from draftproof.types import Draft, Law, Verdict
from draftproof.verify.enumerate import joint_law

EXACT, VISIBLE = 1e-12, 1e-6


def error(decoder: TreeDecoder, shape: str) -> float:
    vocab, nodes, length = SHAPES[shape]
    world = World(vocab, "dense", seed=7)
    return distance(joint_law(decoder.step(world, nodes), length), world.target(length))


class OneDraw:
    """One draw for the whole path: every depth is shown the noise of the first."""

    def __init__(self, noise: Any) -> None:
        self._noise = noise

    def uniform(self, offset: int, purpose: Purpose) -> Any:
        return self._noise.uniform(0 if purpose in (Purpose.ACCEPT, Purpose.NEXT) else offset, purpose)

    def sample(self, offset: int) -> Any:
        return self._noise.sample(0)


def one_draw(rule: str, style: str) -> TreeDecoder:
    base = styled(rule, style)
    return replace(base, verdict=lambda rows, draft, noise: base.verdict(rows, draft, OneDraw(noise)))


def replaced(q: Law, first: int, most: int, noise: Any) -> Taken:
    """Siblings drawn without replacement, that state the law of a draw with it."""
    return [(x, q) for x, _ in sampled(q, first, most, noise)]


def wrong_node(world: World, prefix: Tokens, draft: Draft) -> Sequence[Law]:
    """The row of the node before."""
    rows = rows_of(world, prefix, draft)
    return [rows[0], rows[0], *rows[1:-1]]


def masked(world: World, prefix: Tokens, draft: Draft) -> Sequence[Law]:
    """Every node also sees the node before it in the chunk instead of its parent."""
    seen = [()] + [(*text_of(draft, max(n - 1, 0))[: len(text_of(draft, n)) - 1], draft.tokens[n - 1])
                   for n in range(1, len(draft.tokens) + 1)]  # fmt: skip
    return [world.p(prefix + tokens) for tokens in seen]


def first_born(draft: Draft, verdict: Verdict) -> Tokens:
    """The first tokens of the draft, as for a chain, instead of those of the path."""
    return draft.tokens[: verdict.accepted]


def unnormalised(left: Any) -> Any:
    return left


RULE = TreeDecoder(Rejection())
FAULTS: dict[str, tuple[TreeDecoder, str]] = {
    "mask off by one": (replace(TREE["token"], rows=masked), "two levels"),
    "mask off by one, sampled rule": (replace(TREE["sampled"], rows=masked), "two levels"),
    "row of the wrong node": (replace(TREE["token"], rows=wrong_node), "two levels"),
    "row of the wrong node, coupled rule": (replace(TREE["coupled"], rows=wrong_node), "two levels"),
    "one draw a path": (one_draw("token", "likeliest"), "two levels"),
    "one draw a path, sampled siblings": (one_draw("token", "sampled"), "two levels"),
    "one draw a path, sampled rule": (one_draw("sampled", "sampled"), "two levels"),
    "one accept uniform for all siblings": (TreeDecoder(Rejection(key=lambda depth, node: depth)), "pair"),
    "residual not renormalised": (TreeDecoder(Rejection(normal=unnormalised)), "pair"),
    "second sibling judged by p": (TreeDecoder(Rejection(judged_by=lambda p, left: p)), "pair"),
    "residual of the last sibling only": (
        TreeDecoder(Rejection(left=lambda p, left, q: np.maximum(p - q, 0.0))), "pair",
    ),
    "law of a draw with replacement": (replace(RULE, siblings=replaced), "pair"),
    "law of a draw with replacement, two levels": (replace(RULE, siblings=replaced), "second child deeper"),
    "tokens of the first branch emitted": (replace(TREE["token"], emit=first_born), "pair"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str) -> None:
    decoder, shape = FAULTS[name]
    assert error(decoder, shape) > VISIBLE


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", ["pair", "two levels", "three levels"])
def test_the_rewritten_rule_is_honest_without_its_fault(style: str, shape: str) -> None:
    assert error(replace(RULE, siblings=STYLES[style]), shape) < EXACT


def _late(noise: Any, world: World, prefix: Tokens, settled: bool) -> Tokens:
    """A chain of two that gets a second branch if its second token is 0. `settled`: it was a tree from the start."""
    draft = grow(world, prefix, [(0, 1), (1, 1)], noise, sampled)
    if draft.tokens[1] == 0:
        draft = grow(world, prefix, [(0, 1), (1, 1), (0, 1)], noise, sampled)
    elif not settled:
        draft = draft._replace(parents=())
    rows = rows_of(world, prefix, draft) if draft.parents else world.rows(prefix, draft.tokens)
    verdict = RULES["block"].verdict(rows, draft, noise)
    nodes = verdict.path if draft.parents else range(1, verdict.accepted + 1)
    return (*(draft.tokens[n - 1] for n in nodes), verdict.token)


@pytest.mark.parametrize("settled", [True, False])
def test_whether_it_is_a_tree_must_be_settled_before_a_token_is_drawn(settled: bool) -> None:
    """The block rule judges chains as a whole: a token that decides which rule judges it biases the output."""
    world = World(3, "dense", seed=7)
    law = joint_law(lambda prefix, origin, noise: _late(noise, world, prefix, settled), 2)
    assert (distance(law, world.target(2)) < EXACT) is settled
    assert settled or distance(law, world.target(2)) > VISIBLE
