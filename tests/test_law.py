"""The eight steps from logits to a law, against a plain reference with full sorts; and state inside a block (I4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import HONEST, Tokens, World, distance

from draftproof.law import LawMaker, LawRows, log_softmax
from draftproof.types import Law, RequestError, SamplingParams
from draftproof.verify.enumerate import joint_law

NEAR = 1e-5  # float32 against float64: at thresholds this close either side may be right


class Reference(NamedTuple):
    order: list[int]  # tokens, best first
    weights: list[float]  # of the token at the same place in `order`; the best has 1
    fewest: int
    most: int  # how many survive

    def dense(self, survivors: int, vocab: int) -> np.ndarray:
        full = np.zeros(vocab)
        full[self.order[:survivors]] = self.weights[:survivors]
        return full / full.sum()


def reference(
    logits: Sequence[float], p: SamplingParams, stops: Sequence[int], prompt: Sequence[int], output: Sequence[int]
) -> Reference:
    """The steps as `law.py` states them, one token at a time, in Python floats."""
    z = processed([float(x) for x in logits], p, stops, prompt, output)
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if p.temperature == 0:
        return Reference(order[:1], [1.0], 1, 1)
    order = order[: p.top_k or None]
    weights = [math.exp((z[i] - z[order[0]]) / p.temperature) for i in order]
    few, many = (prefix(weights, p.top_p * near) for near in (1 - NEAR, 1 + NEAR)) if p.top_p < 1 else 2 * (len(z),)
    low, high = (sum(w >= min(p.min_p * near, 1) for w in weights) for near in (1 + NEAR, 1 - NEAR))
    return Reference(order, weights, min(few, low, len(order)), min(many, high, len(order)))


def processed(
    z: list[float], p: SamplingParams, stops: Sequence[int], prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    for token, bias in p.logit_bias.items():
        z[token] += bias
    for token in {*prompt, *output}:
        z[token] = z[token] / p.repetition_penalty if z[token] > 0 else z[token] * p.repetition_penalty
    for token, count in Counter(output).items():
        z[token] -= p.frequency_penalty * count + p.presence_penalty
    for token in stops:
        z[token] = -math.inf if len(output) < p.min_tokens else z[token]
    return z


def prefix(weights: list[float], top_p: float) -> int:
    """How many of the sorted weights it takes to reach top_p of the whole."""
    total, sums = math.fsum(weights), 0.0
    for n, weight in enumerate(weights, 1):
        sums += weight
        if sums >= top_p * total:
            return n
    return len(weights)


quarters = st.integers(-8, 8).map(lambda n: n / 4)  # few values, so many ties, all exact in float32
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.25, 0.7, 1.0, 2.0, 1e-20]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-9]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.25, 2.0, 0.5]),
    presence_penalty=quarters,
    frequency_penalty=quarters,
    logit_bias=st.dictionaries(st.integers(0, 1), st.one_of(quarters, st.just(-math.inf)), max_size=1),
    min_tokens=st.integers(0, 4),
)


@st.composite
def rows(draw: st.DrawFn, largest: int) -> np.ndarray:
    vocab = draw(st.integers(3, largest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = (rng.integers(-12, 12, size=vocab) / draw(st.sampled_from([1, 4]))).astype(np.float32)
    logits[3:][rng.random(vocab - 3) < draw(st.sampled_from([0.0, 0.4]))] = -np.inf
    logits.flags.writeable = False
    return logits


def check(logits: np.ndarray, p: SamplingParams, prompt: list[int], output: list[int]) -> None:
    vocab, stops = len(logits), frozenset({2})
    before, law = logits.copy(), LawMaker(p, stops, vocab).law(logits, prompt, output)
    wanted = reference(logits.tolist(), p, sorted(stops), prompt, output)
    n = vocab if law.ids is None else len(law.ids)
    assert np.array_equal(before, logits)
    assert wanted.fewest <= n <= wanted.most
    assert law.ids is None or law.ids.tolist() == sorted(wanted.order[:n])
    assert law.dense() == pytest.approx(wanted.dense(n, vocab), rel=NEAR, abs=1e-7)


tokens = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(rows(40), params, tokens, tokens)
def test_law_is_the_references(logits: np.ndarray, p: SamplingParams, prompt: list[int], output: list[int]) -> None:
    check(logits, p, prompt, output)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows(3000), params, tokens, st.integers(0, 2999), st.booleans())
def test_large_law_is_the_references(
    logits: np.ndarray, p: SamplingParams, output: list[int], top_k: int, flat: bool
) -> None:
    """Beyond the first look of top-p, with as many ties as tokens."""
    check(logits, replace(p, top_k=top_k, temperature=1e4 if flat else p.temperature), [], output)


def law(logits: Sequence[float], output: Sequence[int] = (), stops: Sequence[int] = (), **fields: object) -> Law:
    row = np.array(logits, dtype=np.float32)
    return LawMaker(SamplingParams(**fields), frozenset(stops), len(row)).law(row, (), output)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.25}, [1]),  # reached exactly by the first of equals
        ({"top_p": 0.26}, [1, 2]),  # the token that crosses is kept
        ({"top_p": 0.75}, [1, 2, 3]),
        ({"top_p": 0.76}, [0, 1, 2, 3]),
        ({"top_k": 2, "top_p": 0.5}, [1]),  # of the survivors' mass, not of the whole
        ({"min_p": 0.5}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.51}, [1, 2, 3]),
        ({"min_p": 1.0}, [1, 2, 3]),
        ({"temperature": 0}, [1]),
    ],
    ids=str,
)
def test_ties_go_to_the_lower_id(fields: dict[str, float], kept: list[int]) -> None:
    """Weights 1/2, 1, 1, 1, 1/2, of which the shares are 1/8, 1/4, 1/4, 1/4, 1/8."""
    ids = law(np.log([0.5, 1, 1, 1, 0.5]).tolist(), **fields).ids
    assert (list(range(5)) if ids is None else ids.tolist()) == kept


def test_extreme_temperatures() -> None:
    assert law([0, 3, -math.inf, 3], temperature=1e-300).dense().tolist() == [0, 0.5, 0, 0.5]
    assert law([0, 3, -math.inf, 3], temperature=1e300).dense() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("top_k", [1, 7, 1023, 1024, 1025, 2999])
def test_exactly_top_k_survive_among_equals(top_k: int) -> None:
    assert law([0.5] * 3000, top_k=top_k).ids.tolist() == list(range(top_k))


@pytest.mark.parametrize("share", [1, 1024, 1025, 2000, 2999])
def test_top_p_of_a_flat_law_keeps_its_share(share: int) -> None:
    assert law([0.5] * 3000, top_p=(share - 0.5) / 3000).ids.tolist() == list(range(share))


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    ("logits", "fields", "message"),
    [
        ([0, math.nan, 1], {}, "largest is nan"),
        ([0, math.inf, 1], {}, "largest is inf"),
        ([-math.inf] * 3, {}, "largest is -inf"),
        ([0, -math.inf, -math.inf], {"logit_bias": {0: -math.inf}}, "every token is masked"),
        ([0, -math.inf, -math.inf], {"stops": [0], "min_tokens": 1}, "every token is masked"),
        ([0, 1, 2], {"logit_bias": {0: 1e39}}, "too large for float32"),
        ([0, 1, 2], {"frequency_penalty": -1e39, "output": [1]}, "too large for float32"),
        ([0, 1, 2], {"repetition_penalty": 1e-60, "output": [1]}, "too large for float32"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_law_is_a_clear_error(temperature: float, logits: list[float], fields: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        law(logits, temperature=temperature, **fields)


@pytest.mark.parametrize("fields", [{"logit_bias": {3: 1.0}}, {"stop_token_ids": (0, 3)}], ids=str)
def test_a_token_outside_the_vocabulary_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=rf"{next(iter(fields))} names token 3, .* 3 tokens"):
        LawMaker(SamplingParams(**fields), frozenset(), 3)


def test_log_softmax_is_of_the_models_own_logits() -> None:
    assert np.exp(log_softmax(np.array([0, math.log(3), -math.inf], dtype=np.float32))) == pytest.approx(
        [1 / 4, 3 / 4, 0]
    )


# --- inside a block (I4) --------------------------------------------------------------------------------------------

STATEFUL = SamplingParams(frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.5, min_tokens=2)
STOPS = frozenset({1})


def logits_at(at: Tokens) -> np.ndarray:
    return np.random.default_rng([13, len(at), *at]).normal(size=3).astype(np.float32)


class Frozen(LawRows):
    """Case 20: the history of the step's beginning at every position."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return self._maker.law(self._logits[i], self._prompt, self._output)


