"""A working example of a proposer: copy this file, rename it, and change `_next`.

It guesses that the last token will be repeated, with a probability that it states truthfully: it draws each draft
token from a law and hands out that same law. See docs/add_a_proposer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.draft.base import Ask, Stateless
from draftproof.types import Draft, Law


class SkeletonProposer(Stateless):
    """Args: `vocab` of the target; `repeat` is the share of mass on the token that is repeated."""

    def __init__(self, vocab: int, repeat: float = 0.5) -> None:
        self._vocab, self._repeat = vocab, repeat

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Draft:
        tokens = list(ask.view.tokens)
        drawn: list[int] = []
        laws: list[Law] = []
        for offset in range(ask.k):
            law = self._next(tokens)
            token = ask.draw(law, ask.noise, offset)  # the one way to draw: the rule decides how
            tokens.append(token)
            drawn.append(token)
            laws.append(law)  # the law that it was drawn from, never another (I3)
        return Draft(tuple(drawn), tuple(laws))

    def _next(self, tokens: Sequence[int]) -> Law:
        """What comes after `tokens`, as a law over the target's vocabulary. Put your idea here."""
        weights = np.full(self._vocab, (1 - self._repeat) / self._vocab)
        weights[tokens[-1]] += self._repeat
        return Law(self._vocab, None, weights)
