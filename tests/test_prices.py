"""Drafts stop where they no longer pay, and stopping there changes no law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from enumerated import Case, case, distance, emitted
from heads import PROMPTS, Watching, engine
from toys import drafting, random_table

from draftproof.accept import RULES
from draftproof.draft.base import Ask, Paced
from draftproof.draft.model import ModelProposer
from draftproof.prices import Pace, Prices, confidence
from draftproof.types import Draft, SamplingParams
from draftproof.verify.enumerate import law_of

EXACT = 1e-6
CASES = [
    case(3, 3, max_tokens=3),
    case(3, 3, max_tokens=3, frequency_penalty=1.5, temperature=0.6),
    case(3, 3, max_tokens=3, stop_token_ids=(2,), top_k=2),
]
STEEP = Prices((0.0, 0.1, 0.3, 0.7), begin=0.1, each=0.05)


def test_confidence_is_the_largest_probability() -> None:
    assert confidence(np.log(np.array([0.2, 0.7, 0.1], dtype=np.float32)) + 5) == pytest.approx(0.7)


def test_without_prices_a_draft_goes_on() -> None:
    pace, doubtful = Pace(None), np.zeros(1000, dtype=np.float32)
    assert all(pace.takes(doubtful) and pace.wants_a_pass() for _ in range(50))
    assert pace.drawn == 50


def sure(share: float) -> Any:
    return np.log(np.array([share, 1 - share], dtype=np.float64))


def test_a_token_is_taken_if_all_up_to_it_are_likely_enough_to_stand() -> None:
    """Rows cost .1, .2 and .4; a pass .05, and the next token is hoped to stand with .4."""
    pace = Pace(STEEP)
    assert pace.takes(sure(0.9))
    assert pace.wants_a_pass()  # .9 x .4 > .05 + .2
    assert not pace.takes(np.zeros(5))  # .9 x .2 < .2
    pace = Pace(STEEP)
    assert not pace.takes(np.zeros(20))  # .05 < .1
    pace = Pace(STEEP)
    assert pace.takes(sure(0.6))
    assert not pace.wants_a_pass()  # .6 x .4 < .25
    assert not Pace(STEEP._replace(rows=(0.0,))).wants_a_pass()  # no room


def test_the_best_length_of_a_look_up() -> None:
    assert STEEP.looked_up([0.9, 0.8, 0.3]) == (2, pytest.approx(0.9 + 0.72 - 0.3))
    assert STEEP.looked_up([0.9, 0.8, 0.9, 0.9]) == (3, pytest.approx(0.9 + 0.72 + 0.648 - 0.7))
    assert STEEP.looked_up([0.05, 0.9]) == (0, 0.0)
    assert STEEP.looked_up([]) == (0, 0.0)


def test_what_a_drawn_draft_can_gain() -> None:
    assert STEEP.drafted(0.5) == pytest.approx(0.5 - 0.1 - 0.15)
    assert STEEP.drafted(0.9) == pytest.approx(0.9 + 0.81 + 0.729 - 0.7 - 0.25)


class Priced(ModelProposer):
    """Under the same prices in every step."""

    prices = Prices((0.0, 0.0, 0.2, 0.5))

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return super().propose([replace(ask, prices=self.prices) for ask in asks])


class Discarding(Priced):
    """Case 16: a token is drawn, found unlikely, and thrown away."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._cut(draft) for draft in ModelProposer.propose(self, asks)]

    @staticmethod
    def _cut(draft: Draft) -> Draft:
        shares = [q.prob(x) for x, q in zip(draft.tokens, draft.laws, strict=True)]
        n = next((i for i in range(1, len(shares)) if np.prod(shares[: i + 1]) < 0.3), len(shares))
        return Draft(draft.tokens[:n], draft.laws[:n])


def error(chosen: Case, rule: str, proposer: type[ModelProposer]) -> tuple[float, set[int]]:
    lengths = set[int]()

    def run(path: Any) -> Any:
        made = proposer(drafting(random_table(chosen.vocab, 2, sharpness=3.0), chosen.vocab).model, chosen.vocab)
        propose = made.propose

        def watched(asks: Sequence[Ask]) -> list[Draft]:
            drafts = propose(asks)
            lengths.update(len(d.tokens) for d in drafts)
            return drafts

        made.propose = watched  # type: ignore[method-assign]
        return emitted(chosen, rule, path, made)

    return distance(chosen, law_of(run)), lengths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chosen", CASES, ids=lambda c: str(CASES.index(c)))
def test_stopping_where_it_no_longer_pays_is_exact(chosen: Case, rule: str) -> None:
    found, lengths = error(chosen, rule, Priced)
    assert found < EXACT
    assert len(lengths) > 1  # drafts of several lengths came up


@pytest.mark.parametrize("rule", ["token", "block"])
def test_planted_stop_after_the_draw_is_seen(rule: str) -> None:
    assert error(CASES[0], rule, Discarding)[0] > 100 * EXACT


@pytest.mark.parametrize("draft", ["head", "combined"])
@pytest.mark.parametrize("rule", ["sampled", "coupled"])
def test_the_text_is_plain_decodings(draft: str, rule: str) -> None:
    made = engine(draft, k=6)
    watch = Watching(made)
    watch.inner = _Under(watch.inner, Prices((0.0, 0.0, 0.02, 0.05, 0.12, 0.3, 0.5), 0.05, 0.01))
    params = SamplingParams(seed=3, rule=rule, max_tokens=40, ignore_eos=True)
    outputs = made.generate([list(p) for p in PROMPTS], params)
    assert len({len(draft.tokens) for _, _, draft in watch.drafts}) > 2
    assert [made.generate(list(p), replace(params, k=0))[0].tokens for p in PROMPTS] == [o.tokens for o in outputs]
    made.audit()


class _Under:
    """A proposer under the same prices in every step."""

    def __init__(self, inner: Any, prices: Prices) -> None:
        self._inner, self._prices = inner, prices

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts: list[Draft] = self._inner.propose([replace(ask, prices=self._prices) for ask in asks])
        assert isinstance(self._inner, Paced)
        assert (self._inner.passes > 0) or all(q.is_point for d in drafts for q in d.laws)
        return drafts

    def observe(self, seen: Any) -> None:
        self._inner.observe(seen)

    def forget(self, request: int) -> None:
        self._inner.forget(request)