class AllCounted(LawRows):
    """Case 21: every draft token counts, also those that come later and may be rejected."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return self._maker.law(self._logits[i], self._prompt, self._output + self._draft)


def joint_error(rows: type[LawRows], min_tokens: int = STATEFUL.min_tokens, length: int = 3) -> float:
    """Of decoding with penalties, from the laws of the reference. float32 against float64 leaves 1e-7."""
    world, maker = World(3), LawMaker(replace(STATEFUL, min_tokens=min_tokens), STOPS, 3)

    def target(at: Tokens) -> Law:
        wanted = reference(logits_at(at).tolist(), STATEFUL, sorted(STOPS), [0], at)
        return Law(3, None, wanted.dense(3, 3))

    world._pair = lambda at: (target(at), Law(3, None, np.array([0.4, 0.3, 0.3])))

    def laws(world: World, at: Tokens, draft: Tokens) -> LawRows:
        return rows(maker, np.stack([logits_at(at + draft[:i]) for i in range(len(draft) + 1)]), [0], at, draft)

    decoder = replace(HONEST["token"], rows=laws)
    return distance(joint_law(decoder.step(world, 2), length), world.target(length))


def test_penalties_and_min_tokens_advance_inside_the_block() -> None:
    assert joint_error(LawRows) < 1e-6


FAULTS = {"20 frozen": (Frozen, 2), "21 all drafts counted": (AllCounted, 2)}
FAULTS |= {"min_tokens one late": (LawRows, 3), "min_tokens one early": (LawRows, 1)}


@pytest.mark.parametrize("fault", FAULTS)
def test_stale_state_is_caught(fault: str) -> None:
    assert joint_error(*FAULTS[fault]) > 1e-3


def test_frozen_penalties_are_invisible_in_the_first_token() -> None:
    assert joint_error(Frozen, length=1) < 1e-6


def test_rows_are_made_when_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    honest = LawMaker.law

    def law(self: LawMaker, logits: np.ndarray, prompt: Sequence[int], output: Sequence[int]) -> Law:
        made.append(tuple(output))
        return honest(self, logits, prompt, output)

    monkeypatch.setattr(LawMaker, "law", law)
    rows = LawRows(LawMaker(STATEFUL, STOPS, 3), np.zeros((4, 3), dtype=np.float32), [0], [2], (0, 1, 2))
    assert len(rows) == 4
    assert made == []
    assert rows[2] is rows[2]
    assert made == [(2, 0, 1)]
    assert rows[0] is rows[0]
    assert made == [(2, 0, 1), (2,)]
    with pytest.raises(IndexError):
        rows[4]
