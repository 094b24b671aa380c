"""The cost model with measured times: the general form, its file, and what that file must not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from draftproof import cost
from draftproof.cost import Measured, Parts

# Binary fractions, so that sums are exact. Batch 4: verification doubles from one row to three.
ONE = {0: Parts(0.0, 8.0, 2.0), 1: Parts(1.0, 8.0, 3.5), 3: Parts(3.0, 9.0, 3.0)}
FOUR = {0: Parts(0.0, 16.0, 4.0), 3: Parts(8.0, 64.0, 8.0)}


def steps(**changed: Any) -> dict[str, Any]:
    told = [
        {"batch": batch, "k": k, **parts._asdict()}
        for batch, known in ((1, ONE), (4, FOUR))
        for k, parts in known.items()
    ]
    return {"version": 1, "unit": "seconds", "steps": told, **changed}


def entry(**changed: Any) -> dict[str, Any]:
    return {"batch": 1, "k": 1, "draft": 1.0, "verify": 8.0, "other": 3.5, **changed}


def test_file_is_read_and_written() -> None:
    read = cost.measured(json.dumps(steps()))
    assert list(read) == [1, 4]
    assert read[1] == Measured(ONE)
    assert list(read[4].lengths) == [0, 3]
    assert cost.measured(cost.to_json(read)) == read


def test_order_of_steps_does_not_matter() -> None:
    told = steps()
    told["steps"].reverse()
    read = cost.measured(json.dumps(told))
    assert read == {1: Measured(ONE), 4: Measured(FOUR)}
    assert list(read) == [1, 4]
    assert list(read[1].lengths) == [0, 1, 3]


General = Callable[[float, float, float, float, float], float]


def general_form_is_right(general: General) -> None:
    assert general(10.0, 3.0, 3.0, 9.0, 3.0) == 2.0
    assert general(10.0, 1.0, 0.0, 8.0, 2.0) == 1.0
    assert general(20.0, 3.0, 8.0, 64.0, 8.0) == 0.75


def test_general_form() -> None:
    general_form_is_right(cost.general_speedup)


@pytest.mark.parametrize(
    "fault",
    [
        lambda plain, tokens, draft, verify, other: tokens * verify / (draft + verify + other),
        lambda plain, tokens, draft, verify, other: tokens * plain / (draft + verify),
        lambda plain, tokens, draft, verify, other: tokens * plain / (verify + other),
        lambda plain, tokens, draft, verify, other: tokens * (draft + verify + other) / plain,
    ],
    ids=["plain", "other", "draft", "upside-down"],
)
def test_planted_general_form_is_seen(fault: General) -> None:
    with pytest.raises(AssertionError):
        general_form_is_right(fault)


def measured_steps_are_right(one: Measured, four: Measured) -> None:
    assert [one.step(k) for k in one.lengths] == [1.0, 1.25, 1.5]
    assert [one.draft(k) for k in one.lengths] == [0.0, 0.1, 0.1]
    at_half = cost.point(0.5, 3, one, one.draft)
    assert at_half.speedup == pytest.approx(1.875 / 1.5)
    assert at_half.operations_factor == pytest.approx(4.3 / 1.875)
    assert at_half.break_even_draft_cost == pytest.approx((1.875 - 1.2) / 3)
    assert cost.best(0.5, one) == pytest.approx((3, 1.25))
    assert cost.best(0.1, one) == (0, 1.0)
    assert four.step(3) == 4.0
    assert cost.best(0.9, four) == (0, 1.0)  # the same draft does not pay in the larger batch


class AllDrafts(Measured):
    def draft(self, k: int) -> float:  # seconds of all drafts, as if of one
        return self.steps[k].draft / self.plain


class NoOther(Measured):
    def step(self, k: int) -> float:
        return (self.steps[k].draft + self.steps[k].verify) / self.steps[0].verify


class FromOne(Measured):
    @property
    def lengths(self) -> list[int]:
        return sorted(self.steps)[1:]


def test_measured_steps() -> None:
    measured_steps_are_right(Measured(ONE), Measured(FOUR))


@pytest.mark.parametrize("fault", [AllDrafts, NoOther, FromOne])
def test_planted_measured_steps_are_seen(fault: type[Measured]) -> None:
    with pytest.raises(AssertionError):
        measured_steps_are_right(fault(ONE), fault(FOUR))


def test_one_plus_kc_is_a_special_case() -> None:
    """Steps that cost exactly 1 + k c give the analytical model's numbers."""
    known = Measured({k: Parts(0.1 * k, 1.0, 0.0) for k in range(13)})
    for alpha in (0.2, 0.6, 0.9):
        assert cost.best(alpha, known) == pytest.approx(cost.best_k(alpha, 0.1, 12))
        modelled = cost.Modelled(0.1)
        for ours, theirs in zip(
            cost.over_k(alpha, range(1, 13), known, known.draft),
            cost.over_k(alpha, range(1, 13), modelled, modelled.draft),
            strict=True,
        ):
            assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("3", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("{}", 'there is no "steps"'),
        (json.dumps(steps(steps=3)), "not a JSON object with a list"),
        (json.dumps(steps(steps=[])), "empty"),
        (json.dumps(steps(version=2)), '"version": 1'),
        (json.dumps(steps(unit="ms")), '"unit": "seconds"'),
        (json.dumps(steps(batch=1)), "nothing else"),
        (json.dumps(steps(steps=[3])), r"steps\[0\]"),
        (json.dumps(steps(steps=[{"batch": 1, "k": 0, "verify": 1.0}])), r"steps\[0\]: give batch, k, draft"),
        (json.dumps(steps(steps=[entry(k=0), entry(rows=2)])), r"steps\[1\]: give .* nothing else"),
        (json.dumps(steps(steps=[entry(k=1.5)])), "whole numbers"),
        (json.dumps(steps(steps=[entry(batch="1")])), "whole numbers"),
        (json.dumps(steps(steps=[entry(k=-1)])), "k from 0 to 64"),
        (json.dumps(steps(steps=[entry(k=65)])), "k from 0 to 64"),
        (json.dumps(steps(steps=[entry(batch=0)])), "batch is at least 1"),
        (json.dumps(steps(steps=[entry(verify=-1.0)])), "verify is -1.0"),
        (json.dumps(steps(steps=[entry(other=float("nan"))])), "other is nan"),
        (json.dumps(steps(steps=[entry(draft=float("inf"))])), "draft is inf"),
        (json.dumps(steps(steps=[entry(draft=10**400)])), "draft is 1000"),
        (json.dumps(steps(steps=[entry(draft="1")])), "the parts are seconds"),
        (json.dumps(steps(steps=[entry(draft=None)])), "the parts are seconds"),
        (json.dumps(steps(steps=[entry(draft=0, verify=0, other=0)])), "no time"),
        (json.dumps(steps(steps=[entry(k=0), entry(), entry()])), r"steps\[2\]: k=1 at batch 1 is there twice"),
        (json.dumps(steps(steps=[entry(k=0), entry(batch=2)])), "batch 2 has no step with k 0"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        cost.measured(text)
    assert "\n" not in str(caught.value)
