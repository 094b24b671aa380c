"""Long text: evidence against p that is valid at any stopping time, and whether p's own ranks look uniform.

An e-process bets on a bank of suspected faults; the randomised probability integral transform bets on nothing in
particular. Knows the oracle's laws of a given text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Floats, Job, Params, Result, World
from draftproof.verify.sequential import EProcess, Pit, pit_value, suspects

_BINS = 20

_TEXTS, _LENGTH = {"quick": 40, "default": 200, "deep": 1000}, 40
_PARAMS = Params(max_tokens=_LENGTH, k=3)


class Evidence(BaseCheck):
    name = "stream/evidence"
    claim = "long texts give no evidence against the target's law, token by token"
    statistical = True

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        rng, ranks, tokens, path = np.random.default_rng(budget.seed), Pit(), 0, []
        bets: EProcess | None = None
        bins = [0] * _BINS
        for job in _jobs(engine, world, budget):
            output = sound([job], engine.sample([job]))[0].tokens
            ranks.restart()
            before = None
            for i, token in enumerate(output):
                p = oracle.law_at(world, job.prompt, output[:i], job.params)
                bank = _suspects(world, job, output[:i], p, before)
                bets = bets or EProcess([1.0] * len(bank), list(bank))
                v = float(rng.random())
                bets.update(token, p, list(bank.values()))
                ranks.update(token, p, v)
                bins[min(int(pit_value(p, token, v) * _BINS), _BINS - 1)] += 1
                tokens, before = tokens + 1, p
            assert bets is not None
            path.append((tokens, bets.log_e))
            lowest, evidence = min((bets.p_value, f"e-process: {bets.leader}"), (ranks.p_value, f"PIT: {ranks.leader}"))
            if lowest <= alpha / 2:
                where = {"evidence": evidence, "tokens": tokens, "rule": job.params.rule, "prompt": job.prompt}
                return self.fails(tokens, where, min(1.0, 2 * lowest))
        series = {"tokens": [t for t, _ in path], "log_e": [e for _, e in path], "threshold": float(np.log(2 / alpha))}
        plots = {"e_value": series, "pit": {"bins": bins, "n": tokens}}
        result = self.holds(tokens, f"{len(path)} texts of {_LENGTH} tokens; valid at any stopping time", plots)
        return replace(result, p_value=min(1.0, 2 * lowest))


def _jobs(engine: EngineUnderTest, world: World, budget: Budget) -> Iterator[Job]:
    names = oracle.words(world)
    for n in range(_TEXTS[budget.level]):
        prompt = (names[n % len(names)], names[(n * 3 + 1) % len(names)])
        penalty = 0.6 if n % 2 and Ability.PENALTIES in engine.abilities else 0.0
        params = replace(_PARAMS, rule=engine.rules[n % len(engine.rules)], frequency_penalty=penalty)
        yield Job(prompt, params, seed=budget.seed * 7919 + n)


def _suspects(world: World, job: Job, output: tuple[int, ...], p: Floats, before: Floats | None) -> dict[str, Floats]:
    """The laws that the next token would have under each suspected fault: always the same names."""
    q = oracle.draft_law(world, job.prompt, output, job.params) if world.draft is not None else None
    bank = suspects(p, q, p if before is None else before)
    start = max(len(output) - 2, 0)  # a penalty that last counted two tokens ago
    model = world.target(job.prompt + output)
    bank["frozen penalty"] = oracle.law(model, job.params, job.prompt, output[:start], frozenset())
    return bank


CHECKS = (Evidence(),)
