"""A prediction is followed from its start, left at a mismatch, and joined again where the output meets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from toys import random_table, scripted, toy_engine

from draftproof.draft import prediction as module
from draftproof.draft.prediction import PredictionProposer
from draftproof.types import Output, SamplingParams

VOCAB = 30
TEXT = list(range(1, 21))


def proposed(prediction: Sequence[int], output: Sequence[int], k: int = 3) -> tuple[int, ...]:
    request = SimpleNamespace(prediction=tuple(prediction), prompt=(0, 0))
    ask: Any = SimpleNamespace(k=k, view=SimpleNamespace(request=request, tokens=[0, 0, *output]))
    draft = PredictionProposer(VOCAB).propose([ask])[0]
    assert all(q.is_point and q.prob(t) == 1.0 for q, t in zip(draft.laws, draft.tokens, strict=True))
    return draft.tokens


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], (1, 2, 3)),
        ([1, 2], (3, 4, 5)),
        (TEXT[:18], (19, 20)),  # no more than there is
        (TEXT, ()),
        ([*TEXT, 9], ()),
        ([9], ()),  # one token is too little to join by
        ([1, 29], ()),
        ([1, 29, 3, 4], (5, 6, 7)),  # replaced
        ([1, 2, 29, 3, 4], (5, 6, 7)),  # inserted
        ([1, 4, 5], (6, 7, 8)),  # left out
        ([29, 19, 20], ()),  # joined at the end: nothing follows
        ([*TEXT, 5, 6], (7, 8, 9)),  # said again
    ],
)
def test_where_the_prediction_is_taken_up(output: list[int], expected: tuple[int, ...]) -> None:
    assert proposed(TEXT, output) == expected


def test_of_several_places_the_nearest_wins() -> None:
    prediction = [1, 2, 3, 9, 9, 1, 2, 4, 9, 9, 1, 2, 5]
    assert proposed(prediction, [8, 8, 8, 8, 1, 2], 1) == (4,)
    assert proposed(prediction, [8] * 9 + [1, 2], 1) == (5,)
    assert proposed(prediction, [8, 1, 2], 1) == (3,)


def test_no_prediction_is_no_draft() -> None:
    assert proposed([], []) == ()
    assert proposed([], [1, 2]) == ()


def edited() -> Output:
    """The model says the text with a word replaced and two left out."""
    said = [*TEXT[:4], 28, *TEXT[5:8], *TEXT[10:]]
    engine = toy_engine(scripted(said, VOCAB, 1), VOCAB, PredictionProposer(VOCAB), tokenizer=None)
    engine.tokenizer = SimpleNamespace(strips_space=False, token_bytes=lambda t: b"x")  # type: ignore[assignment]
    *_, event = engine.stream([0], SamplingParams(temperature=0, k=4, max_tokens=len(said)), TEXT)
    assert event.output is not None
    assert list(event.output.tokens) == said
    return event.output


def test_an_edited_text_takes_few_steps() -> None:
    """18 tokens: one step to the first edit, two until it is joined again, one up to the second edit, one more, and two
    for the rest."""
    assert [len(s.emitted) for s in edited().steps] == [5, 1, 1, 2, 1, 5, 3]


def test_a_wrong_prediction_changes_no_token() -> None:
    made = [toy_engine(random_table(5, 1), 5, PredictionProposer(5)) for _ in range(2)]
    params = SamplingParams(k=4, rule="sampled", seed=3, max_tokens=20)
    *_, one = made[0].stream([1], params, [4, 3, 2, 1, 0] * 4)
    *_, two = made[1].stream([1], params)
    assert one.output is not None
    assert two.output is not None
    assert one.output.tokens == two.output.tokens


def _never(prediction: Sequence[int], output: Sequence[int], k: int) -> Sequence[int]:
    return prediction[len(output) :][:k] if tuple(output) == tuple(prediction[: len(output)]) else ()


def _by_place(prediction: Sequence[int], output: Sequence[int], k: int) -> Sequence[int]:
    return prediction[len(output) :][:k]


def _one_late(prediction: Sequence[int], output: Sequence[int], k: int) -> Sequence[int]:
    return prediction[len(output) + 1 :][:k]


@pytest.mark.parametrize("fault", [_never, _by_place, _one_late])
def test_planted_fault_is_seen(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_expected", fault)
    with pytest.raises(AssertionError):
        test_an_edited_text_takes_few_steps()
