"""The records: what SamplingParams refuses, and what a Law is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.types import Draft, Law, RequestError, SamplingParams

BAD: list[tuple[str, object]] = [
    *(("temperature", v) for v in (-0.1, math.nan, math.inf, "1", None, True)),
    *(("top_k", v) for v in (-1, 1.5, None, True, math.nan)),
    *(("top_p", v) for v in (0, -0.1, 1.01, math.nan, None, True)),
    *(("min_p", v) for v in (-0.1, 1.01, math.nan, None, False)),
    *(("repetition_penalty", v) for v in (0, -1.0, math.nan, math.inf, None)),
    *(("presence_penalty", v) for v in (math.nan, math.inf, -math.inf, "0", None)),
    *(("frequency_penalty", v) for v in (math.nan, math.inf, -math.inf, "0", None)),
    *(("logit_bias", v) for v in ({-1: 0.0}, {"a": 0.0}, {True: 0.0}, {0: math.nan}, {0: math.inf}, {0: None})),
    *(("min_tokens", v) for v in (-1, 257, 0.5, None, True)),
    *(("max_tokens", v) for v in (0, -1, 1.5, None, True)),
    *(("stop", v) for v in ("end", ("",), (1,), ("a", ""))),
    *(("stop_token_ids", v) for v in ((-1,), (1.0,), ("a",), (True,))),
    *(("seed", v) for v in (-1, 2**64, 0.5, "1", True)),
    *(("k", v) for v in (-1, 65, 1.5, True)),
    *(("logprobs", v) for v in (-1, 101, 1.5, True)),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{name}=.* is not allowed: \w+"):
        SamplingParams(**{name: value})


GOOD: list[tuple[str, object]] = [
    ("temperature", 0), ("temperature", 100.0), ("top_k", 0), ("top_p", 1), ("top_p", 1e-9), ("min_p", 0), ("min_p", 1),
    ("repetition_penalty", 0.1), ("presence_penalty", -2), ("frequency_penalty", 2.0), ("logit_bias", {5: -math.inf}),
    ("min_tokens", 256), ("max_tokens", 1), ("stop", ("a", "\n")), ("stop", ["a"]), ("stop_token_ids", (0,)),
    ("seed", 0), ("seed", 2**64 - 1), ("seed", None), ("k", 0), ("k", 64), ("k", None),
    ("logprobs", 0), ("logprobs", 100), ("logprobs", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), GOOD, ids=str)
def test_a_good_value_is_kept(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(RequestError, match=r"^min_tokens=6 .* max_tokens=5"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_defaults_share_no_mutable_state() -> None:
    with pytest.raises(TypeError):
        SamplingParams().logit_bias[0] = 1.0  # type: ignore[index]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-1.0, 0.5], []], ids=str)
def test_a_law_without_finite_positive_mass_is_refused(weights: list[float]) -> None:
    """Case 19: a NaN row ends its request with an error, and is never a law."""
    with pytest.raises(RequestError, match="finite weights with a positive sum"):
        Law(len(weights), None, np.array(weights))


def test_dense_and_sparse_laws_agree() -> None:
    sparse = Law(6, np.array([1, 2, 5]), np.array([1.0, 0.0, 3.0]))
    dense = Law(6, None, np.array([0, 2, 0, 0, 0, 6], dtype=np.float32))
    for law in (sparse, dense):
        assert [law.prob(t) for t in range(6)] == law.dense().tolist() == [0, 0.25, 0, 0, 0, 0.75]
        assert not law.is_point
    assert (repr(sparse), repr(dense)) == ("Law(vocab=6, 3 ids)", "Law(vocab=6, dense)")


def test_a_point_law_is_one_token() -> None:
    law = Law.point(4, 2)
    assert law.is_point
    assert law.dense().tolist() == [0, 0, 1, 0]
    assert Draft().tokens == Draft().laws == ()
