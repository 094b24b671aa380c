"""The contract of draft-length policies. Knows no policy.

A policy decides from what earlier steps showed, never from the tokens that it is about to allow (predictable stopping).
"""

from __future__ import annotations

from typing import Protocol

from draftproof.length.learned import Step
from draftproof.prices import Prices
from draftproof.types import Run, SequenceView


class LengthPolicy(Protocol):
    @property
    def adapts(self) -> bool:
        """Whether it can choose for requests that leave the draft length to the engine."""
        ...

    def choose(self, view: SequenceView, batch: int, most: int) -> int:
        """Draft tokens for this sequence in the coming step, from 0 to `most`; `batch` sequences are running.

        May be asked more than once before the step is done, and then says the same.
        """
        ...

    def prices(self, view: SequenceView) -> Prices | None:
        """What tokens of the draft that was just chosen must bring; None: draft as many as chosen."""
        ...

    def observe(self, view: SequenceView, run: Run) -> None:
        """What the step came to. The last one of a request has a `finish`."""
        ...

    def timed(self, step: Step) -> None:
        """What the step took. Told before the step's runs are."""
        ...

    def forget(self, request: int) -> None:
        """The request has gone."""
        ...
