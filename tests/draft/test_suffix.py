"""Suffix matching against a search of the whole text, and that its size and its work are linear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_search import Text, brute_force, view
from tiny_models import write_gguf

from draftproof import ModelOptions, SamplingParams, load
from draftproof.draft import suffix
from draftproof.draft.suffix import SuffixMatch, SuffixProposer, _Automaton
from draftproof.model.checkpoint import ModelError

VOCAB = 6


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 5, 1, 2, 6, 1, 2], SuffixMatch(2, (6, 1, 2, 6), (1, 1, 1, 1), (0.5, 1, 1, 0.5))),  # of equals the last
        ([1, 2, 5, 1, 2, 5, 1, 2, 6, 9, 1, 2], SuffixMatch(2, (5, 1, 2, 6), (2, 2, 2, 1), (2 / 3, 1, 1, 0.5))),
        ([9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], SuffixMatch(3, (5, 8, 1, 2), (1, 1, 1, 1), (1, 1, 1, 1))),
        ([1, 2, 3, 4], SuffixMatch()),
        ([7, 7], SuffixMatch(1, (7, 7, 7, 7), (1, 1, 1, 1), (1, 1, 1, 1))),  # beyond the end of the text
        ([3], SuffixMatch()),
    ],
)
def test_worked_examples(tokens: list[int], expected: SuffixMatch) -> None:
    assert SuffixProposer(10, 1).match(view(tokens), 4) == expected


def check_growing(tokens: Text, pieces: Sequence[int], shortest: int, k: int, most: int = 255) -> None:
    """However the text came in, the match is that of the text alone. So is it after forget() (I8)."""
    proposer, end, turn = SuffixProposer(VOCAB, shortest), 1, 0
    while end <= len(tokens):
        expected = brute_force([tokens[:end]], tokens[:end], k, shortest, most)
        assert proposer.match(view(tokens[:end]), k) == expected
        if turn % 3 == 2:
            proposer.forget(0)
            assert proposer.match(view(tokens[:end]), k) == expected
        end, turn = end + pieces[turn % len(pieces)], turn + 1


@pytest.mark.parametrize("most", [255, 2])
@given(
    tokens=st.lists(st.integers(0, 2), min_size=20, max_size=60),
    pieces=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    shortest=st.integers(1, 3),
    k=st.integers(1, 6),
)
def test_matches_equal_a_search_of_the_whole_text(
    most: int, tokens: list[int], pieces: list[int], shortest: int, k: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "_MOST", most)
        check_growing(tokens, pieces, shortest, k, most)


def test_drafts_are_point_masses_of_at_most_k_tokens() -> None:
    proposer = SuffixProposer(10)
    asks: Any = [SimpleNamespace(k=k, view=view([1, 2, 3, 4, 1, 2], name=k)) for k in (2, 0)]
    draft, nothing = proposer.propose(asks)
    assert draft.tokens == (3, 4)
    assert [(q.is_point, q.prob(t), q.vocab) for q, t in zip(draft.laws, draft.tokens, strict=True)] == [
        (True, 1.0, 10)
    ] * 2
    assert nothing.tokens == ()


def test_requests_do_not_mix_and_forgotten_ones_start_anew() -> None:
    proposer = SuffixProposer(VOCAB, 1)
    for end in range(1, 6):  # in turn
        assert proposer.match(view([1, 5, 1, 4, 1][:end], 1), 1).tokens == ((), (), (5,), (), (4,))[end - 1]
        assert proposer.match(view([1, 3, 1, 1, 3][:end], 2), 1).tokens == ((), (), (3,), (1,), (1,))[end - 1]
    for changed in ([3, 3, 3, 3, 3, 3], [1, 5, 1, 4]):
        with pytest.raises(ValueError, match="forget"):
            proposer.match(view(changed, 1), 1)
    proposer.forget(1)
    proposer.forget(99)
    assert proposer.match(view([3, 3], 1), 1).tokens == (3,)
    assert proposer._texts.keys() == {1, 2}


@pytest.mark.parametrize(("shortest", "remember"), [(0, 0), (1, 1), (1, -5)])
def test_sizes_must_make_sense(shortest: int, remember: int) -> None:
    with pytest.raises(ValueError):
        SuffixProposer(VOCAB, shortest, remember)


# size and work


class Watched(list[int]):
    """A list that counts how often it is written to."""

    writes = 0

    def __setitem__(self, at: Any, value: Any) -> None:
        self.writes += 1
        super().__setitem__(at, value)


def hard_texts() -> Iterator[list[int]]:
    rng = np.random.default_rng(0)
    yield [0] * 400
    yield [0] + [1] * 400  # the most states
    yield [0, 1, 2] * 150
    yield from (rng.integers(0, n, size=400).tolist() for n in (2, 3, 200))


def check_size(kind: type[_Automaton]) -> None:
    """Of many texts. Of what ends at the same places there is one state: its link is shorter."""
    for text in hard_texts():
        made, tokens = kind(), 0
        for n in range(8):
            made.start()
            made.add([*text[n:], n])
            tokens += len(text) - n + 1
        assert made.size == tokens
        assert len(made._next) <= 2 * tokens
        assert sum(len(n) for n in made._next) <= 3 * tokens
        assert all(made._lengths[link] < made._lengths[s] for s, link in enumerate(made._links) if s)


def check_work(most: int) -> None:
    for text in hard_texts():
        made = _Automaton()
        made._counts = Watched(made._counts)
        made.add(text)
        assert made._counts.writes <= most * len(text)


class AlwaysNew(_Automaton):
    """A string that an earlier output holds already gets a second state."""

    def _longer(self, state: int, token: int) -> int:
        new = self._new(self._lengths[state] + 1, 0, {}, 0, 0)
        while token not in self._next[state]:
            self._next[state][token] = new
            if state == 0:
                return new
            state = self._links[state]
        self._links[new] = self._exactly(state, token)
        return new


def test_states_and_transitions_are_linear() -> None:
    check_size(_Automaton)
    with pytest.raises(AssertionError):
        check_size(AlwaysNew)


def test_work_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "_MOST", 7)
    check_work(7)
    monkeypatch.setattr(suffix, "_MOST", 10**9)
    with pytest.raises(AssertionError):  # planted: every occurrence is counted
        check_work(7)


# by name


def test_it_loads_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf")
    tiny, small = str(tmp_path / "tiny.gguf"), ModelOptions(kv_pages=8, threads=1)
    for name, settings in {"suffix": (2, 0), "suffix:3": (3, 0), "suffix:1,remember=500": (1, 500)}.items():
        made = load(tiny, name, options=small)
        proposer: Any = made.proposer
        assert (proposer._shortest, proposer._remember, made.settings["draft"]) == (*settings, name)
    output = made.generate(["hello hello hello hello"], SamplingParams(temperature=0, max_tokens=8))[0]
    plain = load(tiny, "none", options=small).generate(["hello hello hello hello"], SamplingParams(0, max_tokens=8))
    assert output.tokens == plain[0].tokens
    for name in ("suffix:0", "suffix:x", "suffix:2-4", "suffix:2,remember=", "suffix:2,remember=1", "suffix:2,keep=9"):
        with pytest.raises(ModelError, match="suffix:2"):
            load(tiny, name, options=small)


# planted faults


class NoCountForClones(_Automaton):
    def _exactly(self, state: int, token: int) -> int:
        known = len(self._next)
        found = super()._exactly(state, token)
        if found == known:
            self._counts[found] = 0
        return found


class SharedTransitions(_Automaton):
    """A clone and its origin share what comes behind them."""

    def _exactly(self, state: int, token: int) -> int:
        origin, known = self._next[state][token], len(self._next)
        found = super()._exactly(state, token)
        if found == known:
            self._next[found] = self._next[origin]
        return found


class OwnStateCounts(_Automaton):
    """An occurrence counts for the whole text only, not for its suffixes."""

    def add(self, tokens: Text) -> None:
        for token in tokens:
            known = list(self._counts)
            super().add([token])
            self._counts[: len(known)] = known


class NextButOne(_Automaton):
    """Off by one: the continuation behind the continuation."""

    def follow(self, state: int, length: int, k: int, shortest: int) -> SuffixMatch:
        m = super().follow(state, length, k + 1, shortest)
        return SuffixMatch(m.length, m.tokens[1:], m.counts[1:], m.shares[1:])


class LastPosition(_Automaton):
    """The end of the text counts as an occurrence of its own suffix: nothing comes behind it."""

    def follow(self, state: int, length: int, k: int, shortest: int) -> SuffixMatch:
        return super().follow(state, length, k, shortest) if self._next[state] else SuffixMatch()


class AnyLength(_Automaton):
    """The shortest match is not kept to."""

    def follow(self, state: int, length: int, k: int, shortest: int) -> SuffixMatch:
        return super().follow(state, length, k, 1)


class NewTextEachStep(_Automaton):
    """Matches over the border of two steps are missing."""

    def add(self, tokens: Text) -> None:
        self.start()
        super().add(tokens)


class FirstOfEquals(_Automaton):
    def _rank(self, state: int) -> tuple[int, int]:
        return self._counts[state], -self._places[state]


TEXT = [0, 1, 2, 0, 1, 1, 0, 1, 2, 2, 0, 1, 1, 2, 0, 1, 1, 0, 2, 0, 1, 2, 0, 0, 1, 0, 1, 2]
FAULTS = [
    NoCountForClones,
    SharedTransitions,
    OwnStateCounts,
    NextButOne,
    LastPosition,
    AnyLength,
    NewTextEachStep,
    FirstOfEquals,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: type[_Automaton], monkeypatch: pytest.MonkeyPatch) -> None:
    check_growing(TEXT, [1, 2, 3], 2, 4)
    monkeypatch.setattr(suffix, "_Automaton", fault)
    with pytest.raises(AssertionError):
        check_growing(TEXT, [1, 2, 3], 2, 4)
