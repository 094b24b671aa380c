"""Incremental text: every token list gives the whole decoding; stop strings are found wherever pieces are cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftproof.text import StopText, TextStream

WORDS = [bytes([b]) for b in range(256)] + [
    "é".encode(),
    " 你".encode(),
    "😀".encode()[:2],
    "😀".encode()[2:],
    b" the",
    b"",
]
IDS = st.lists(st.integers(0, len(WORDS) - 1), max_size=30)


class Bytes:
    """A tokenizer of the given byte strings; the last one is a special token."""

    def __init__(self, strips_space: bool = False) -> None:
        self.strips_space = strips_space
        self.calls = 0

    def token_bytes(self, token: int) -> bytes:
        self.calls += 1
        return WORDS[token]

    def decode(self, ids: list[int]) -> str:
        text = b"".join(WORDS[i] for i in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text


@given(ids=IDS, strips=st.booleans())
@example(ids=[0xF0, 0x9F, 261, 0x98, 0x80], strips=False)
@example(ids=[0x20, 0x20, 0x41], strips=True)
@example(ids=[261, 0x20, 0x41, 0xE4], strips=True)
def test_pieces_and_flush_are_the_whole_text(ids: list[int], strips: bool) -> None:
    tokenizer = Bytes(strips)
    stream = TextStream(tokenizer)
    assert "".join(stream.push(i) for i in ids) + stream.flush() == tokenizer.decode(ids)


@given(text=st.text(max_size=20))
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    stream = TextStream(Bytes())
    pieces = [stream.push(b) for b in text.encode()]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_character_comes_out_with_its_last_token() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(b) for b in "😀!".encode()] == ["", "", "", "😀", "!"]


def test_an_incomplete_end_is_flushed_once() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(b) for b in "😀".encode()[:3]] == ["", "", ""]
    assert (stream.flush(), stream.flush()) == ("\ufffd", "")


def test_each_token_is_looked_up_once() -> None:
    tokenizer = Bytes()
    stream = TextStream(tokenizer)
    for i in range(5000):
        stream.push(0x80 if i % 2 else 261)
    assert tokenizer.calls == 5000


def _reference(stops: list[str], pieces: list[str]) -> int | None:
    """After each piece look at the whole text."""
    text = ""
    for piece in pieces:
        text += piece
        starts = [text.find(stop) for stop in stops if stop in text]
        if starts:
            return min(starts)
    return None


PIECES = st.lists(st.text("ab", max_size=3), max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)


@given(stops=STOPS, pieces=PIECES)
@example(stops=["abba"], pieces=["b", "abb", "a"])
@example(stops=["abba"], pieces=list("babba"))
def test_the_earliest_stop_is_found_across_pieces(stops: list[str], pieces: list[str]) -> None:
    finder = StopText(stops)
    found = None
    for piece in pieces:
        found, held = finder.push(piece)
        if found is not None:
            assert held == 0
            break
    assert found == _reference(stops, pieces)


@given(stops=STOPS, pieces=PIECES)
def test_held_back_is_exactly_what_may_begin_a_stop(stops: list[str], pieces: list[str]) -> None:
    finder, text = StopText(stops), ""
    for piece in pieces:
        text += piece
        found, held = finder.push(piece)
        if found is not None:
            return
        starts = (n for n in range(len(text), 0, -1) if any(s.startswith(text[-n:]) for s in stops))
        assert held == next(starts, 0)


@given(stops=STOPS, pieces=PIECES)
def test_released_text_never_reaches_into_a_stop(stops: list[str], pieces: list[str]) -> None:
    finder, length, released = StopText(stops), 0, 0
    for piece in pieces:
        length += len(piece)
        found, held = finder.push(piece)
        if found is not None:
            assert released <= found
            return
        assert length - held >= released
        released = length - held


def test_a_found_stop_stays() -> None:
    finder = StopText(["\n\n"])
    assert [finder.push(p) for p in ("a\n", "\nb", "\n\n")] == [(None, 1), (1, 0), (1, 0)]


@pytest.mark.parametrize(("stops", "want"), [(["cd", "bc"], 1), (["bcd", "c"], 1), (["x"], None), ([], None)])
def test_of_two_stops_the_earlier_start_wins(stops: list[str], want: int | None) -> None:
    assert StopText(stops).push("abcd")[0] == want
