"""The law of a part of the vocabulary is the dense law with the rest at minus infinity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.law import LawMaker
from draftproof.types import RequestError, SamplingParams

VOCAB = 12
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.5, top_k=3),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.2, temperature=1.5),
    SamplingParams(repetition_penalty=1.7, frequency_penalty=0.4, presence_penalty=-0.3),
    SamplingParams(logit_bias={2: 4.0, 5: -3.0}),
    SamplingParams(min_tokens=3, max_tokens=9),
]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB),
    st.sets(st.integers(0, VOCAB - 1), min_size=2),
    st.sampled_from(PARAMS),
    st.lists(st.integers(0, VOCAB - 1), max_size=4),
)
def test_it_is_the_dense_law(row: list[float], ids: set[int], params: SamplingParams, output: list[int]) -> None:
    maker = LawMaker(params, frozenset({min(ids)}), VOCAB)
    some, logits = np.array(sorted(ids)), np.array(row, dtype=np.float32)
    whole = np.full(VOCAB, -np.inf, dtype=np.float32)
    whole[some] = logits[some]
    np.testing.assert_allclose(
        maker.law(logits[some], [1, 2], output, some).dense(), maker.law(whole, [1, 2], output).dense(), atol=1e-12
    )


def test_the_rest_has_no_mass_and_nan_is_refused() -> None:
    maker, ids = LawMaker(SamplingParams(), frozenset(), VOCAB), np.array([1, 5, 9])
    law = maker.law(np.array([0.0, 1.0, 2.0], dtype=np.float32), [], [], ids)
    assert np.flatnonzero(law.dense()).tolist() == [1, 5, 9]
    with pytest.raises(RequestError, match="nan"):
        maker.law(np.array([0.0, np.nan, 2.0], dtype=np.float32), [], [], ids)
