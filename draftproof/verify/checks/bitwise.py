"""A seed decides the output, to the last token: with and without speculation, and whatever else runs (I8, I11).

Compares an engine with itself; needs no oracle. Knows nothing of laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Sample, World

_LENGTH, _JOBS = 12, {"quick": 24, "default": 60, "deep": 400}
_PROMISED = ("sampled", "coupled", "")


def jobs(engine: EngineUnderTest, world: World, budget: Budget, rules: Sequence[str]) -> list[Job]:
    """Seeded jobs of different prompts, parameters, rules and draft lengths."""
    names = oracle.words(world)
    made = []
    for n in range(_JOBS[budget.level]):
        prompt = tuple(names[(n * 7 + i * (n % 5 + 1)) % len(names)] for i in range(1 + n % 6))
        more: dict[str, Any] = {"temperature": (1.0, 0.7, 0.0, 1.4)[n % 4]}
        if n % 3 == 1:
            more["top_k"] = 5
        if n % 5 == 2 and Ability.PENALTIES in engine.abilities:
            more["frequency_penalty"] = 0.8
        params = Params(max_tokens=_LENGTH, k=1 + n % 4, rule=rules[n % len(rules)], **more)
        made.append(Job(prompt, params, seed=budget.seed * 10_007 + n))
    return made


class _Bitwise(BaseCheck):
    needs = frozenset({Ability.SEEDS})

    def _compare(
        self, wanted: Sequence[Sample], seen: Sequence[Sample], asked: Sequence[Job], how: str
    ) -> Result | None:
        for job, w, s in zip(asked, wanted, seen, strict=True):
            if (w.tokens, w.finish) != (s.tokens, s.finish):
                at = next((i for i, (a, b) in enumerate(zip(w.tokens, s.tokens, strict=False)) if a != b), None)
                where = {"prompt": job.prompt, "seed": job.seed, "rule": job.params.rule, "k": job.params.k}
                first = at if at is not None else min(len(w.tokens), len(s.tokens))
                more = {"how": how, "first difference": first, "expected": w.tokens, "seen": s.tokens}
                return self.fails(len(asked), {**where, **more})
        return None


def _each_alone(engine: EngineUnderTest, asked: Sequence[Job]) -> list[Sample]:
    return sound(asked, [sample for job in asked for sample in engine.sample([job])])


class Speculation(_Bitwise):
    name = "bitwise/speculation"
    claim = "the same seed gives the same text with and without speculation, under the rules that promise it"
    needs = frozenset({Ability.SEED_PROMISE, Ability.PLAIN})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        rules = [r for r in engine.rules if r in _PROMISED]
        if not rules:
            return self.untested("no rule of this engine promises it")
        asked = jobs(engine, world, budget, rules)
        plain = _each_alone(engine, [replace(j, params=replace(j.params, k=0)) for j in asked])
        fault = self._compare(plain, _each_alone(engine, asked), asked, "alone, against k = 0")
        return fault or self.holds(len(asked), f"{len(asked)} texts of {_LENGTH} tokens, rules {', '.join(rules)}")


class Batch(_Bitwise):
    name = "bitwise/batch"
    claim = "batch mates change no token"
    needs = frozenset({Ability.SEEDS, Ability.BATCH})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        alone = _each_alone(engine, asked)
        back = list(reversed(asked))
        fault = self._compare(alone, engine.sample(asked), asked, "all in one batch") or self._compare(
            list(reversed(alone)), engine.sample(back), back, "all in one batch, in reverse order"
        )
        return fault or self.holds(len(asked), "alone, together, and together in reverse order")


class Order(_Bitwise):
    name = "bitwise/order"
    claim = "what ran before changes no seeded text, and unseeded requests differ"

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        first = _each_alone(engine, asked)
        again = _each_alone(engine, list(reversed(asked)))
        fault = self._compare(list(reversed(first)), again, list(reversed(asked)), "run again in reverse order")
        if fault is not None:
            return fault
        unseeded = Job(asked[0].prompt, Params(max_tokens=24, k=2))
        texts = [engine.sample([unseeded])[0].tokens for _ in range(4)] + [
            s.tokens for s in engine.sample([unseeded] * 4)
        ]
        if len(set(texts)) < len(texts):  # by chance: below 1e-9 even at 1 nat a token
            return self.fails(len(texts), {"prompt": unseeded.prompt, "seed": None, "the same text twice": texts[0]})
        return self.holds(len(asked) + len(texts))


class Abort(_Bitwise):
    name = "bitwise/abort"
    claim = "cancelling a request changes no other request's tokens, and returns a prefix of its own"
    needs = frozenset({Ability.SEEDS, Ability.BATCH, Ability.ABORT})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        alone = _each_alone(engine, asked)
        for after in range(4):
            cancelled = dict.fromkeys(range(after % 3, len(asked), 3), after)
            seen = engine.sample_aborting(asked, cancelled)
            kept = [i for i in range(len(asked)) if i not in cancelled]
            fault = self._compare(
                [alone[i] for i in kept],
                [seen[i] for i in kept],
                [asked[i] for i in kept],
                f"others cancelled at {after}",
            )
            if fault is not None:
                return fault
            for i in cancelled:
                if seen[i].tokens != alone[i].tokens[: len(seen[i].tokens)]:
                    return self.fails(
                        len(asked), {"cancelled job": i, "expected": alone[i].tokens, "seen": seen[i].tokens}
                    )
        return self.holds(4 * len(asked))


class Preempt(_Bitwise):
    name = "bitwise/preempt"
    claim = "preemption changes no token"
    needs = frozenset({Ability.SEEDS, Ability.BATCH, Ability.PREEMPT})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        alone = _each_alone(engine, asked)
        fault = self._compare(alone, engine.sample_tight(asked), asked, "under page pressure")
        return fault or self.holds(len(asked))


CHECKS = (Speculation(), Batch(), Order(), Abort(), Preempt())
