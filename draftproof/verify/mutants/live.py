"""A request in flight, and the sample that it becomes. Knows no model, no rule and no batch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from draftproof.verify.contract import Job, Sample, StepCount
from draftproof.verify.mutants.cache import Slot
from draftproof.verify.mutants.ends import Ending
from draftproof.verify.mutants.laws import Chain, Law

Memo = dict[Hashable, Law]


@dataclass(slots=True)
class Book:
    """What one step is counted as."""

    proposed: int
    accepted: int
    emitted: int


@dataclass(slots=True, eq=False)
class Live:
    job: Job
    seed: int
    chain: Chain
    ending: Ending
    target_laws: Memo
    draft_laws: Memo
    rule: str
    context: list[int]  # prompt and output
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    books: list[Book] = field(default_factory=list)
    target: Slot = field(default_factory=Slot)
    draft: Slot = field(default_factory=Slot)
    finish: str = ""


def settle(books: list[Book], tokens: int) -> list[Book]:
    """The books of the first `tokens` tokens: what a stop took back is not counted, nor are steps without a token."""
    kept = []
    for book in books:
        emitted = min(book.emitted, tokens)
        tokens -= emitted
        if emitted < book.emitted:
            accepted = min(book.accepted, emitted)
            book = Book(accepted, accepted, emitted)
        if emitted:
            kept.append(book)
    return kept


def to_sample(live: Live) -> Sample:
    books = settle(live.books, len(live.output))
    return Sample(
        tokens=tuple(live.output),
        finish=live.finish,
        text=live.ending.text,
        logprobs=tuple(live.logprobs),
        proposed=sum(b.proposed for b in books),
        accepted=sum(b.accepted for b in books),
        steps=tuple(StepCount(b.proposed, b.accepted) for b in books),
        usage=len(live.output),
    )
