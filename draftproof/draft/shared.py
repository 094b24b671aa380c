"""A draft model with another tokenizer: it proposes the tokens that both vocabularies have.

Its logits of shared tokens are put where the target has them, all others get none, and the request's recipe makes a law
of that: the draft's law restricted to shared tokens and renormalised. A token is drawn from exactly this law, so every
exact rule stays exact, whatever the two vocabularies have in common (token-level intersection, Timor et al. 2025).
What the target says in tokens of its own is fed to the draft piece by piece in its own; that decides how good its
drafts are, never what comes out. Knows no tokenizer: `Translation` is made from two of them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof import arrays
from draftproof.draft.model import ModelProposer
from draftproof.model.base import TargetModel
from draftproof.types import Floats, Ids


@dataclass(frozen=True, slots=True)
class Translation:
    """Two vocabularies. `target` and `draft` are the ids of the shared tokens, one for one, the target's rising.

    `pieces[t]` are the draft's ids that say the target's token t: one for a shared token, several or none for others.
    `begin` stands in front of every text in the draft's ids.
    """

    target: Ids
    draft: Ids
    pieces: tuple[tuple[int, ...], ...]
    begin: tuple[int, ...] = ()

    def read(self, tokens: Sequence[int]) -> list[int]:
        """A text of the target's ids in the draft's."""
        own = [piece for t in tokens if t < len(self.pieces) for piece in self.pieces[t]]
        return own if own[: len(self.begin)] == list(self.begin) else [*self.begin, *own]


class SharedProposer(ModelProposer):
    """Args: the draft model, the target's vocabulary size, and what the vocabularies share.

    `masses`: the share of the target's and of the draft's probability that shared tokens carry, where it was measured;
    no draft can stand more often than the target's.
    """

    def __init__(self, model: TargetModel, vocab: int, shared: Translation, masses: tuple[float, float]) -> None:
        super().__init__(model, vocab)
        self._shared, self.masses, self.shared_tokens = shared, masses, len(shared.target)

    def _read(self, tokens: Sequence[int]) -> list[int]:
        return self._shared.read(tokens)

    def _own(self, token: int) -> int:
        return int(self._shared.draft[np.searchsorted(self._shared.target, token)])

    def _fitted(self, logits: Floats) -> Floats:
        own: Floats = arrays.like(np.full(self._vocab, -np.inf, dtype=np.float32), logits)
        own[self._shared.target] = logits[self._shared.draft]
        return own
