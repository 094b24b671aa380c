"""Suffix match or trained head, chosen anew in each step: whichever is expected to bring more.

The choice rests on the match at hand, which is known before anything is drawn, and on how this request's *own* earlier
drafts of either kind fared. Other requests are not looked at: a seeded text must not depend on them. Knows how to weigh
two proposers; how either works is theirs to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.cost import expected_by_position
from draftproof.draft.base import Ask, Seen, point_draft
from draftproof.draft.head import HeadProposer
from draftproof.draft.suffix import SuffixMatch, SuffixProposer
from draftproof.types import Draft, Kind, Run

_HEAD, _LOOKED_UP = "head", ("1", "2", "3-5", "6+")  # sources: the head, and matches by the length of their suffix
_FROM = (1, 2, 3, 6)  # shortest suffix of each class
_PRIOR = {_HEAD: 0.5, "1": 0.2, "2": 0.35, "3-5": 0.55, "6+": 0.8}  # share of tokens that stand, before any is seen
_WEIGHT = 4.0  # tokens that the prior counts for
_FREE = 1.05  # a looked-up draft costs no passes of the head
_MOST_RECORDS = 4096  # of requests that ended without a word, the oldest are dropped


@dataclass(slots=True)
class _Record:
    """One request: tokens judged and tokens that stood, by source, and the source of the draft that is under way."""

    judged: dict[str, float] = field(default_factory=dict)
    stood: dict[str, float] = field(default_factory=dict)
    source: str = ""

    def share(self, source: str) -> float:
        stood = self.stood.get(source, 0.0) + _WEIGHT * _PRIOR[source]
        return stood / (self.judged.get(source, 0.0) + _WEIGHT)

    def note(self, run: Run) -> None:
        rejected = run.accepted < run.proposed and run.kinds[-1:] == (Kind.RESIDUAL,)
        if self.source and run.accepted + rejected:
            self.judged[self.source] = self.judged.get(self.source, 0.0) + run.accepted + rejected
            self.stood[self.source] = self.stood.get(self.source, 0.0) + run.accepted
        self.source = ""


class CombinedProposer:
    """Args: both proposers, and the vocabulary size of the target."""

    def __init__(self, suffix: SuffixProposer, head: HeadProposer, vocab: int) -> None:
        self.suffix, self.head, self._vocab = suffix, head, vocab
        self._records: dict[int, _Record] = {}

    @property
    def passes(self) -> int:
        return self.head.passes

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts: dict[int, Draft] = {}
        for n, ask in enumerate(asks):
            match = self.suffix.match(ask.view, ask.k)
            if found := self._looked_up(self._record(ask), match, ask):
                drafts[n] = point_draft(match.tokens[:found], self._vocab)
        rest = [n for n in range(len(asks)) if n not in drafts]
        drafts |= zip(rest, self.head.propose([asks[n] for n in rest]), strict=True)
        return [drafts[n] for n in range(len(asks))]

    def _record(self, ask: Ask) -> _Record:
        record = self._records.pop(ask.view.request.id, None) or _Record()
        self._records[ask.view.request.id] = record  # as the last one: who still asks is not dropped
        while len(self._records) > _MOST_RECORDS:
            del self._records[next(iter(self._records))]
        return record

    def _looked_up(self, record: _Record, match: SuffixMatch, ask: Ask) -> int:
        """How many tokens of the match are proposed: none if the head is expected to bring more. Notes the choice."""
        kind = _kind(match.length)
        record.source = _HEAD
        if not kind:
            return 0
        chances, head = [record.share(kind) * share for share in match.shares], record.share(_HEAD)
        if ask.prices is None:
            found, least = expected_by_position(chances) * _FREE, expected_by_position([head] * ask.k)
            length = len(match.tokens)
        else:
            length, found = ask.prices.looked_up(chances)
            least = ask.prices.drafted(head)
        if not length or found <= least:
            return 0
        record.source = kind
        return length

    def observe(self, seen: Sequence[Seen]) -> None:
        self.suffix.observe(seen)
        self.head.observe(seen)
        for s in seen:
            record = self._records.get(s.view.request.id)
            if record is not None and s.run is not None:
                record.note(s.run)
                if s.run.finish is not None:
                    del self._records[s.view.request.id]

    def forget(self, request: int) -> None:
        """The record stays: a request that was preempted must go on as if it had not been."""
        self.suffix.forget(request)
        self.head.forget(request)


def _kind(length: int) -> str:
    return next((kind for kind, least in zip(_LOOKED_UP[::-1], _FROM[::-1], strict=True) if length >= least), "")
