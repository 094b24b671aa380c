"""The choice between suffix and head rests on the request's own past and on the match at hand, on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from heads import PROMPTS, Watching, engine

from draftproof.draft import combined
from draftproof.draft.base import Ask, Seen, point_draft
from draftproof.draft.combined import CombinedProposer
from draftproof.draft.suffix import SuffixProposer
from draftproof.law import LawMaker
from draftproof.noise import StepNoise
from draftproof.types import Draft, Finish, Kind, Request, Run, SamplingParams

VOCAB = 50
LOOP = [1, 2, 3, 4, 5, 6, 7, 8] * 3


@dataclass
class View:
    request: Request
    tokens: list[int] = field(default_factory=list)


class Saying:
    """A head that always says token 49, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = self.passes = 0

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.asked += len(asks)
        return [point_draft([49] * ask.k, VOCAB) for ask in asks]

    def observe(self, seen: Sequence[Seen]) -> None: ...

    def forget(self, request: int) -> None: ...


def refuse(*_: object) -> Any:
    raise AssertionError("a choice must be made before anything is drawn")


def ask(name: int, tokens: Sequence[int], k: int = 4) -> Ask:
    params = SamplingParams()
    request = Request(name, tuple(tokens[:1]), params, 0, k, frozenset())
    view = View(request, list(tokens))
    return Ask(view, k, LawMaker(params, frozenset(), VOCAB), StepNoise(0, len(tokens)), refuse)  # type: ignore[arg-type]


def proposer() -> CombinedProposer:
    return CombinedProposer(SuffixProposer(VOCAB, 1), Saying(), VOCAB)  # type: ignore[arg-type]


def source(made: CombinedProposer, name: int, tokens: Sequence[int]) -> str:
    return "head" if made.propose([ask(name, tokens)])[0].tokens[0] == 49 else "suffix"


def tell(made: CombinedProposer, name: int, accepted: int, finish: Finish | None = None, proposed: int = 4) -> None:
    kind = Kind.RESIDUAL if accepted < proposed else Kind.BONUS
    kinds = (Kind.ACCEPTED,) * accepted + (kind,)
    run = Run((0,) * len(kinds), kinds, proposed, accepted, 1, finish)
    made.observe([Seen(ask(name, LOOP).view, 0, 1, run, None)])


def test_a_long_match_is_looked_up_and_no_match_is_not() -> None:
    made = proposer()
    assert source(made, 1, LOOP) == "suffix"
    assert source(made, 2, [1, 2, 3, 4]) == "head"
    assert made.head.asked == 1  # type: ignore[attr-defined]


def test_what_did_not_stand_is_not_looked_up_again() -> None:
    made = proposer()
    for _ in range(6):
        source(made, 1, LOOP)
        tell(made, 1, 0)
    assert source(made, 1, LOOP) == "head"


def test_a_head_that_fails_gives_way_to_a_short_match() -> None:
    made, text = proposer(), [9, 1, 2, 9, 3, 9]
    assert source(made, 1, text) == "head"
    chosen = []
    for _ in range(40):
        chosen.append(source(made, 1, text))
        tell(made, 1, 0)
    assert "suffix" in chosen


def test_another_requests_fate_changes_nothing() -> None:
    made = proposer()
    for _ in range(6):
        source(made, 2, LOOP)
        tell(made, 2, 0)
    assert source(made, 2, LOOP) == "head"
    assert source(made, 1, LOOP) == "suffix"


def test_preemption_keeps_the_record_and_the_end_drops_it() -> None:
    made = proposer()
    for _ in range(6):
        source(made, 1, LOOP)
        tell(made, 1, 0)
    made.forget(1)
    assert source(made, 1, LOOP) == "head"
    tell(made, 1, 0, Finish.LENGTH)
    made.forget(1)
    assert source(made, 1, LOOP) == "suffix"


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.draft.combined._MOST_RECORDS", 10)
    made = proposer()
    for name in range(50):
        source(made, name, LOOP)
        made.forget(name)  # aborted: no word of its end
    assert len(made._records) <= 10


def test_who_still_asks_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else so many other requests, aborted ones, would change what this one is drafted."""
    monkeypatch.setattr("draftproof.draft.combined._MOST_RECORDS", 10)
    made = proposer()
    for _ in range(6):
        source(made, 1, LOOP)
        tell(made, 1, 0)
    for other in range(100, 150):
        assert source(made, 1, LOOP) == "head"
        source(made, other, LOOP)


def shared(self: CombinedProposer, ask: Ask) -> Any:
    return self._records.setdefault(2, combined._Record())


def forgetful(self: CombinedProposer, request: int) -> None:
    self._records.pop(request, None)


def late(self: CombinedProposer, record: Any, match: Any, ask: Ask) -> int:
    """Draws first, and then looks whether it was worth it."""
    refuse()
    return ask.k


FAULTS = {
    "_record": (shared, test_another_requests_fate_changes_nothing),
    "forget": (forgetful, test_preemption_keeps_the_record_and_the_end_drops_it),
    "_looked_up": (late, test_a_long_match_is_looked_up_and_no_match_is_not),
}


@pytest.mark.parametrize("method", FAULTS)
def test_planted_faults_are_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, check = FAULTS[method]
    monkeypatch.setattr(CombinedProposer, method, fault)
    with pytest.raises(AssertionError):
        check()


def test_mixed_batches_keep_their_order() -> None:
    made = proposer()
    drafts = made.propose([ask(1, [1, 2]), ask(2, LOOP), ask(3, [5, 6, 7]), ask(4, LOOP)])
    assert [d.tokens[0] for d in drafts] == [49, 1, 49, 1]


def test_in_an_engine_both_are_used_and_pages_are_free_in_the_end() -> None:
    made = engine("combined", k=4)
    watch = Watching(made)
    prompts = [[*p, *p, *p, *p] for p in PROMPTS]
    made.generate(prompts, SamplingParams(max_tokens=40, seed=1, ignore_eos=True, temperature=0.0))
    looked_up = [d for _, _, d in watch.drafts if d.tokens and watch.inner.suffix and all(q.is_point for q in d.laws)]
    assert looked_up
    made.audit()
    assert watch.inner.head.pool.free == watch.inner.head.pool.total
    assert not watch.inner._records
