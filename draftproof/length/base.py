"""The contract of draft-length policies. Knows no policy.

A policy decides from what earlier steps showed, never from the tokens that it is about to allow (predictable stopping).
"""

from __future__ import annotations

from typing import Protocol

from draftproof.types import Run, SequenceView


class LengthPolicy(Protocol):
    def choose(self, view: SequenceView) -> int:
        """Most draft tokens for this sequence in the coming step, at least 0."""
        ...

    def observe(self, view: SequenceView, run: Run) -> None:
        """What the step came to."""
        ...
