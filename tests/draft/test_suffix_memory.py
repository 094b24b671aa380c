"""Suffix matching in the engine: texts as in plain decoding, what is remembered, and what never is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_search import Text, brute_force, seen, view
from toys import finished, random_table, scripted, toy_engine

from draftproof import SamplingParams
from draftproof.draft import suffix
from draftproof.draft.suffix import SuffixMatch, SuffixProposer, _Automaton, _Memory
from draftproof.types import Finish, Output, SequenceView

VOCAB = 6


def check_remembered(outputs: Sequence[Text], text: Text, shortest: int, k: int) -> None:
    """The request's own text has no token twice, so that what is found was remembered."""
    proposer = SuffixProposer(10, shortest, remember=1000)
    for output in outputs:
        proposer.observe([seen([9, 8, 7, *output], Finish.STOP, prompt=3)])
        proposer.observe([seen([9, *text, 9], finish) for finish in (Finish.ERROR, Finish.ABORT, None)])
    assert proposer.match(view(text), k) == brute_force(outputs, text, k, shortest)


@given(
    outputs=st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6),
    text=st.permutations([0, 1, 2, 3]),
    shortest=st.integers(1, 2),
    k=st.integers(1, 6),
)
def test_remembered_matches_equal_a_search_of_all_outputs(
    outputs: list[list[int]], text: list[int], shortest: int, k: int
) -> None:
    check_remembered(outputs, text, shortest, k)


def test_the_longest_match_wins_and_the_requests_own_among_equals() -> None:
    proposer = SuffixProposer(10, 1, remember=100)
    proposer.observe([seen([1, 2, 7], Finish.LENGTH)])
    assert proposer.match(view([2, 5, 1, 2]), 1).tokens == (7,)
    assert proposer.match(view([1, 2, 5, 1, 2], name=1), 1).tokens == (5,)


def test_earlier_outputs_are_looked_up_by_their_last_tokens_only() -> None:
    proposer, text = SuffixProposer(200, 1, remember=1000), list(range(100))
    proposer.observe([seen([*text, 5], Finish.STOP)])
    assert proposer.match(view(text), 1) == SuffixMatch(64, (5,), (1,), (1.0,))


def check_bound(learn: Callable[[_Memory, Text], None]) -> None:
    """Never more than 100 tokens, and always the last 50 of the latest output and all of a short one before it."""
    memory, rng, before = _Memory(100), np.random.default_rng(1), list[int]()
    for size in rng.integers(0, 70, size=300).tolist():
        output = rng.integers(0, 1000, size=size).tolist()
        learn(memory, output)
        assert sum(p.size for p in memory.parts) <= 100
        assert sum(len(p._next) for p in memory.parts) <= 2 * 100
        for wanted in (output[-50:], before[-50:]):
            assert max(p.find(wanted)[1] for p in memory.parts) == len(wanted)
        before = output or before


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    check_bound(_Memory.learn)
    for most, expected in ((8, [(), (4,), (6,)]), (12, [(2,), (4,), (6,)])):
        proposer = SuffixProposer(10, 1, remember=most)
        for first in (1, 3, 5):
            proposer.observe([seen([first, first + 1, 0], Finish.STOP)])
        assert [proposer.match(view([t], name=t), 1).tokens for t in (1, 3, 5)] == expected
        proposer.clear()
        assert [proposer.match(view([t], name=t), 1).tokens for t in (1, 3, 5)] == [()] * 3


# in the engine


def engine(proposer: SuffixProposer | None, **info: int) -> Any:
    return toy_engine(random_table(VOCAB, 1), VOCAB, proposer, **{"min_rows": 2, "context": 64, **info})


def work(rule: str, k: int = 4) -> list[tuple[list[int], SamplingParams]]:
    rng = np.random.default_rng(3)
    return [
        (
            rng.integers(0, 3, size=4 + 2 * i).tolist(),
            SamplingParams(temperature=(1.0, 0.6)[i % 2], max_tokens=20 + i, seed=i, rule=rule, k=k and 1 + i % k),
        )
        for i in range(8)
    ]


