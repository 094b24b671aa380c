"""Numerics, apart from rules: figures, no claim. How much do rows depend on how they were computed?

A figure here explains a small difference elsewhere, and never excuses a wrong rule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Floats, Job, Params, Result, Verdict, World

_CHUNKS, _LENGTH = (1, 2, 3, 5, 16), 48


class SelfDistance(BaseCheck):
    name = "numerics/self"
    claim = "distance of the target's law from itself across chunk sizes, and from the exact law"
    needs = frozenset({Ability.TEACHER})
    essential = False

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        rng, names = np.random.default_rng(budget.seed), oracle.words(world)
        tokens = tuple(int(t) for t in rng.choice(names, _LENGTH))
        whole = _softmax(engine.logits(tokens))
        gaps = {f"chunks of {c}": _tv(_softmax(engine.logits(tokens, c)), whole) for c in _CHUNKS}
        exact = _softmax(np.stack([world.target(tokens[: i + 1]) for i in range(_LENGTH)]))
        gaps["exact law"] = _tv(whole, exact)
        note = "largest TV: " + ", ".join(f"{name} {gap:.2g}" for name, gap in gaps.items())
        return Result(self.name, self.claim, Verdict.MEASURED, _LENGTH, note=note)


class GreedyMargin(BaseCheck):
    name = "numerics/greedy"
    claim = "margin of the two largest logits where greedy text first differs from plain decoding"
    needs = frozenset({Ability.PLAIN, Ability.TEACHER})
    essential = False

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        names, least = oracle.words(world), None
        for n in range(12):
            prompt = (names[n % len(names)], names[(n * 5 + 2) % len(names)])
            params = Params(temperature=0.0, max_tokens=16, rule=engine.rules[n % len(engine.rules)])
            plain, fast = (
                engine.sample([Job(prompt, replace(params, k=k), seed=budget.seed)])[0].tokens for k in (0, 3)
            )
            first = next((i for i, (a, b) in enumerate(zip(plain, fast, strict=False)) if a != b), None)
            if first is not None:
                top = np.sort(engine.logits((*prompt, *plain[:first]))[-1])
                margin = float(top[-1] - top[-2])
                least = margin if least is None else max(least, margin)
        note = "no difference in 12 texts" if least is None else f"largest margin at a first difference: {least:.3g}"
        return Result(self.name, self.claim, Verdict.MEASURED, 12, note=note)


def _softmax(logits: np.ndarray) -> Floats:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _tv(a: Floats, b: Floats) -> float:
    return float(0.5 * np.abs(a - b).sum(axis=-1).max())


CHECKS = (SelfDistance(), GreedyMargin())
