"""Acceptance figures by hand-made traces, and what they must not depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from toys import drafting, toy_engine

from draftproof import stats
from draftproof.stats import Stats, summary, trim
from draftproof.types import Kind, SamplingParams, StepTrace
from draftproof.watch import Seconds

PARTS = Seconds(1.0, 2.0, 0.5)


def step(proposed: int, accepted: int, emitted: int | None = None, kind: Kind | None = None) -> StepTrace:
    """A whole step; `emitted` if it was cut."""
    kind = kind or (Kind.BONUS if accepted == proposed else Kind.RESIDUAL)
    tokens = tuple(range(accepted + 1 if emitted is None else emitted))
    return StepTrace(0, 5, tuple(range(proposed)), accepted, tokens, kind, 1, PARTS)


def test_hand_made_traces() -> None:
    s = summary([step(4, 4), step(4, 1), step(4, 0), step(2, 2), step(0, 0)])
    assert (s.steps, s.tokens, s.proposed, s.accepted) == (5, 12, 14, 7)
    assert s.tokens_per_step == 12 / 5
    assert s.alpha == 7 / (7 + 2)
    assert s.alpha_cond == (3 / 4, 2 / 3, 1.0, 1.0)
    assert s.seconds == Seconds(5.0, 10.0, 2.5)
    assert (s.tv, s.numerical) == (0.0, 0)


def test_matches_behind_the_first_rejection_do_not_count() -> None:
    """Case 38: of a draft judged [T, F, T, T] one token is accepted, and two were reached."""
    s = summary([step(4, 1)])
    assert (s.accepted, s.alpha, s.alpha_cond) == (1, 0.5, (1.0, 0.0))


def test_a_cut_step_has_no_rejection() -> None:
    """Two drafts accepted, the second one ends the output: proposals behind it were never judged for the reader."""
    s = summary([step(2, 2, emitted=2, kind=Kind.ACCEPTED)])
    assert (s.tokens, s.alpha, s.alpha_cond) == (2, 1.0, (1.0, 1.0))


def test_a_step_that_brought_only_the_stop_token_is_left_out() -> None:
    both, one = summary([step(0, 0, emitted=0), step(3, 1)]), summary([step(3, 1)])
    assert replace(both, seconds=one.seconds) == one
    assert both.seconds.total > one.seconds.total  # its time was spent all the same


def test_nothing_proposed_is_no_acceptance() -> None:
    assert summary([]) == Stats(0, 0, 0, 0, 0.0, None, (), 0, 0.0, Seconds())
    assert summary([step(0, 0)] * 3).alpha is None
    assert summary([step(0, 0)] * 3).tokens_per_step == 1.0


def test_tv_and_numerical_events_are_reported() -> None:
    steps = [replace(step(1, 0), tv=0.2, numerical=True), replace(step(1, 1), tv=0.1)]
    assert summary(steps).tv == pytest.approx(0.15)
    assert summary(steps).numerical == 1


def test_trim_drops_what_a_stop_string_took_back() -> None:
    steps = (step(4, 4), step(4, 1), step(4, 2))  # 5, 2 and 3 tokens
    assert trim(steps, 10) == steps
    assert trim(steps, 9)[2] == replace(steps[2], emitted=(0, 1), accepted=2, proposed=(0, 1), kind=Kind.ACCEPTED)
    assert trim(steps, 8)[2] == replace(steps[2], emitted=(0,), accepted=1, proposed=(0,), kind=Kind.ACCEPTED)
    assert [(s.emitted, s.accepted, s.proposed) for s in trim(steps, 5)[1:]] == [((), 0, ())] * 2
    assert [len(s.emitted) for s in trim(steps, 3)] == [3, 0, 0]
    for tokens in range(11):
        s = summary(trim(steps, tokens))
        assert s.tokens == tokens
        assert s.accepted <= tokens
    assert summary(trim(steps, 9)).alpha == 7 / 8  # the rejection of the last step was taken back
    assert trim((), 3) == ()


CHANCE = 0.7  # sum min(p, q) at every prefix


@cache
def measured(k: int) -> Stats:
    """60 seeded requests of 100 tokens."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    info = {"context": 110, "pages": 2000}
    engine = toy_engine(lambda prefix: p, 3, drafting(lambda prefix: q, 3, **info), **info)
    params = [SamplingParams(k=k, seed=seed, max_tokens=100, rule="token") for seed in range(60)]
    return summary([s for o in engine.generate([[0]] * len(params), params) for s in o.steps])


def z(share: float, trials: float) -> float:
    return (share - CHANCE) / math.sqrt(CHANCE * (1 - CHANCE) / trials)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_alpha_does_not_depend_on_k(k: int) -> None:
    """Seeded; |z| < 5.5 has a false alarm of 4e-8, 5e-7 for all 13 figures. 3000 tokens or more are judged: a shift of
    alpha by 0.06 is 7 standard errors and is seen with probability above 0.9."""
    s = measured(k)
    assert s.alpha is not None
    judged = s.accepted / s.alpha
    assert judged > 3000
    assert abs(z(s.alpha, judged)) < 5.5
    reached = s.steps - 60  # fewer drafts are asked for at the end of a request
    for share in s.alpha_cond:
        assert abs(z(share, reached)) < 5.5
        reached *= CHANCE * 0.9


def test_planted_ratio_is_seen() -> None:
    """Accepted by proposed falls with k although every token has the same chance."""
    s = measured(6)
    assert abs(z(s.accepted / s.proposed, s.proposed)) > 20


def test_planted_rejection_of_a_cut_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_rejected", lambda s: len(s.emitted) == s.accepted + 1 or s.accepted == len(s.proposed))
    for test in (test_a_cut_step_has_no_rejection, test_hand_made_traces):
        with pytest.raises(AssertionError):
            test()
