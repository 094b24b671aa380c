"""Checks, engines and legs made for tests of the machinery around them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.verify.contract import Ability, Budget, EngineError, Job, Params, Result, Sample, Verdict, World
from draftproof.verify.plan import Leg

WORLD = World("coin", 4, lambda _: np.zeros(4), None)
BUDGET = Budget()


@dataclass
class FakeEngine:
    """Answers zeros. `reply` may answer anything else."""

    proposed: int | None = 2
    abilities: Any = frozenset({Ability.COUNTS})
    version: str = "1"
    reply: Callable[[Any], Any] | None = None
    closed: int = 0
    name: str = "fake"
    rules: tuple[str, ...] = ("",)

    def describe(self) -> dict[str, str]:
        return {"version": self.version}

    def sample(self, jobs: Any) -> Any:
        if self.reply is not None:
            return self.reply(jobs)
        return [Sample((0,) * job.params.max_tokens, proposed=self.proposed if job.params.k else 0) for job in jobs]

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeCheck:
    """Samples once, then answers `result`'s fields or does what `act` does."""

    name: str
    verdict: Verdict = Verdict.HOLDS
    p_value: float = 0.5
    act: Callable[..., Any] | None = None
    needs: Any = frozenset()
    statistical: bool = True
    essential: bool = True
    runs: int = 0
    more: Any = None

    @property
    def claim(self) -> str:
        return f"claim of {self.name}"

    def run(self, engine: Any, world: World, budget: Budget, alpha: float) -> Any:
        self.runs += 1
        self.alpha = alpha
        if self.act is not None:
            return self.act(engine)
        engine.sample([Job((1,), Params(k=2)), Job((1,), Params(k=0))])
        return Result("any", "any", self.verdict, 10, self.p_value, **(self.more or {}))


def raising(error: BaseException) -> Callable[[Any], Any]:
    def act(_: Any) -> Any:
        raise error

    return act


def hanging(_: Any) -> Any:
    threading.Event().wait()


def dying(_: Any) -> Any:
    raise EngineError("the pipe is broken")


def leg(*checks: FakeCheck, engine: Any = FakeEngine, name: str = "leg", **more: Any) -> Leg:
    return Leg(name, engine, WORLD, checks, **more)
