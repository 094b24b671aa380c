"""Rules that change the law on purpose are measured, never failed: how far from the target do they move a token?

Half of the samples choose the set of tokens that come too often, the other half measure its excess: no bias from
choosing, and Hoeffding's interval (1963) holds at every size. Knows no rule's formula.
"""

from __future__ import annotations

import math
from collections import Counter

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import prompts, sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Sample, Verdict, World

_COUNT = {"quick": 4_000, "default": 20_000, "deep": 200_000}
_MISS = 0.01  # probability that an interval misses


class LossyDistance(BaseCheck):
    """`rule` is an engine's name for a lossy rule, parameter included."""

    needs = frozenset({Ability.LOSSY})
    essential = False

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.name = f"lossy/{rule}"
        self.claim = f"distance that {rule} moves a token's law, a figure and no claim"

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        prompt, count = prompts(world, 1)[0], _COUNT[budget.level]
        params = Params(max_tokens=2, k=1, rule=self.rule)
        jobs = [Job(prompt, params, seed=budget.seed * 1_000_033 + n) for n in range(count)]
        first = [s.tokens[0] for start in range(0, count, 1000) for s in self._part(engine, jobs[start : start + 1000])]
        p = oracle.law_at(world, prompt, (), params)
        half = count // 2
        chosen, measured = Counter(first[:half]), first[half:]
        often = {x for x, seen in chosen.items() if seen / half > p[x]}
        tv = sum(x in often for x in measured) / len(measured) - float(sum(p[x] for x in often))
        wide = math.sqrt(math.log(2 / _MISS) / (2 * len(measured)))
        figures = {"rule": self.rule, "tv": max(tv, 0.0), "low": max(tv - wide, 0.0), "high": min(tv + wide, 1.0)}
        note = f"TV {figures['tv']:.4f} a token ({figures['low']:.4f} to {figures['high']:.4f})"
        return Result(self.name, self.claim, Verdict.MEASURED, count, witness=figures, note=note)

    def _part(self, engine: EngineUnderTest, jobs: list[Job]) -> list[Sample]:
        return sound(jobs, engine.sample(jobs))
