"""What suffix matching must find, by a search of the whole text, and the views that it is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from draftproof.draft.suffix import SuffixMatch
from draftproof.types import Finish

Text = Sequence[int]


def view(tokens: Text, name: int = 0, prompt: int = 0) -> Any:
    return SimpleNamespace(tokens=list(tokens), request=SimpleNamespace(id=name, prompt=tuple(tokens[:prompt])))


def seen(tokens: Text, finish: Finish | None, prompt: int = 0) -> Any:
    return SimpleNamespace(view=view(tokens, prompt=prompt), run=SimpleNamespace(finish=finish))


def brute_force(searched: Sequence[Text], tail: Text, k: int, shortest: int, most: int = 255) -> SuffixMatch:
    """Step by step, by looking at every place of every text. Of each continuation the first `most` places count."""
    said, tokens, counts, shares, length = list(tail), list[int](), list[int](), list[float](), 0
    while len(tokens) < k:
        for size in range(len(said), shortest - 1, -1):
            places = continuations(searched, tuple(said[len(said) - size :]))
            if places:
                break
        else:
            break
        token = max(places, key=lambda t: (min(len(places[t]), most), places[t][:most][-1]))
        length = length or size
        said.append(token)
        tokens.append(token)
        counts.append(min(len(places[token]), most))
        shares.append(counts[-1] / sum(min(len(p), most) for p in places.values()))
    return SuffixMatch(length, tuple(tokens), tuple(counts), tuple(shares))


def continuations(searched: Sequence[Text], wanted: tuple[int, ...]) -> dict[int, list[int]]:
    """Token behind `wanted` -> where it stands, texts counted through."""
    found: dict[int, list[int]] = {}
    before = 0
    for text in searched:
        for end in range(len(wanted), len(text)):
            if tuple(text[end - len(wanted) : end]) == wanted:
                found.setdefault(text[end], []).append(before + end)
        before += len(text)
    return found
