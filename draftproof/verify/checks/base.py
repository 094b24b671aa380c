"""What the checks share: a clock around each, and results in one form. Knows no claim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar

from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Result, Verdict, World

Plots = Mapping[str, Any]


class BaseCheck(ABC):
    """One claim. `_run` answers; the rest is the same for all. `statistical` checks get a share of the error budget."""

    name: str
    claim: str
    needs: ClassVar[frozenset[Ability]] = frozenset()
    statistical: ClassVar[bool] = False
    essential: ClassVar[bool] = True  # without it, "exact" cannot be said

    def run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        began = perf_counter()
        result = self._run(engine, world, budget, alpha)
        return replace(result, seconds=perf_counter() - began)

    @abstractmethod
    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result: ...

    def holds(self, samples: int, note: str = "", plots: Plots | None = None) -> Result:
        return Result(self.name, self.claim, Verdict.HOLDS, samples, note=note, plots=plots or {})

    def fails(
        self, samples: int, witness: Mapping[str, Any], p_value: float = 0.0, plots: Plots | None = None
    ) -> Result:
        """`p_value` 0 is proof: something that cannot happen was seen."""
        return Result(self.name, self.claim, Verdict.FAILS, samples, p_value, witness=witness, plots=plots or {})

    def untested(self, note: str) -> Result:
        return Result(self.name, self.claim, Verdict.UNTESTED, note=note)
