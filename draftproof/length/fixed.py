"""The draft length that the request asked for, always. The do-nothing twin of the contract."""

from __future__ import annotations

from draftproof.types import Run, SequenceView


class FixedLength:
    def choose(self, view: SequenceView) -> int:
        return view.request.k

    def observe(self, view: SequenceView, run: Run) -> None:
        del view, run
