"""The law of a part of the vocabulary is the dense law with the rest at minus infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.law import LawMaker
from draftproof.types import Law, RequestError, SamplingParams

VOCAB = 12
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 3, 9, 12, 40]),  # more than there are ids, too
    top_p=st.sampled_from([1.0, 0.7, 0.2]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.3]),
    logit_bias=st.sampled_from([{}, {2: 4.0, 5: -3.0}, {7: -np.inf, 0: 2.0}]),
    min_tokens=st.sampled_from([0, 3]),
    max_tokens=st.just(9),
)
ROWS = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB)


def stated(maker: LawMaker, logits: np.ndarray, output: list[int], ids: np.ndarray | None) -> np.ndarray | str:
    try:
        return maker.law(logits, [1, 2], output, ids).dense()
    except RequestError as error:
        return str(error)


def check(row: list[float], ids: set[int], params: SamplingParams, output: list[int]) -> None:
    maker = LawMaker(params, frozenset({min(ids)}), VOCAB)
    some, logits = np.array(sorted(ids)), np.array(row, dtype=np.float32)
    whole = np.full(VOCAB, -np.inf, dtype=np.float32)
    whole[some] = logits[some]
    right = stated(maker, whole, output, None)
    found = stated(maker, logits[some], output, some)
    if isinstance(right, str) or isinstance(found, str):
        assert found == right
    else:
        np.testing.assert_allclose(found, right, atol=1e-12)


@settings(max_examples=300)
@given(ROWS, st.sets(st.integers(0, VOCAB - 1), min_size=1), PARAMS, st.lists(st.integers(0, VOCAB - 1), max_size=4))
def test_it_is_the_dense_law(row: list[float], ids: set[int], params: SamplingParams, output: list[int]) -> None:
    check(row, ids, params, output)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 11, 12, 13])
def test_top_k_may_be_more_than_there_are(top_k: int) -> None:
    check([float(i) for i in range(VOCAB)], {1, 5, 9}, SamplingParams(top_k=top_k), [])


ALONE: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"min_tokens": 3}, {"logit_bias": {9: -np.inf, 5: 2.0}}, {"repetition_penalty": 1.7},
    {"frequency_penalty": 0.4}, {"presence_penalty": -0.3}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("one", ALONE, ids=lambda one: next(iter(one)))
@pytest.mark.parametrize("output", [[], [5, 5, 9, 1]], ids=["early", "late"])
def test_each_parameter_alone(one: dict[str, Any], output: list[int]) -> None:
    """So that the short way, where nothing but filters applies, is not taken for too much. Token 1 is a stop token."""
    check([float(i % 5) for i in range(VOCAB)], {1, 5, 9}, SamplingParams(max_tokens=9, **one), output)


def positions(self: LawMaker, ids: np.ndarray, *more: Any) -> Law:
    """Places among the ids in place of the ids."""
    law = honest(self, ids, *more)
    return Law(VOCAB, np.arange(len(law.weights)), law.weights)


def short(self: LawMaker, ids: np.ndarray, logits: np.ndarray, *more: Any) -> Law:
    return honest(self, ids[:-1], logits[:-1], *more)


honest = LawMaker._law_of


@pytest.mark.parametrize("fault", [positions, short])
def test_planted_faults_are_seen(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LawMaker, "_law_of", fault)
    with pytest.raises(AssertionError):
        check([float(i) for i in range(VOCAB)], {1, 5, 9}, SamplingParams(), [])


def test_the_rest_has_no_mass_and_nan_is_refused() -> None:
    maker, ids = LawMaker(SamplingParams(), frozenset(), VOCAB), np.array([1, 5, 9])
    law = maker.law(np.array([0.0, 1.0, 2.0], dtype=np.float32), [], [], ids)
    assert np.flatnonzero(law.dense()).tolist() == [1, 5, 9]
    with pytest.raises(RequestError, match="nan"):
        maker.law(np.array([0.0, np.nan, 2.0], dtype=np.float32), [], [], ids)
