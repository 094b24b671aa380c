"""Acceptance against its own law (I2): the one place where a wrong draft shows, since the output hides it.

Knows, of each rule, only the probability that the first draft token of a step is accepted; from `oracle.acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import Tokens, prompts, sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Sample, World
from draftproof.verify.stats import bernoulli_sum_test, detectable_bias

_COUNT = {"quick": 1_500, "default": 12_000, "deep": 60_000}
_KNOWN = ("token", "block", "sampled", "coupled")
_STEPS = 3  # steps of a sample that are looked at: state that goes stale shows from the second on


class AcceptanceCounts(BaseCheck):
    name = "acceptance/counts"
    claim = "the first draft token of a step is accepted as often as p and q say, in early and in later steps"
    needs = frozenset({Ability.STEPS})
    statistical = True

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        rules = [r for r in engine.rules if r in _KNOWN]
        if world.draft is None or not rules:
            return self.untested("the draft's law is not known: acceptance has no law to be compared with")
        share = alpha / (len(rules) * _STEPS)
        lowest, count, seen = 1.0, _COUNT[budget.level], 0
        expected_seen: list[tuple[str, float, float, int]] = []
        for rule in rules:
            accepted = _observe(engine, world, rule, count, budget.seed)
            for step, pairs in enumerate(accepted):
                if not pairs:
                    return self.untested(f"rule {rule or 'default'}: nothing was proposed in step {step + 1}")
                hits, probs = sum(a for a, _ in pairs), [p for _, p in pairs]
                p_value, seen = bernoulli_sum_test(hits, probs), seen + len(pairs)
                lowest = min(lowest, p_value)
                expected_seen.append(
                    (str(step + 1) if step else rule, sum(probs) / len(probs), hits / len(pairs), len(pairs))
                )
                if p_value <= share:
                    wrong = {
                        "rule": rule,
                        "step": step + 1,
                        "expected": sum(probs) / len(probs),
                        "seen": hits / len(pairs),
                    }
                    return self.fails(
                        seen, {**wrong, "samples": len(pairs), "k": 1}, p_value, {"acceptance": _plot(expected_seen)}
                    )
        bias = detectable_bias([0.5] * count, share, budget.power)
        result = self.holds(seen, f"a bias of {bias:.3f} would be seen", {"acceptance": _plot(expected_seen)})
        return replace(result, p_value=min(1.0, lowest * len(rules) * _STEPS), detectable_tv=bias, power=budget.power)


def _observe(engine: EngineUnderTest, world: World, rule: str, count: int, seed: int) -> list[list[tuple[bool, float]]]:
    """For each of the first steps: (accepted, its probability) of the samples that reached it with a proposal."""
    params, some = Params(max_tokens=2 * _STEPS, k=1, rule=rule), prompts(world, 4)
    jobs = [Job(some[n % len(some)], params, seed=seed * 1_000_003 + n) for n in range(count)]
    chances: dict[tuple[Tokens, Tokens], float] = {}
    found: list[list[tuple[bool, float]]] = [[] for _ in range(_STEPS)]
    for start in range(0, count, 1000):
        part = jobs[start : start + 1000]
        for job, sample in zip(part, sound(part, engine.sample(part)), strict=True):
            _add(found, world, job, sample, chances)
    return found


def _add(
    found: Sequence[list[tuple[bool, float]]],
    world: World,
    job: Job,
    sample: Sample,
    chances: dict[tuple[Tokens, Tokens], float],
) -> None:
    place = 0
    for step, count in zip(range(_STEPS), sample.steps or (), strict=False):
        if count.proposed > 0:
            at = (job.prompt, sample.tokens[:place])
            if at not in chances:
                chances[at] = oracle.acceptance(world, *at, job.params, job.params.rule)
            found[step].append((count.accepted > 0, chances[at]))
        place += count.accepted + 1


def _plot(rows: Sequence[tuple[str, float, float, int]]) -> dict[str, object]:
    names, expected, seen, n = zip(*rows, strict=True)
    return {"positions": list(names), "expected": list(expected), "seen": list(seen), "n": list(n)}


CHECKS = (AcceptanceCounts(),)
