"""The proposer that proposes nothing: plain decoding, and the do-nothing twin of the contract."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft.base import Ask, Stateless
from draftproof.types import Draft


class NoProposer(Stateless):
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft() for _ in asks]
