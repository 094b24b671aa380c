"""Suffix matching: propose what most often came behind the longest suffix of the text that stood in it before.

Goes on step by step: of text and draft together, the longest suffix behind which the text already holds a token; of
those tokens the most frequent, of equally frequent ones the one seen last. So a draft is not cut where the text ends,
as in prompt lookup, and a loop goes on. The index is a suffix automaton (Blumer et al. 1985), built online: at most
two states a token. No array library, no model, no verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.draft.base import Ask, Seen, point_draft
from draftproof.types import Draft, Finish, SequenceView

_ROOT = 0
_MOST = 255  # occurrences that are counted; bounds the work per token where a text repeats itself without end
_REACH = 64  # longest suffix that is looked up in earlier outputs


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """What suffix matching would propose, known before anything is drawn.

    length: tokens of the suffix behind which `tokens[0]` was found; 0 when nothing is proposed.
    counts[i]: how often `tokens[i]` came behind the suffix matched at step i, 255 standing for any more.
    shares[i]: counts[i] over the sum of these counts for all tokens that came there, in (0, 1].
    """

    length: int = 0
    tokens: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


class _Automaton:
    """Every substring of the texts that were added. A state stands for substrings that end at the same places.

    Per state: the tokens that came behind it, each with the state of the longer string; the longest substring's length;
    the state of the longest suffix that ends at more places; how many of these places there are (of the first _MOST),
    and the last of them. The root, the empty string, counts as full, which ends every walk along the links.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._lengths, self._links = [0], [_ROOT]
        self._counts, self._places = [_MOST], [0]
        self._whole = _ROOT  # the state of the text that is being added
        self.size, self.newest = 0, 0  # tokens so far, and the last one

    def start(self) -> None:
        """What is added from here on is another text."""
        self._whole = _ROOT

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._whole = self._longer(self._whole, token)
            self.size, self.newest = self.size + 1, token
            state = self._whole
            while self._counts[state] < _MOST:  # counts grow along the links: behind a full state all are full
                self._counts[state] += 1
                self._places[state] = self.size
                state = self._links[state]

    def _longer(self, state: int, token: int) -> int:
        """The state of the current text's longest string with `token` behind it."""
        if token in self._next[state]:
            return self._exactly(state, token)
        new = self._new(self._lengths[state] + 1, _ROOT, {}, 0, 0)
        while token not in self._next[state]:
            self._next[state][token] = new
            if state == _ROOT:
                return new
            state = self._links[state]
        self._links[new] = self._exactly(state, token)
        return new

    def _exactly(self, state: int, token: int) -> int:
        """The state whose longest string is that of `state` with `token` behind it, split off if there is none yet."""
        found = self._next[state][token]
        length = self._lengths[state] + 1
        if self._lengths[found] == length:
            return found
        follows = dict(self._next[found])
        clone = self._new(length, self._links[found], follows, self._counts[found], self._places[found])
        self._links[found] = clone
        while self._next[state].get(token) == found:
            self._next[state][token] = clone
            state = self._links[state]
        return clone

    def _new(self, length: int, link: int, follows: dict[int, int], count: int, place: int) -> int:
        self._next.append(follows)
        self._lengths.append(length)
        self._links.append(link)
        self._counts.append(count)
        self._places.append(place)
        return len(self._next) - 1

    def whole(self) -> tuple[int, int]:
        """State and length of the whole text."""
        return self._whole, self._lengths[self._whole]

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of `tokens` that is in the texts."""
        state, length = _ROOT, 0
        for token in tokens:
            while token not in self._next[state] and state != _ROOT:
                state = self._links[state]
                length = self._lengths[state]
            if token in self._next[state]:
                state, length = self._next[state][token], length + 1
        return state, length

    def follow(self, state: int, length: int, k: int, shortest: int) -> SuffixMatch:
        """At most k tokens behind the suffix of `length` tokens in `state`, while `shortest` of them match."""
        tokens, counts, shares, matched = list[int](), list[int](), list[float](), 0
        while len(tokens) < k:
            while not self._next[state] and length >= shortest:  # nothing ever came behind it
                state = self._links[state]
                length = self._lengths[state]
            if length < shortest:
                break
            follows = self._next[state]
            token = max(follows, key=lambda t: self._rank(follows[t]))
            count = self._counts[follows[token]]
            matched = matched or length
            tokens.append(token)
            counts.append(count)
            shares.append(count / sum(self._counts[s] for s in follows.values()))
            state, length = follows[token], length + 1
        return SuffixMatch(matched, tuple(tokens), tuple(counts), tuple(shares))

    def _rank(self, state: int) -> tuple[int, int]:
        return self._counts[state], self._places[state]


class _Memory:
    """The latest outputs, at most `most` tokens: two automata, of which the older is dropped when the newer is full."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self.parts: list[_Automaton] = []  # newest first

    def learn(self, output: Sequence[int]) -> None:
        kept = output[max(len(output) - self._half, 0) :]
        if not kept:
            return
        if not self.parts or self.parts[0].size + len(kept) > self._half:
            self.parts = [_Automaton(), *self.parts[:1]]
        self.parts[0].start()
        self.parts[0].add(kept)