def run(made: Any, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[Output]:
    names = [made.add(*one) for one in asked]
    outputs = finished(made)
    return [outputs[n] for n in names]


@pytest.mark.parametrize("remember", [0, 100])
@pytest.mark.parametrize("rule", ["sampled", "coupled"])
def test_the_text_is_that_of_plain_decoding(rule: str, remember: int) -> None:
    plain = [o.tokens for o in run(engine(None), work(rule, 0))]
    for info in ({}, {"max_running": 1}, {"pages": 13, "max_running": 3}):
        outputs = run(engine(SuffixProposer(VOCAB, 1, remember), **info), work(rule))
        assert [o.tokens for o in outputs] == plain
        assert sum(s.accepted for o in outputs for s in o.steps) > 20
    token = run(engine(SuffixProposer(VOCAB, 1, remember)), work("token"))
    assert [o.tokens for o in token] != plain  # so the comparison can fail


@pytest.mark.parametrize("rule", ["block", "token"])
def test_scheduling_changes_no_token(rule: str) -> None:
    alone = [engine(SuffixProposer(VOCAB, 1)).generate([p], s)[0].tokens for p, s in work(rule)]
    made = engine(SuffixProposer(VOCAB, 1), pages=13)
    seen, preempt = [], made.scheduler._preempt
    made.scheduler._preempt = lambda: seen.append(preempt()) or seen[-1]  # type: ignore[func-returns-value]
    assert [o.tokens for o in run(made, work(rule))] == alone
    assert any(s.kinds for s in seen)
    assert not made.proposer._texts
    learning = run(engine(SuffixProposer(VOCAB, 1, remember=1000), max_running=1), work(rule))
    assert [o.tokens for o in learning] != alone  # as its docstring says; and so the comparison can fail


def check_remembers_what_was_answered(made: SuffixProposer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With preemption, stop strings over a step's border, and an abort: whole outputs as handed out, each once."""
    learned: list[tuple[int, ...]] = []
    monkeypatch.setattr(_Memory, "learn", lambda self, output: learned.append(tuple(output)))
    law = scripted([1, 2, 3, 4, 2, 3, 4, 5] * 3, VOCAB, start=3)
    target = toy_engine(law, VOCAB, made, min_rows=2, pages=12)
    stops = ("bcde", "efb", "cdec", "x", "decdf")
    preempted, forget = list[int](), made.forget
    monkeypatch.setattr(made, "forget", lambda name: preempted.append(name) or forget(name))  # type: ignore[func-returns-value]
    names = [target.add([0, 5, 0], SamplingParams(max_tokens=20, k=i % 4, stop=(stops[i % 5],))) for i in range(10)]
    for _ in range(3):
        target.step()
    aborted = target.abort(names[0])
    assert aborted is not None
    assert aborted.tokens
    outputs = finished(target)
    assert len(preempted) > len(names)
    assert sorted(learned) == sorted(o.tokens for o in outputs.values())
    assert len({len(o.tokens) for o in outputs.values()}) > 2


def test_what_was_answered_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    check_remembers_what_was_answered(SuffixProposer(VOCAB, 1, 100), monkeypatch)


def check_apart(proposer: SuffixProposer) -> None:
    """What one request read or wrote is proposed in no other, at the same time or later."""
    secret: list[int] = [1, 2, 3, 4, 5]
    target = toy_engine(scripted(secret * 3, VOCAB, start=1), VOCAB, proposer)
    target.generate([[1], [*secret, 1]], SamplingParams(max_tokens=10, temperature=0))
    assert proposer.match(view([*secret, *secret, 1], name=100), 1).tokens == (2,)
    assert proposer.match(view([1, 2, 3, 4], name=101), 4) == SuffixMatch()
    assert proposer.match(view([3, 4], name=102), 4) == SuffixMatch()


def test_nothing_leaks_unless_it_is_asked_for() -> None:
    check_apart(SuffixProposer(VOCAB))
    with pytest.raises(AssertionError):
        check_apart(SuffixProposer(VOCAB, remember=100))


# planted faults


class OneText(_Automaton):
    """Outputs are joined without a border."""

    def start(self) -> None:
        pass


class NextButOne(_Automaton):
    """Off by one: the continuation behind the continuation."""

    def follow(self, state: int, length: int, k: int, shortest: int) -> SuffixMatch:
        m = super().follow(state, length, k + 1, shortest)
        return SuffixMatch(m.length, m.tokens[1:], m.counts[1:], m.shares[1:])


@pytest.mark.parametrize("fault", [OneText, NextButOne])
def test_planted_fault_in_the_index_is_seen(fault: type[_Automaton], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [[0, 1, 2, 3], [3, 1, 2, 0], [2, 2], [0, 1]]
    check_remembered(outputs, [0, 3, 2, 1], 1, 4)
    monkeypatch.setattr(suffix, "_Automaton", fault)
    with pytest.raises(AssertionError):
        check_remembered(outputs, [0, 3, 2, 1], 1, 4)


def _everything(self: _Memory, output: Text) -> None:
    """Nothing is ever dropped."""
    self.parts = self.parts or [_Automaton()]
    self.parts[0].start()
    self.parts[0].add(output)


def _newest_only(self: _Memory, output: Text) -> None:
    """Everything is dropped at once."""
    self.parts = [_Automaton()]
    self.parts[0].add(output)


@pytest.mark.parametrize("fault", [_everything, _newest_only])
def test_planted_bound_is_seen(fault: Callable[[_Memory, Text], None]) -> None:
    with pytest.raises(AssertionError):
        check_bound(fault)


class OneIndex(SuffixProposer):
    """All requests share an index."""

    shared = _Automaton()

    def _text(self, view: SequenceView) -> _Automaton:
        own = super()._text(view)
        self.shared.start()
        self.shared.add(view.tokens)
        return self.shared if own.size else own


class AlwaysRemembers(SuffixProposer):
    """The option is ignored."""

    def __init__(self, vocab: int, shortest: int = 2, remember: int = 0) -> None:
        super().__init__(vocab, shortest, 1000)


class NeverForgets(SuffixProposer):
    """A request's text stays, and is searched for the next."""

    def forget(self, request: int) -> None:
        self._memory.parts = [*self._texts.values()][:2]


@pytest.mark.parametrize("fault", [OneIndex, AlwaysRemembers, NeverForgets])
def test_planted_leak_is_seen(fault: type[SuffixProposer]) -> None:
    with pytest.raises(AssertionError):
        check_apart(fault(VOCAB))


class LearnsWhenForgotten(SuffixProposer):
    """What a preempted or aborted request has said so far is remembered."""

    def forget(self, request: int) -> None:
        if request in self._texts:
            self._memory.learn((9,))
        super().forget(request)


class LearnsPrompts(SuffixProposer):
    def observe(self, seen: Sequence[Any]) -> None:
        for one in seen:
            if one.run is not None and one.run.finish is not None:
                self._memory.learn(one.view.tokens)


class LearnsSteps(SuffixProposer):
    """Each step's tokens are remembered, also those that a stop string takes back."""

    def observe(self, seen: Sequence[Any]) -> None:
        for one in seen:
            if one.run is not None:
                self._memory.learn(one.run.tokens)


@pytest.mark.parametrize("fault", [LearnsWhenForgotten, LearnsPrompts, LearnsSteps])
def test_planted_learning_is_seen(fault: type[SuffixProposer], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_remembers_what_was_answered(fault(VOCAB, 1, 100), monkeypatch)
