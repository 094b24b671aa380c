"""k = auto against every fixed length on a made-up machine: requests of 64 tokens, drafts that stand by chance.

The seeds are fixed.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from made_up import COSTS, FIXED, REQUESTS, ROWS, SEEDS, TOKENS, View, mean

from draftproof.length import goodput
from draftproof.length.goodput import GoodputLength
from draftproof.length.learned import Step
from draftproof.length.profile import Line, Profile
from draftproof.types import Finish, Kind, Run

Chances = tuple[float, ...]


def rate(chances: Chances, policy: GoodputLength | None = None, k: int = 0, seed: int = 1) -> float:
    """Tokens a second. The step that reads the prompt has nothing to draft from. What a policy is told of passes has a
    spread of 10 %, and comes from a machine that slows down by 15 % and recovers."""
    rng, seconds = random.Random(seed), 0.0
    for name in range(REQUESTS):
        view = View(name)
        while view.left:
            asked = min(k, view.left - 1) if policy is None else policy.choose(view, 1, view.left - 1)
            proposed = asked if len(view.tokens) > 2 else 0
            accepted = next((i for i in range(proposed) if rng.random() >= chances[min(i, len(chances) - 1)]), proposed)
            seconds += COSTS.seconds(1, proposed, proposed)
            view.tokens += [0] * (accepted + 1)
            kind = Kind.BONUS if accepted == proposed else Kind.RESIDUAL
            finish = None if view.left else Finish.LENGTH
            if policy is not None:
                slow = 1.0 + 0.15 * math.sin(seconds / 5000.0)
                verify, draft, _ = (
                    slow * x * math.exp(rng.gauss(0.0, 0.1)) for x in COSTS.parts(1, proposed, proposed)
                )
                policy.timed(Step(1 + proposed, verify, 1, proposed, draft))
                run = Run((0,) * (accepted + 1), (kind,), proposed, accepted, TOKENS - view.left, finish)
                policy.observe(view, run)
    return REQUESTS * TOKENS / seconds


def auto(chances: Chances, seed: int = 1) -> float:
    return rate(chances, GoodputLength(COSTS), seed=seed)


@pytest.mark.parametrize("chances", [(0.42, 0.57, 0.61), (0.35, 0.47, 0.54), (0.25, 0.4, 0.5), (0.6,), (0.9,)], ids=str)
def test_close_to_the_best_fixed_length(chances: Chances) -> None:
    """A server that has just begun: what it has yet to learn is counted in."""
    best = max(mean(rate(chances, k=k, seed=s) for s in SEEDS) for k in FIXED)
    assert mean(auto(chances, s) for s in SEEDS) > 0.97 * best


@pytest.mark.parametrize("chances", [(0.0,), (0.02,)], ids=str)
def test_plain_decoding_where_nothing_helps(chances: Chances) -> None:
    assert auto(chances) > 0.99 * rate(chances)


def test_planted_eager_probes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput, "_PROBE", 4)
    monkeypatch.setattr(goodput, "_LONGEST_WAIT", 4)
    assert auto((0.0,)) < 0.99 * rate((0.0,))


def off_by(point: int, share: float) -> Profile:
    """The costs with one point off."""
    return replace(COSTS, verify=tuple((r, s * (1.0 + share * (n == point))) for n, (r, s) in enumerate(ROWS)))


# the profile takes three, four or five rows for dearer or cheaper than they are
@pytest.mark.parametrize("share", [-0.08, 0.08])
@pytest.mark.parametrize("point", [1, 2, 3])
def test_close_to_the_best_fixed_length_though_the_profile_is_off(point: int, share: float) -> None:
    chances = (0.42, 0.57, 0.61)
    best = max(mean(rate(chances, k=k, seed=s) for s in SEEDS) for k in FIXED)
    learned = mean(rate(chances, GoodputLength(off_by(point, share)), seed=s) for s in SEEDS)
    assert learned > 0.96 * best


def test_planted_blindness_to_costs_is_seen() -> None:
    """A policy that takes drafts for free."""
    free = Profile(((1.0, 30.0),), ((1, Line(0.0, 0.0)),), ((1, Line(0.0, 0.0)),))
    chances = (0.42, 0.57, 0.61)
    assert rate(chances, GoodputLength(free)) < 0.95 * max(rate(chances, k=k) for k in FIXED)