class SuffixProposer:
    """Args: vocab of the target; the fewest tokens that must match; how many tokens of earlier outputs to remember.

    remember: 0 keeps requests apart. With more, outputs that came to their own end, of whatever user, are searched as
    well (the prompts are not), and the longest match wins, the request's own text among equals. **Whoever measures how
    fast an answer comes can then tell what others were answered**: use it only where all users may see each other's
    texts. A seeded text then depends on earlier requests under the rules whose text depends on the draft (token,
    block); its law does not. About 450 bytes a token; `clear` forgets them all.

    Raises:
        ValueError: shortest below 1, or remember neither 0 nor at least 2.
    """

    def __init__(self, vocab: int, shortest: int = 2, remember: int = 0) -> None:
        if shortest < 1:
            raise ValueError(f"the shortest match must have at least 1 token, got {shortest}")
        if remember != 0 and remember < 2:
            raise ValueError(f"remember 0 tokens (off) or at least 2, got {remember}")
        self._vocab, self._shortest, self._remember = vocab, shortest, remember
        self._texts: dict[int, _Automaton] = {}
        self._memory = _Memory(remember)

    def match(self, view: SequenceView, k: int) -> SuffixMatch:
        """What would be proposed as at most k tokens, and on what evidence.

        Raises:
            ValueError: the sequence's committed tokens changed since the last call, without forget().
        """
        if k == 0:
            return SuffixMatch()
        text = self._text(view)
        best = text.follow(*text.whole(), k, self._shortest)
        for part in self._memory.parts:
            found = part.follow(*part.find(view.tokens[-_REACH:]), k, self._shortest)
            best = found if found.length > best.length else best
        return best

    def _text(self, view: SequenceView) -> _Automaton:
        name, tokens = view.request.id, view.tokens
        if name not in self._texts:
            self._texts[name] = _Automaton()
        text = self._texts[name]
        if text.size and (len(tokens) < text.size or tokens[text.size - 1] != text.newest):
            raise ValueError("a sequence's committed tokens changed; forget() it first")
        text.add(tokens[text.size :])
        return text

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [point_draft(self.match(ask.view, ask.k).tokens, self._vocab) for ask in asks]

    def observe(self, seen: Sequence[Seen]) -> None:
        """Remember outputs that are complete; aborted and failed ones add nothing."""
        for one in seen:
            if one.run is not None and one.run.finish in (Finish.STOP, Finish.LENGTH):
                self._memory.learn(one.view.tokens[len(one.view.request.prompt) :])

    def forget(self, request: int) -> None:
        self._texts.pop(request, None)

    def clear(self) -> None:
        """Forget all remembered outputs. Running requests keep their own text."""
        self._memory = _Memory(self._remember)
