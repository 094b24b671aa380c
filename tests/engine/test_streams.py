"""I10: what streams say together is what generate returns; tokens, kinds, logprobs and text belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from toys import Words, drafting, random_table, toy_engine

from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine, Event
from draftproof.stops import Ending
from draftproof.types import Finish, Output, SamplingParams

# A token without text, and the bytes of "é", "你" and "😀": most characters need several tokens, many stay incomplete.
WORDS = Words([b"a", b"b", b"ab", b"", *(bytes([b]) for b in "é你😀".encode()), " 你".encode()])
VOCAB = len(WORDS.words)
STOPS = ["ab", "ba", "aab", "é", "你a", "😀", "b", "a你", "\ufffd", "\ufffda"]


def table(prefix: tuple[int, ...]) -> np.ndarray:
    """Mostly goes on with a character that has begun."""
    law = random_table(VOCAB, 3)(prefix).copy()
    if prefix and 4 <= prefix[-1] < VOCAB - 2:
        law[prefix[-1] + 1] += 4.0
    return law / law.sum()


def engine(**info: int) -> Engine:
    return toy_engine(table, VOCAB, drafting(random_table(VOCAB, 2), VOCAB), tokenizer=WORDS, **info)


def requests(seed: int, count: int) -> list[tuple[list[int], SamplingParams]]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        params = SamplingParams(
            k=int(rng.integers(6)),
            seed=i,
            max_tokens=int(rng.integers(1, 24)),
            stop=tuple(rng.choice(STOPS, size=rng.integers(0, 4), replace=False).tolist()),
            stop_token_ids=(3,) if rng.random() < 0.3 else (),
            min_tokens=int(rng.integers(0, 2)),
            rule=["token", "block", "sampled", "coupled"][i % 4],
            logprobs=2,
        )
        made.append((rng.integers(VOCAB, size=3).tolist(), params))
    return made


def joined(events: Sequence[Event]) -> tuple[Any, ...]:
    output = events[-1].output
    assert output is not None
    assert all(e.output is None for e in events[:-1])
    parts = [sum((getattr(e, name) for e in events), ()) for name in ("tokens", "kinds", "logprobs")]
    return (*parts, "".join(e.text for e in events), output.finish)


def parts(output: Output) -> tuple[Any, ...]:
    return output.tokens, output.kinds, output.logprobs, output.text, output.finish


def faults(seed: int, count: int = 60) -> str | None:
    for prompt, params in requests(seed, count):
        events = list(engine().stream(prompt, params))
        output = engine().generate([prompt], params)[0]
        if joined(events) != parts(output):
            return f"{params}: streamed {joined(events)}, generated {parts(output)}"
        if any(len(e.pieces) != len(e.tokens) or not e.text.startswith("".join(e.pieces)) for e in events):
            return f"{params}: pieces {[e.pieces for e in events]}"
        if output.finish is Finish.LENGTH and output.text != WORDS.decode(output.tokens):
            return f"{params}: {output.text!r} is not {WORDS.decode(output.tokens)!r}"
        if not WORDS.decode(output.tokens).startswith(output.text.rstrip("\ufffd")):
            return f"{params}: {output.text!r} does not begin {WORDS.decode(output.tokens)!r}"
        if any(stop in output.text[: -len(stop)] for stop in params.stop) and not params.min_tokens:
            return f"{params}: {output.text!r} holds a stop string"
    return None


@pytest.mark.parametrize("seed", range(4))
def test_streamed_is_generated(seed: int) -> None:
    """Case 42, and stop strings that are held back."""
    assert faults(seed) is None


def test_texts_are_cut_within_characters() -> None:
    """The toy meets what it is made for: characters over several steps, incomplete ends, stops inside a step."""
    outputs = [engine().generate([p], s)[0] for p, s in requests(0, 60)]
    assert sum("\ufffd" in o.text for o in outputs) > 5
    assert sum("😀" in o.text or "你" in o.text for o in outputs) > 5
    assert sum(o.finish is Finish.STOP for o in outputs) > 10


def test_logprobs_are_those_of_the_models_own_law() -> None:
    """No penalty, no temperature, no filter; for every emitted token, whatever it was accepted by."""
    params = SamplingParams(
        k=4, seed=1, max_tokens=20, temperature=0.7, top_k=5, frequency_penalty=0.4, logprobs=3, min_tokens=5
    )
    output = engine().generate([[1, 2]], params)[0]
    assert len(output.tokens) == len(output.kinds) == len(output.logprobs or ()) == 20
    for n, logprob in enumerate(output.logprobs or ()):
        expected = np.log(table((1, 2, *output.tokens[:n])))
        assert logprob.token == output.tokens[n]
        assert logprob.logprob == pytest.approx(expected[logprob.token], abs=1e-5)
        best = np.argsort(-expected, kind="stable")[:3]
        assert [t for t, _ in logprob.top] == best.tolist()
        assert [p for _, p in logprob.top] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_logprobs_only_if_asked_for() -> None:
    none, some = engine().generate([[1], [1]], [SamplingParams(max_tokens=3, logprobs=n) for n in (None, 0)])
    assert none.logprobs is None
    assert [p.top for p in some.logprobs or ()] == [(), (), ()]


def test_streams_side_by_side_lose_nothing() -> None:
    """Whoever steps: the events of other streams wait for them, and generate disturbs none."""
    work = requests(5, 6)
    alone = [parts(engine().generate([p], s)[0]) for p, s in work]
    made = engine()
    streams = [made.stream(p, s) for p, s in work]
    seen: list[list[Event]] = [[] for _ in work]
    rng = np.random.default_rng(0)
    while any(not e or e[-1].output is None for e in seen):
        i = int(rng.integers(len(work)))
        seen[i].extend(e for e in [next(streams[i], None)] if e is not None)
        if rng.random() < 0.2:
            assert parts(made.generate([work[1][0]], work[1][1])[0]) == alone[1]
    assert [joined(e) for e in seen] == alone
    assert all(next(s, None) is None for s in streams)
    assert not made._mail
    assert made.pool.free == made.pool.total


def test_a_stream_that_is_aborted_ends_with_its_output() -> None:
    made = engine()
    stream = made.stream([1, 2], SamplingParams(max_tokens=30, k=0, seed=1))
    first = next(stream)
    output = made.abort(first.request)
    last = list(stream)[-1]
    assert last.output is output
    assert output is not None
    assert output.finish is Finish.ABORT
    assert output.text == WORDS.decode(output.tokens)


def test_an_output_that_ends_in_an_error_has_the_text_of_its_tokens() -> None:
    def law(prefix: tuple[int, ...]) -> np.ndarray:
        return np.eye(VOCAB)[[0, 4][len(prefix) - 1]] if len(prefix) < 3 else np.zeros(VOCAB)

    events = list(toy_engine(law, VOCAB, tokenizer=WORDS).stream([1]))
    output = events[-1].output
    assert output is not None
    assert (output.tokens, output.text, output.finish) == ((0, 4), "a\ufffd", Finish.ERROR)
    assert "".join(e.text for e in events) == output.text


def test_what_is_held_back_comes_at_the_end() -> None:
    made = toy_engine(lambda prefix: np.eye(3)[[0, 1, 1][len(prefix) % 3]], 3, NgramProposer(3))
    events = list(made.stream([0, 1, 1], SamplingParams(k=0, max_tokens=5, stop=("bba" * 3,))))
    assert "".join(e.text for e in events) == "abbab"
    assert [len(e.tokens) for e in events] == [1, 0, 0, 0, 4]


class Impatient(Ending):
    """Everything is handed out at once."""

    def released(self) -> int:
        return len(self._ends)


class LastOnly(Ending):
    """Case 42: of a step with several tokens only the last one's text is shown."""

    def end(self, tokens: int) -> int:
        return (
            super().end(tokens) if tokens < len(self._ends) else max(super().end(tokens) - 1, super().end(tokens - 1))
        )


class ByToken(Ending):
    """Case 42: each token is decoded alone."""

    def _append(self, piece: str) -> int | None:
        if len(self._ends) and not piece:
            piece = "\ufffd"
        return super()._append(piece)


@pytest.mark.parametrize("fault", [Impatient, LastOnly, ByToken])
def test_planted_fault_is_seen(fault: type[Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.engine.Ending", fault)
    assert faults(0) is not None
