"""I9: two ends at once, at every offset of a block, against a reference that cuts the plain greedy text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toys import Letters, toy_engine

from draftproof.draft.prediction import PredictionProposer
from draftproof.scheduler import Scheduler
from draftproof.stops import Cut, Ending
from draftproof.types import Finish, Kind, Output, SamplingParams

VOCAB, K = 20, 4
PROMPT = [19, 18, 17]
TEXT = tuple(range(15))  # abcdefghijklmno: each letter once, so that each place has its own stop
OTHER = 15  # what the model says when the text's token is masked


def table(prefix: tuple[int, ...]) -> NDArray[np.float64]:
    law = np.full(VOCAB, 0.001)
    law[OTHER], law[TEXT[min(len(prefix) - len(PROMPT), len(TEXT) - 1)]] = 0.1, 0.8
    return law / law.sum()


@dataclass(frozen=True)
class Setup:
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0, k=K, max_tokens=13))
    eos: tuple[int, ...] = ()
    context: int = 64

    def change(self, **params: Any) -> Setup:
        return replace(self, params=replace(self.params, **params))


def eos(s: Setup, at: int) -> Setup:
    return replace(s, eos=(*s.eos, TEXT[at]))


def stop_token(s: Setup, at: int) -> Setup:
    return s.change(stop_token_ids=(*s.params.stop_token_ids, TEXT[at]))


def stop_letter(s: Setup, at: int) -> Setup:
    return s.change(stop=(*s.params.stop, "abcdefghijklmno"[at]))


def stop_string(s: Setup, at: int) -> Setup:
    """Begins at the place and goes on over the borders of tokens, and of steps (case 29)."""
    return s.change(stop=(*s.params.stop, "abcdefghijklmno"[at : at + 3]))


def max_tokens(s: Setup, at: int) -> Setup:
    return s.change(max_tokens=at + 1, min_tokens=min(s.params.min_tokens, at + 1))


def min_tokens(s: Setup, at: int) -> Setup:
    return s.change(min_tokens=min(at + 1, s.params.max_tokens))


def context(s: Setup, at: int) -> Setup:
    return replace(s, context=min(s.context, len(PROMPT) + at + 1))


ENDS = [eos, stop_token, stop_letter, stop_string, max_tokens, min_tokens, context]


def reference(s: Setup) -> tuple[tuple[int, ...], str, str]:
    """Plain greedy decoding, cut by looking at everything after each token."""
    p, out = s.params, list[int]()
    stops = {*s.eos, *p.stop_token_ids}
    while True:
        law = table((*PROMPT, *out))
        if len(out) < p.min_tokens:
            law[list(stops)] = 0.0
        token = int(law.argmax())
        if token in stops:
            return tuple(out), text(out), "stop"
        out.append(token)
        places = [at for at in (text(out).find(stop, p.min_tokens) for stop in p.stop) if at >= 0]
        if places and len(out) > p.min_tokens:
            kept = out[: min(places)]  # one letter a token: no token is cut in two
            return tuple(kept), text(kept), "stop"
        if len(out) == p.max_tokens or len(PROMPT) + len(out) == s.context:
            return tuple(out), text(out), "length"


def text(tokens: Sequence[int]) -> str:
    return "".join("abcdefghijklmnopqrst"[t] for t in tokens)


def generated(s: Setup, wrong: Sequence[int] = ()) -> Output:
    """Speculative, with a prediction that is wrong at the given places."""
    prediction = [VOCAB - 1 if i in wrong else t for i, t in enumerate(TEXT)]
    engine = toy_engine(table, VOCAB, PredictionProposer(VOCAB), s.eos, Letters(), context=s.context)
    *_, last = engine.stream(PROMPT, replace(s.params, logprobs=0), prediction)
    engine.audit()
    assert engine.pool.free == engine.pool.total
    assert last.output is not None
    return last.output


def faults(s: Setup, wrong: Sequence[int] = ()) -> str | None:
    output, (tokens, cut, finish) = generated(s, wrong), reference(s)
    if (output.tokens, output.text, f"{output.finish}") != (tokens, cut, finish):
        return f"{s}: {output.tokens} {output.text!r} {output.finish}, not {tokens} {cut!r} {finish}"
    if not len(output.tokens) == len(output.kinds) == len(output.logprobs or ()):
        return f"{s}: {len(output.kinds)} kinds and {len(output.logprobs or ())} logprobs of {len(tokens)} tokens"
    counted = tuple(t for step in output.steps for t in step.emitted), sum(step.accepted for step in output.steps)
    if counted != (tokens, output.kinds.count(Kind.ACCEPTED)):
        return f"{s}: the steps count {counted}"
    return None


WRONG: list[tuple[int, ...]] = [(), (1,), (3, 4), (0, 2, 5)]


def setups(one: Any, two: Any) -> Iterator[tuple[Setup, tuple[int, ...]]]:
    for (i, a), (j, b) in product(enumerate(range(K + 2)), repeat=2):
        yield two(one(Setup(), a), b), WRONG[(i + j) % len(WRONG)]


@pytest.mark.parametrize(("one", "two"), list(combinations_with_replacement(ENDS, 2)))
def test_two_ends_at_every_offset(one: Any, two: Any) -> None:
    assert [f for s, wrong in setups(one, two) if (f := faults(s, wrong))] == []


@pytest.mark.parametrize("end", ENDS)
def test_one_end_at_every_offset_and_every_draft(end: Any) -> None:
    assert [f for at, wrong in product(range(10), WRONG) if (f := faults(end(Setup(), at), wrong))] == []


def test_the_stop_that_comes_first_in_the_text_wins() -> None:
    """Case 28 and the published vector: [10, 11, STOP, 20, 21, 22] with a cap of 5."""
    words = [10, 11, 99, 20, 21, 22]

    def law(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        return np.eye(100)[words[min(len(prefix) - 1, 5)]]

    for k in range(6):
        engine = toy_engine(law, 100, PredictionProposer(100), tokenizer=Letters("x" * 100))
        params = SamplingParams(k=k, max_tokens=5, stop_token_ids=(99,))
        *_, event = engine.stream([0], params, words)
        assert event.output is not None
        assert (event.output.tokens, event.output.finish) == ((10, 11), Finish.STOP)


def test_any_token_of_a_greedy_text_can_be_eos() -> None:
    """Case 27."""
    for at in range(len(TEXT) - 3):
        assert generated(eos(Setup(), at)).tokens == TEXT[:at]
        ignored = generated(eos(Setup(), at).change(ignore_eos=True))
        assert ignored.tokens == TEXT[:13]


@pytest.mark.parametrize("k", range(6))
def test_one_token_is_one_token(k: int) -> None:
    """Case 30."""
    output = generated(Setup().change(k=k, max_tokens=1))
    assert (output.tokens, output.finish, len(output.steps)) == (TEXT[:1], Finish.LENGTH, 1)


class Late(Ending):
    """Case 27: stop tokens are looked at in the last token of a step only."""

    def push(self, tokens: Sequence[int]) -> Cut:
        stops, self._stop_ids = self._stop_ids, frozenset()
        for token in tokens[:-1]:
            if (cut := super().push((token,))).finish:
                return cut
        self._stop_ids = stops
        return super().push(tokens[-1:])


class LengthFirst(Ending):
    """Case 28: the limit is looked at before the stop."""

    def push(self, tokens: Sequence[int]) -> Cut:
        reached = len(self._ends) + len(tokens) >= self._limit
        cut = super().push(tokens)
        return cut._replace(finish=Finish.LENGTH) if reached and cut.finish else cut


class KeepsTokens(Ending):
    """Case 31: the text is cut, the tokens are not."""

    def _cut_text(self, place: int) -> Cut:
        return super()._cut_text(place)._replace(kept=len(self._ends))


class Forgetful(Ending):
    """Case 29: a stop string is looked for in the text of one step."""

    def push(self, tokens: Sequence[int]) -> Cut:
        if self._stops is not None:
            self._stops._tail = ""
        return super().push(tokens)


class EarlyStrings(Ending):
    """Stop strings count within min_tokens too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._min = 0


class Unlimited(Ending):
    """Case 30: the limits are looked at between steps."""

    def push(self, tokens: Sequence[int]) -> Cut:
        limit, self._limit = self._limit, 1 << 30
        cut = super().push(tokens)
        self._limit = limit
        return cut if cut.finish or cut.kept < limit else self._end(Finish.LENGTH)


@pytest.mark.parametrize("fault", [Late, LengthFirst, KeepsTokens, Forgetful, EarlyStrings, Unlimited])
def test_planted_fault_is_seen(fault: type[Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.engine.Ending", fault)
    if fault is Unlimited:  # the scheduler asks for no more than can be emitted
        monkeypatch.setattr(Scheduler, "_draft_length", lambda self, s: s.request.k)
    pairs = combinations_with_replacement(ENDS, 2)
    assert any(faults(s, wrong) for one, two in pairs for s, wrong in setups(one, two))
