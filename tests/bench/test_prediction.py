"""The cost model against made-up clocks: exact where steps cost the same, and honest about what it misses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.fake import PARTS, FakeRunner, a_plan, result_of

from draftproof.bench.plan import PLAIN, Config, Wish
from draftproof.bench.prediction import Prediction, predictions
from draftproof.bench.results import Result
from draftproof.cost import expected_tokens

WISH = Wish((2, 4), short=9, long=17)
STEP = sum(PARTS.values())


def of(result: Result, config: str = "k=4") -> Prediction:
    return next(p for p in predictions(result) if p.config == config)


def test_equal_steps_are_predicted_exactly() -> None:
    parts = {"k=4": {name: 1.25 * s for name, s in PARTS.items()}}
    found = of(result_of(a_plan(WISH), FakeRunner(parts=parts)))
    assert found.predicted == pytest.approx(1.25 * STEP / 2)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.speedup_predicted == pytest.approx(found.speedup_measured) == pytest.approx(1.6)
    assert found.error_p90 == pytest.approx(0.0, abs=1e-9)
    assert found.steps == pytest.approx(0.0, abs=1e-12)
    assert found.outside == pytest.approx(0.0, abs=1e-12)


def test_it_is_a_prediction_and_no_identity() -> None:
    """Slow steps where few tokens stand: other groups' steps cannot know, own steps would."""

    def stands(config: Config, prompt: str) -> int:
        return 0 if not config.k else 3 if prompt.startswith("chat") else 0

    def slow(prompt: str) -> float:
        return 1.0 if prompt.startswith("chat") else 2.0

    found = of(result_of(a_plan(WISH), FakeRunner(stand=stands, slow=slow)))
    assert found.error_p50 > 0.05
    assert found.error_p90 > 0.5
    assert found.steps == pytest.approx(found.measured - found.predicted)
    assert found.outside == pytest.approx(0.0, abs=1e-12)


def test_a_group_does_not_predict_itself() -> None:
    """One group's steps take a hundred times as long: its own prediction must not know of it."""
    plan = a_plan(WISH)
    slow = FakeRunner(slow=lambda prompt: 100.0 if prompt == "chat-1" else 1.0)
    alone = [(n, g) for n, g in enumerate(plan.groups) if plan.prompts[g.prompts[0]].id == "chat-1"]
    result = result_of(plan, slow)
    kept = [r for r in result.runs if r.config in (PLAIN, "k=4")]
    others = replace(result, runs=tuple(r for r in kept if r.group != alone[0][0]))
    assert of(result).measured > 5 * of(others).measured
    total = of(result).predicted * 16 - sum(_predicted_with(result, others))
    assert total == pytest.approx(STEP / 2)


def _predicted_with(result: Result, others: Result) -> list[float]:
    """What the fifteen other groups are predicted, the slow one among what they are predicted from."""
    runs = [r for r in result.runs if r.config == "k=4"]
    spent, steps = sum(sum(r.decode.seconds.values()) for r in runs), sum(r.decode.steps for r in runs)
    mine = [r for r in others.runs if r.config == "k=4"]
    return [(spent - sum(r.decode.seconds.values())) / (steps - r.decode.steps) / 2 for r in mine]


def test_what_the_parts_do_not_see_is_outside() -> None:
    found = of(result_of(a_plan(WISH), FakeRunner(unseen=0.1 * STEP)))
    assert found.outside == pytest.approx(0.1 * STEP / 2)
    assert found.error == pytest.approx(1 / 1.1 - 1)


def test_independence_is_the_formula_against_the_measured_tokens() -> None:
    """One token of four always stands and the next never does: alpha is 1/2, E is 2, and the formula says less."""
    found = of(result_of(a_plan(WISH)))
    assert found.independence == pytest.approx(found.predicted * (2 / expected_tokens(0.5, 4) - 1))
    assert of(result_of(a_plan(WISH)), PLAIN).independence == 0.0


def test_one_group_predicts_nothing() -> None:
    plan = a_plan(WISH)
    assert predictions(result_of(replace(plan, groups=plan.groups[:1]))) == ()
