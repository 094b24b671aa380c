"""Prompt lookup: which match wins, and that the growing index finds what a search of the whole text finds."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.draft import ngram
from draftproof.draft.ngram import NgramProposer, _Index

VOCAB = 10


def ask(tokens: Sequence[int], k: int = 4, name: int = 0) -> Any:
    return SimpleNamespace(k=k, view=SimpleNamespace(tokens=list(tokens), request=SimpleNamespace(id=name)))


def proposed(tokens: Sequence[int], k: int = 4, shortest: int = 1, longest: int = 3) -> tuple[int, ...]:
    return NgramProposer(VOCAB, shortest, longest).propose([ask(tokens, k)])[0].tokens


def brute_force(tokens: Sequence[int], k: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Longest suffix first; its most recent earlier place that something follows."""
    for size in range(longest, shortest - 1, -1):
        tail = tuple(tokens[len(tokens) - size :])
        for end in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tuple(tokens[end - size : end]) == tail:
                return tuple(tokens[end : end + k])
    return ()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 5, 1, 2, 6, 1, 2], (6, 1, 2)),  # the most recent of two
        ([9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], (5, 8, 1, 2)),  # the longest before the most recent
        ([1, 2, 3, 4], ()),
        ([7, 7], (7,)),  # the match may touch the suffix
        ([7, 7, 7], (7,)),  # and overlap it
        ([3], ()),
        ([1, 2, 3, 1], (2, 3, 1)),  # no more than there is
    ],
)
def test_which_match_wins(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert proposed(tokens) == expected


def test_suffixes_shorter_than_asked_for_do_not_count() -> None:
    assert proposed([1, 2, 3, 1], shortest=2) == ()
    assert proposed([1, 2, 3, 1, 2], shortest=2) == (3, 1, 2)


def test_no_more_than_k_and_each_a_point_mass() -> None:
    draft = NgramProposer(VOCAB, 1, 3).propose([ask([1, 2, 3, 4, 1], k=2)])[0]
    assert draft.tokens == (2, 3)
    assert [(q.is_point, q.prob(t), q.vocab) for q, t in zip(draft.laws, draft.tokens, strict=True)] == [
        (True, 1.0, 10)
    ] * 2
    assert NgramProposer(VOCAB, 1, 3).propose([ask([1, 1, 1], k=0)])[0].tokens == ()


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    pieces=st.lists(st.integers(1, 7), min_size=1),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3)),
    k=st.integers(1, 6),
)
def test_the_growing_index_equals_a_search_of_the_whole_text(
    tokens: list[int], pieces: list[int], sizes: tuple[int, int], k: int
) -> None:
    shortest, longest = sizes[0], sizes[0] + sizes[1]
    proposer = NgramProposer(VOCAB, shortest, longest)
    end, turn = 1, 0
    while end <= len(tokens):
        found = proposer.propose([ask(tokens[:end], k)])[0].tokens
        assert found == brute_force(tokens[:end], k, shortest, longest)
        end, turn = end + pieces[turn % len(pieces)], turn + 1


def test_sequences_do_not_mix_and_forgotten_ones_start_anew() -> None:
    proposer = NgramProposer(VOCAB, 1, 3)
    one, two = proposer.propose([ask([1, 5, 1], name=1), ask([2, 6, 2], name=2)])
    assert (one.tokens, two.tokens) == ((5, 1), (6, 2))
    with pytest.raises(ValueError, match="forget"):
        proposer.propose([ask([3, 3, 3, 3], name=1)])
    proposer.forget(1)
    proposer.forget(99)
    assert proposer.propose([ask([3, 3, 3, 3], name=1)])[0].tokens == (3,)
    assert proposer._indexes.keys() == {1, 2}


def test_sizes_must_make_sense() -> None:
    for shortest, longest in ((0, 3), (3, 2)):
        with pytest.raises(ValueError, match="1 <= shortest <= longest"):
            NgramProposer(VOCAB, shortest, longest)


class First(_Index):
    """The first occurrence wins."""

    def update(self, tokens: Sequence[int]) -> None:
        known = dict(self._ends)
        super().update(tokens)
        self._ends |= known


class ShortestFirst(_Index):
    def __init__(self, shortest: int, longest: int) -> None:
        super().__init__(shortest, longest)
        self._sizes = range(shortest, longest + 1)


class Unfinished(_Index):
    """Every new piece starts its own index: n-grams over the border are missing."""

    def update(self, tokens: Sequence[int]) -> None:
        done = len(self._tokens)
        self._tokens = list(tokens)
        for end in range(done + 1, len(tokens)):
            for size in self._sizes:
                if size <= end - done:
                    self._ends[tuple(tokens[end - size : end])] = end


@pytest.mark.parametrize("fault", [First, ShortestFirst, Unfinished])
def test_planted_fault_is_seen(fault: type[_Index], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_Index", fault)
    text = [1, 2, 5, 1, 2, 6, 9, 1, 2, 5, 1, 2, 6, 1, 2, 5, 9, 1, 2]
    proposer, ends = NgramProposer(VOCAB, 1, 3), range(1, len(text) + 1)
    found = [proposer.propose([ask(text[:end])])[0].tokens for end in ends]
    assert found != [brute_force(text[:end], 4, 1, 3) for end in ends]
