"""The draft length that the request asked for, always. The do-nothing twin of the contract."""

from __future__ import annotations

from draftproof.length.learned import Step
from draftproof.types import Run, SequenceView


class FixedLength:
    adapts = False

    def choose(self, view: SequenceView, batch: int, most: int) -> int:
        del batch
        return min(view.request.k, most)

    def prices(self, view: SequenceView) -> None:
        del view

    def observe(self, view: SequenceView, run: Run) -> None:
        del view, run

    def timed(self, step: Step) -> None:
        del step

    def forget(self, request: int) -> None:
        del request
