"""Each part of a step is charged with its own time, on a clock that only moves where a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from toys import drafting, random_table, toy_engine

from draftproof import watch
from draftproof.engine import Engine
from draftproof.types import SamplingParams
from draftproof.watch import Seconds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watch, "perf_counter", made)
    return made


def _slow(clock: Clock, owner: Any, name: str) -> None:
    """A planted delay of one second in front of owner.name."""
    honest: Callable[..., Any] = getattr(owner, name)

    def late(*args: Any) -> Any:
        clock.now += 1.0
        return honest(*args)

    setattr(owner, name, late)


PLACES: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "draft": lambda e: (e.proposer, "propose"),
    "verify": lambda e: (e.target, "forward"),
    "kv": lambda e: (e.target, "copy_pages"),
    "schedule": lambda e: (e.scheduler, "plan"),
}


def _run(engine: Engine) -> list[Seconds]:
    params = SamplingParams(max_tokens=12, seed=3, k=2)
    return [step.seconds for step in engine.generate([[1, 2]], params)[0].steps]


@pytest.mark.parametrize("part", PLACES)
def test_a_delay_shows_up_in_its_own_part(part: str, clock: Clock) -> None:
    engine = toy_engine(random_table(5, 1), 5, drafting(random_table(5, 2), 5))
    _slow(clock, *PLACES[part](engine))
    steps = _run(engine)
    assert len(steps) > 3
    assert all(s.total == s._asdict()[part] for s in steps)
    assert {s.total for s in steps[:-1]} == {1.0}  # the last step has no room for a draft, and asks for none


def test_what_the_proposer_learns_is_drafting_too(clock: Clock) -> None:
    engine = toy_engine(random_table(5, 1), 5, drafting(random_table(5, 2), 5))
    _slow(clock, engine.proposer, "observe")
    assert {s.draft for s in _run(engine)} == {1.0}


def test_texts_are_charged_to_the_step_after(clock: Clock) -> None:
    engine = toy_engine(random_table(5, 1), 5, drafting(random_table(5, 2), 5))
    _slow(clock, engine, "_event")
    steps = _run(engine)
    assert steps[0] == Seconds()
    assert set(steps[1:]) == {Seconds(other=1.0)}
