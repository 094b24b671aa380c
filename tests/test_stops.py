"""One request's stop rules, fed in any pieces, against a reference that looks at the whole text after each token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import Words

from draftproof.stops import Cut, Ending
from draftproof.types import Finish, Request, SamplingParams

# letters, a word, a special token without text, and the bytes of characters of two and four bytes
WORDS = Words([b"a", b"b", b"ab", b" c", b"", *(bytes([b]) for b in "é😀".encode()), b""])
STOP_ID = len(WORDS.words) - 1
TOKENS = st.lists(st.integers(0, STOP_ID), max_size=24)
STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "bb c", "aab", "é", "é😀", "😀a", "c", "\ufffd"]), max_size=3)


def request(stop: Sequence[str] = (), low: int = 0, high: int = 16, ids: Sequence[int] = (STOP_ID,)) -> Request:
    params = SamplingParams(stop=tuple(stop), min_tokens=low, max_tokens=high)
    return Request(0, (0, 0), params, 0, 4, frozenset(ids))


def pushed(ending: Ending, tokens: Sequence[int], sizes: Sequence[int]) -> Cut:
    """Push in steps of the given sizes, as the engine does."""
    cut, at, step = Cut(0, None), 0, 0
    while at < len(tokens) and cut.finish is None:
        size = sizes[step % len(sizes)]
        cut = ending.push(tokens[at : at + size])
        at, step = at + size, step + 1
    return cut


def reference(r: Request, tokens: Sequence[int], context: int) -> tuple[Cut, str]:
    """Decode everything after each token. A stop string may not begin in the text of the first min_tokens tokens."""
    p, out, before = r.params, list[int](), 0
    for token in tokens:
        last = token in r.stop_ids
        out += [] if last else [token]
        end = last or len(out) >= min(p.max_tokens, context - len(r.prompt))
        before = len(so_far(out)) if len(out) <= p.min_tokens else before
        for text in (so_far(out), WORDS.decode(out)) if end else (so_far(out),):  # at the end with what is incomplete
            found = [at for at in (text.find(s, before) for s in p.stop) if at >= 0]
            if found and len(out) >= p.min_tokens:
                place = min(found)
                kept = next((n for n in range(len(out)) if len(so_far(out[:n])) >= place), len(out))
                return Cut(max(kept, p.min_tokens), Finish.STOP), text[:place]
        if end:
            return Cut(len(out), Finish.STOP if last else Finish.LENGTH), WORDS.decode(out)
    return Cut(len(out), None), so_far(out)


def so_far(tokens: Sequence[int]) -> str:
    """Without the beginning of a character that is not complete yet."""
    data = b"".join(WORDS.words[t] for t in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@settings(deadline=None)
@given(tokens=TOKENS, stop=STOPS, sizes=st.lists(st.integers(1, 6), min_size=1), low=st.integers(0, 6))
@example(tokens=[0, 5, 6, 1], stop=["é"], sizes=[4], low=2)
@example(tokens=[4, 0, 1], stop=["a"], sizes=[3], low=1)
@example(tokens=[0, 1, 0, 0, 1], stop=["ba", "aab"], sizes=[2], low=0)
def test_steps_of_any_size_end_alike(tokens: list[int], stop: list[str], sizes: list[int], low: int) -> None:
    one, many = Ending(request(stop, low), WORDS, 64), Ending(request(stop, low), WORDS, 64)
    assert pushed(one, tokens, [1]) == pushed(many, tokens, sizes)
    assert one.text == many.text


@settings(deadline=None)
@given(tokens=TOKENS, stop=STOPS, low=st.integers(0, 6), context=st.integers(3, 20))
@example(tokens=[0, 5, 6, 1], stop=["é"], low=2, context=20)
@example(tokens=[0, 4, 1, 1], stop=["b"], low=2, context=20)
@example(tokens=[0, 5], stop=["\ufffd"], low=0, context=4)
@example(tokens=[0, 5, STOP_ID], stop=["\ufffd"], low=0, context=20)
@example(tokens=[5, 5, 0], stop=["\ufffda"], low=1, context=20)
def test_ends_as_the_reference_does(tokens: list[int], stop: list[str], low: int, context: int) -> None:
    r = request(stop, low)
    ending = Ending(r, WORDS, context)
    cut = pushed(ending, tokens, [1])
    expected, text = reference(r, tokens, context)
    assert cut == expected
    assert ending.text == text


@settings(deadline=None)
@given(tokens=TOKENS, stop=STOPS, sizes=st.lists(st.integers(1, 6), min_size=1), low=st.integers(0, 6))
@example(tokens=[0, 5, 6, 0], stop=["é"], sizes=[1], low=0)
@example(tokens=[0, 1, 1, 0, 1], stop=["bb c"], sizes=[2], low=0)
def test_what_is_released_is_never_taken_back(tokens: list[int], stop: list[str], sizes: list[int], low: int) -> None:
    ending = Ending(request(stop, low), WORDS, 64)
    at, step, released, shown = 0, 0, 0, ""
    while at < len(tokens):
        size = sizes[step % len(sizes)]
        cut = ending.push(tokens[at : at + size])
        assert cut.kept >= released
        assert ending.text.startswith(shown)
        if cut.finish is not None:
            return
        assert ending.released() >= released
        released = ending.released()
        shown = ending.text[: ending.end(released)]
        at, step = at + size, step + 1


def test_without_stop_strings_all_is_released_at_once() -> None:
    ending = Ending(request(), WORDS, 64)
    ending.push([0, 4, 5])
    assert ending.released() == 3


def test_what_may_begin_a_stop_string_waits() -> None:
    ending = Ending(request(["bb c"]), WORDS, 64)
    assert [(ending.push([t]), ending.released())[1] for t in (0, 1, 1, 0, 1)] == [1, 1, 1, 4, 4]
    ending.close()
    assert ending.text == "abbab"


@pytest.mark.parametrize(
    ("tokens", "stop", "kept", "text"),
    [
        ([0, 2, 0], ["ba"], 2, "aa"),  # the string begins inside a token: the token stays, its text is cut
        ([0, 2, 0], ["b"], 2, "aa"),
        ([2, 0], ["ab"], 0, ""),
        ([0, 1, 2], ["bab", "ab"], 0, ""),  # the one that is complete first
        ([4, 0, 1], ["b"], 2, "a"),
        ([0, 5, 6, 0], ["é"], 1, "a"),  # bytes of the stop string's own character go with it
    ],
)
def test_where_a_stop_string_cuts(tokens: list[int], stop: list[str], kept: int, text: str) -> None:
    ending = Ending(request(stop), WORDS, 64)
    assert ending.push(tokens) == (kept, Finish.STOP)
    assert ending.text == text


def test_min_tokens_are_kept_even_without_text() -> None:
    """The first byte of a character is token number one; the stop string is that character."""
    ending = Ending(request(["é"], low=1), WORDS, 64)
    assert ending.push([5, 6]) == (1, Finish.STOP)
    assert ending.text == ""


def test_a_stop_token_counts_whatever_min_tokens_is() -> None:
    """The law gives it no mass before; if it comes all the same, it ends the output."""
    assert Ending(request(low=3), WORDS, 64).push([0, STOP_ID]) == (1, Finish.STOP)


def test_an_incomplete_character_at_the_end_is_shown_once() -> None:
    ending = Ending(request(high=2), WORDS, 64)
    assert ending.push([0, 5]) == (2, Finish.LENGTH)
    assert ending.text == "a\ufffd"
