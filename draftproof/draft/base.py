"""The contract between a decode step and whatever proposes tokens. Knows no proposer and no rule.

A proposer sees committed tokens only, and says for every token the law that it was drawn from. Whether token i + 1 is
proposed may depend on tokens 1 .. i, on fresh noise and on earlier steps, never on token i + 1 itself: drawing a token
and then discarding it because it is unlikely biases the output (predictable stopping, DESIGN.md). In a tree, likewise,
where the next node hangs, and whether there is one, may depend on the nodes before it, which must all be in the Draft.
Whether a draft is a tree at all (has `parents`, be they a chain's) must be settled before its first token is drawn: the
block rule judges chains as a whole, so a token that decides which rule judges it would bias the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays
from draftproof.law import LawMaker
from draftproof.noise import Noise, Purpose, Race
from draftproof.prices import Prices
from draftproof.types import Draft, Law, Run, SequenceView


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence's wish for a draft of at most `k` tokens, or for a tree of at most `nodes` nodes and depth `k`.

    `draw(law, noise, offset)` is the one way to draw a token of a chain: the rule decides how, the noise is the
    sequence's own. `draw_siblings` is its twin for trees. `laws` processes logits with the request's parameters, as for
    the target. With `nodes` 0 only chains may be proposed: the target was not loaded with trees, the rule is lossy, or
    its bitwise promise would not hold for trees on this machine. With `prices`, proposers that know how likely a token
    is to stand draft no further than it pays; others may leave them alone.
    """

    view: SequenceView
    k: int
    laws: LawMaker
    noise: Noise
    draw: Callable[[Law, Noise, int], int]
    nodes: int = 0
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What one sequence's part of a step came to. The view already holds the new tokens.

    Slots start .. start + rows - 1 were written in this step and stay: committed tokens and the draft tokens that
    stand, `view.tokens[start : start + rows]`. `run` is None while the prompt is still being read. Tokens whose pages
    were found in a prefix cache are told of in the same way, before the step that reads on behind them.
    hidden: [rows, layers, width], the target's states of these tokens, in order, if they were asked for at load; never
    those of rejected tokens.
    """

    view: SequenceView
    start: int
    rows: int
    run: Run | None
    hidden: NDArray[np.float32] | None


class Proposer(Protocol):
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One Draft an ask, a chain of at most ask.k tokens or a tree within ask.nodes; an empty one is always allowed.

        A Draft that breaks the contract, or has an `error`, ends its request; a wrong number of them ends the step.
        """
        ...

    def observe(self, seen: Sequence[Seen]) -> None:
        """What the step came to, for every sequence that took part."""
        ...

    def forget(self, request: int) -> None:
        """The request ended or was preempted: free whatever is kept for it. Unknown ids are fine."""
        ...


@runtime_checkable
class Paced(Proposer, Protocol):
    """A proposer that heeds `Ask.prices`. `passes`: those of its own model in the latest `propose`."""

    @property
    def passes(self) -> int: ...


class Stateless:
    """Base for proposers that look only at the tokens: nothing to observe, nothing to forget."""

    def observe(self, seen: Sequence[Seen]) -> None:
        del seen

    def forget(self, request: int) -> None:
        del request


def point_draft(tokens: Sequence[int], vocab: int) -> Draft:
    """A draft that was looked up, not sampled: each law is a point mass."""
    return Draft(tuple(tokens), tuple(Law.point(vocab, t) for t in tokens))


@dataclass(frozen=True, slots=True)
class _NodeNoise:
    """Noise of one node of a tree: uniforms are its own, a race is shared by the nodes of its depth."""

    noise: Noise
    node: int

    def uniform(self, offset: int, purpose: Purpose) -> float:
        del offset
        return self.noise.uniform(self.node - 1, purpose)

    def sample(self, offset: int) -> float:
        return self.noise.sample(offset)

    def race(self, offset: int) -> Race:
        return self.noise.race(offset)


def draw_siblings(ask: Ask, law: Law, depth: int, first: int, most: int) -> list[tuple[int, Law]]:
    """Draw up to `most` distinct tokens from `law`, one after the other without replacement, each with its own law.

    They become the nodes `first`, `first` + 1, ... (the draft's tokens so far, plus one), children of a node `depth`
    nodes below the last committed token (0: of that token itself). Fewer come if the law has no more tokens.
    """
    drawn: list[tuple[int, Law]] = []
    weights = arrays.namespace(law.weights).asarray(law.weights, copy=True)
    while len(drawn) < most and weights.any():
        rest = Law(law.vocab, law.ids, arrays.namespace(weights).asarray(weights, copy=True)) if drawn else law
        token = ask.draw(rest, _NodeNoise(ask.noise, first + len(drawn)), depth)
        weights[token if law.ids is None else law.place(token)] = 0.0
        drawn.append((token, rest))
    return drawn


def point_tree(tokens: Sequence[int], parents: Sequence[int], vocab: int) -> Draft:
    """A tree that was looked up or ranked, not sampled: each law is a point mass. See tree.py for `parents`."""
    return point_draft(tokens, vocab)._replace(parents=tuple(parents))
