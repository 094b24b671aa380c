"""The proposer to copy: exact, and accepted as often as its stated law says (I2, I3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from toys import toy_engine

from draftproof.draft.base import Ask
from draftproof.draft.skeleton import SkeletonProposer
from draftproof.types import Draft, Kind, Law, SamplingParams

VOCAB, SHARE = 4, 0.6
P = np.array([0.4, 0.3, 0.2, 0.1])


def stated(last: int) -> np.ndarray:
    """The law that the docstring of the skeleton promises: extra mass on the last token."""
    law = np.full(VOCAB, (1 - SHARE) / VOCAB)
    law[last] += SHARE
    return law


def acceptance(proposer: SkeletonProposer) -> tuple[float, float, float]:
    """(measured, expected, standard error) of the share of accepted tokens at k = 1; expected is mean sum min(p, q)."""
    engine = toy_engine(lambda prefix: P, VOCAB, proposer, context=110, pages=2000)
    params = [SamplingParams(k=1, rule="token", seed=n, max_tokens=100) for n in range(60)]
    outputs = engine.generate([[n % VOCAB] for n in range(60)], params)
    steps = [s for o in outputs for s in o.steps if s.proposed]
    texts = {o.request: (*o.prompt, *o.tokens) for o in outputs}
    chances = [np.minimum(P, stated(texts[s.request][s.origin - 1])).sum() for s in steps]
    return (
        sum(s.accepted for s in steps) / len(steps),
        float(np.mean(chances)),
        math.sqrt(sum(c * (1 - c) for c in chances)) / len(steps),
    )


def test_acceptance_is_that_of_the_stated_law() -> None:
    """Given what came before, each step is a trial with its own chance. 5.5 standard errors: a false alarm of 4e-8; a
    shift of 0.06 (7 of them) is seen with probability above 0.9."""
    measured, expected, error = acceptance(SkeletonProposer(VOCAB, SHARE))
    assert error < 0.009
    assert abs(measured - expected) < 5.5 * error


def test_a_draft_is_k_tokens_with_the_laws_they_came_from() -> None:
    engine = toy_engine(lambda prefix: P, VOCAB, SkeletonProposer(VOCAB, SHARE))
    seen: list[tuple[Sequence[Ask], list[Draft]]] = []
    propose = engine.proposer.propose
    engine.proposer.propose = lambda asks: seen.append((asks, propose(asks))) or seen[-1][1]  # type: ignore[func-returns-value, method-assign]
    output = engine.generate([[2]], SamplingParams(k=3, max_tokens=12, seed=1))[0]
    assert len(output.tokens) == len(output.kinds) == 12
    assert Kind.ACCEPTED in output.kinds
    origins = [s.origin for s in output.steps]
    for origin, (asks, (draft,)) in zip(origins, seen, strict=False):
        assert len(draft.tokens) == len(draft.laws) == asks[0].k
        text = [*output.prompt, *output.tokens][:origin]
        for token, law in zip(draft.tokens, draft.laws, strict=True):
            assert law.dense() == pytest.approx(stated(text[-1]))
            text.append(token)


class Confident(SkeletonProposer):
    """Draws from a law that is sharper than the one it states."""

    def _one(self, ask: Any) -> Draft:
        draft = super()._one(ask)
        return Draft((ask.view.tokens[-1],), draft.laws[:1])


class Shy(SkeletonProposer):
    """Repeats less often than its docstring says, and states so truthfully: exact, but another proposer."""

    def _next(self, tokens: Sequence[int]) -> Law:
        return Law(VOCAB, None, np.full(VOCAB, 1.0))


@pytest.mark.parametrize("fault", [Confident, Shy])
def test_planted_fault_is_seen(fault: type[SkeletonProposer]) -> None:
    measured, expected, error = acceptance(fault(VOCAB, SHARE))
    assert abs(measured - expected) > 5.5 * error
