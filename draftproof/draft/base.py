"""The contract between a decode step and whatever proposes tokens. Knows no proposer and no rule.

A proposer sees committed tokens only, and says for every token the law that it was drawn from. Whether token i + 1 is
proposed may depend on tokens 1 .. i, on fresh noise and on earlier steps, never on token i + 1 itself: drawing a token
and then discarding it because it is unlikely biases the output (predictable stopping, DESIGN.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.law import LawMaker
from draftproof.noise import Noise
from draftproof.types import Draft, Law, Run, SequenceView


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence's wish for a draft of at most `k` tokens.

    `draw(law, offset)` is the one way to draw a token: the rule decides how, the noise is the sequence's own.
    `laws` processes logits with the request's parameters, as for the target.
    """

    view: SequenceView
    k: int
    laws: LawMaker
    noise: Noise
    draw: Callable[[Law, Noise, int], int]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one sequence's part of a step came to. The view already holds the new tokens.

    The target was fed `rows` tokens from slot `start` on. `run` is None while the prompt is still being read.
    hidden: [rows, layers, width], the target's states of these rows, if they were asked for at load.
    """

    view: SequenceView
    start: int
    rows: int
    run: Run | None
    hidden: NDArray[np.float32] | None


class Proposer(Protocol):
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One Draft an ask, at most ask.k tokens each; an empty Draft is always allowed.

        A Draft that breaks the contract, or has an `error`, ends its request; a wrong number of them ends the step.
        """
        ...

    def observe(self, seen: Sequence[Seen]) -> None:
        """What the step came to, for every sequence that took part."""
        ...

    def forget(self, request: int) -> None:
        """The request ended or was preempted: free whatever is kept for it. Unknown ids are fine."""
        ...


class Stateless:
    """Base for proposers that look only at the tokens: nothing to observe, nothing to forget."""

    def observe(self, seen: Sequence[Seen]) -> None:
        del seen

    def forget(self, request: int) -> None:
        del request


def point_draft(tokens: Sequence[int], vocab: int) -> Draft:
    """A draft that was looked up, not sampled: each law is a point mass."""
    return Draft(tuple(tokens), tuple(Law.point(vocab, t) for t in tokens))
