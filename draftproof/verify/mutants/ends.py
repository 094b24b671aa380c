"""Where an output ends: stop tokens, stop strings, limits. The stop that comes first in the text wins.

At each token: a stop token ends the output before it; a stop string ends the text where it begins, and a token that
it begins within is kept; a limit ends it behind the token. No stop string begins in text of the first `min_tokens`
tokens. Knows no law, no draft and no batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from draftproof.verify.contract import Params

Cut = tuple[int, str]  # tokens of the whole output that stand, and how it ended: "" if it goes on


class Ending:
    """One request's stop rules, fed with its output a step at a time."""

    __slots__ = ("before", "ends", "limit", "params", "stops", "text", "words")

    def __init__(self, params: Params, stops: frozenset[int], words: Sequence[str], limit: int) -> None:
        self.params, self.stops, self.words, self.limit = params, stops, words, limit
        self.text = ""
        self.ends: list[int] = []  # length of the text after each token
        self.before = 0  # where text begins that can hold a stop string

    def push(self, tokens: Sequence[int]) -> Cut:
        for token in tokens:
            if self.stops_at(token):
                return len(self.ends), "stop"
            self.append(token)
            place = self.stop_place()
            if place >= 0:
                return self.cut(place)
            if len(self.ends) >= self.limit:
                return len(self.ends), "length"
        return len(self.ends), ""

    def stops_at(self, token: int) -> bool:
        return token in self.stops

    def append(self, token: int) -> None:
        self.text += self.words[token]
        self.ends.append(len(self.text))
        if len(self.ends) <= self.params.min_tokens:
            self.before = len(self.text)

    def stop_place(self) -> int:
        """Where the first stop string begins, -1 if there is none."""
        if not self.params.stop:
            return -1
        places = [self.text.find(stop, self.searched_from()) for stop in self.params.stop]
        return min((p for p in places if p >= 0), default=-1)

    def searched_from(self) -> int:
        return self.before

    def cut(self, place: int) -> Cut:
        self.text = self.text[:place]
        return self.kept(place), "stop"

    def kept(self, place: int) -> int:
        """Tokens that the text up to `place` takes."""
        n = bisect_left(self.ends, place) + 1 if place else 0
        return min(max(n, self.params.min_tokens), len(self.ends))

    def held(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        tail = self.text[self.before :]
        longest = max((len(stop) for stop in self.params.stop), default=1) - 1
        sizes = range(min(longest, len(tail)), 0, -1)
        return next((n for n in sizes if any(stop.startswith(tail[-n:]) for stop in self.params.stop)), 0)

    def released(self) -> tuple[int, int]:
        """Tokens and characters that nothing to come can take back."""
        safe = len(self.text) - self.held()
        n = bisect_left(self.ends, safe)
        if safe and n < len(self.ends) and self.ends[n] == safe:
            n += 1
        return n, self.ends[n - 1] if n else 0
