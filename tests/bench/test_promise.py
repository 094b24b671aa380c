"""Acceptance by position against counts made by hand, and what is promised from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.fake import a_plan
from bench.tuning import WISH, profile, runner, tuning

from draftproof.bench.plan import PLAIN, Wish
from draftproof.bench.promise import Promise, promises, seen, shortlist
from draftproof.bench.results import RequestRecord, RunRecord
from draftproof.types import RequestError

PLAN = a_plan(Wish((2,), short=9, long=17))
SHORT, LONG = (next(p.id for p in PLAN.prompts if p.length == n) for n in ("short", "long"))


def request(prompt: str, tokens: list[int], accepted: tuple[int, ...], reached: tuple[int, ...], **more: object):  # type: ignore[no-untyped-def]
    made = RequestRecord(
        prompt=prompt,
        ttft=0.1,
        end=1.0,
        chunks=tuple((0.1 * i, n) for i, n in enumerate(tokens)),
        tokens=sum(tokens),
        finish="length",
        proposed=2 * (len(tokens) - 1),
        accepted=sum(accepted),
        accepted_at=accepted,
        reached_at=reached,
        steps=len(tokens),
        first=1,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def of(*requests: RequestRecord):  # type: ignore[no-untyped-def]
    return seen(PLAN, [RunRecord(0, "k=2", 1.0, 0, 0.0, requests)], "k=2")


def test_a_position_counts_the_steps_that_reached_it() -> None:
    """Behind the first step 3, 1, 2 and then 2 tokens came: 2, 0 and 1 stood; the last step had room for two only."""
    told = of(request(SHORT, [1, 3, 1, 2, 2], (2, 1), (4, 2)))
    assert (told.steps, told.prompts) == (3, 1)
    assert told.chances[0] == pytest.approx(2 / 3)
    assert told.chances[1] == pytest.approx((1 + 4 * 0.5) / (2 + 4))  # few got there: the position before helps
    assert told.alpha_cond == (0.5, 0.5)


def test_the_step_that_stops_an_answer_is_not_counted() -> None:
    whole = of(request(LONG, [1, 3, 3, 1], (2, 2), (3, 2)))
    stopped = of(request(LONG, [1, 3, 3, 1], (2, 2), (3, 2), finish="stop"))
    assert (whole.steps, stopped.steps) == (3, 2)
    assert (whole.chances[0], stopped.chances[0]) == (pytest.approx(2 / 3), 1.0)


def test_drafts_that_come_now_and_then_cost_rows_now_and_then() -> None:
    """Half of ten steps propose two tokens, and both stand."""
    told = seen(
        a_plan(Wish((2,), long=200)),
        [
            RunRecord(
                0, "k=2", 1.0, 0, 0.0, (request(LONG, [1] + [3, 1] * 5, (5, 5), (5, 5), proposed=10, finish="length"),)
            )
        ],
        "k=2",
    )
    assert told.proposals[0] == pytest.approx(0.5)
    assert told.proposals[1] == pytest.approx(0.5)
    assert told.chances[1] == 1.0
    assert told.alpha_cond == (1.0, 1.0)


def test_nothing_that_stands_still_says_how_much_was_proposed() -> None:
    told = of(request(LONG, [1] * 17, (0, 0), (16, 0), proposed=32))
    assert told.chances == (0.0, 0.0)
    assert told.proposals == (1.0, 1.0)
    assert told.alpha_cond == (0.0,)
    never = of(request(LONG, [1] * 17, (), (), proposed=0))
    assert never.proposals == (0.0, 0.0)
    assert never.alpha_cond == ()


def test_answers_without_room_are_refused() -> None:
    with pytest.raises(RequestError, match="--short and --long"):
        of(request(SHORT, [8, 1], (0,), (1,)))


def test_plain_decoding_is_the_unit() -> None:
    told = promises(profile(), tuning(runner(2)).learning and of(request(LONG, [1, 3, 3, 1], (2, 2), (3, 2))), 4)
    assert [p.k for p in told] == [0, 1, 2]
    assert (told[0].speedup, told[0].tokens, told[0].batch) == (1.0, 1.0, 4)
    assert told[1].speedup == pytest.approx(told[1].tokens / told[1].seconds * told[0].seconds)


def promise(k: int, speedup: float, rule: str = "block") -> Promise:
    return Promise(1, rule, k, 1.0, 1.0, speedup)


def test_the_most_promising_lengths() -> None:
    told = [promise(k, s) for k, s in enumerate((1.0, 1.2, 1.4, 1.3, 1.1))]
    assert shortlist(told, 2) == (2, 3)
    assert shortlist([*told, promise(4, 1.5, "token")], 2) == (2, 4)  # under any rule
    assert shortlist([promise(k, 0.5 if k else 1.0) for k in range(4)], 2) == (1, 2)  # plain decoding is no candidate
    assert shortlist(told[:2], 2) == (1,)


def test_wish_has_lengths_of_its_own() -> None:
    assert [c.name for c in tuning(runner(2), WISH).learning.configs] == [PLAIN, "k=8"]
