"""Black box: nothing but token lists. Does speculation change the law of short outputs, by a two-sample test?

For engines without an exact oracle. Comes with an A/A control, which must not differ, and a known-bad one, which must.
"""

from __future__ import annotations

from dataclasses import replace

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Verdict, World
from draftproof.verify.twosample import black_box

_COUNT = {"quick": 1000, "default": 2000, "deep": 6000}
_BAD_TEMPERATURE = 0.4


class TwoSample(BaseCheck):
    name = "blackbox/two-sample"
    claim = "short outputs with and without speculation are alike; controls: plain against plain, and a colder target"
    needs = frozenset({Ability.PLAIN})
    statistical = True
    essential = False

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        names = oracle.words(world)
        prompt, count = (names[0], names[2]), _COUNT[budget.level]

        def draw(stream: int, **more: object) -> list[tuple[int, ...]]:
            params = replace(Params(max_tokens=4, k=3, rule=engine.rules[0]), **more)  # type: ignore[arg-type]
            jobs = [Job(prompt, params, seed=(budget.seed * 31 + stream) * 10**7 + n) for n in range(count)]
            return [s.tokens for s in sound(jobs, engine.sample(jobs))]

        bad = draw(3, k=0, temperature=_BAD_TEMPERATURE)
        outcome = black_box(draw(0, k=0), draw(1), draw(2, k=0), bad, alpha)
        if outcome.verdict is Verdict.FAILS:
            return self.fails(2 * count, {"prompt": prompt, "distance": outcome.statistic}, outcome.p_value)
        if outcome.verdict is Verdict.UNTESTED:
            return self.untested("a control failed: the engine differs from itself, or the known difference was missed")
        note = f"{outcome.method}; A/A p = {outcome.aa_p_value:.2g}, known bad p = {outcome.bad_p_value:.2g}"
        return replace(self.holds(2 * count, note), p_value=outcome.p_value, power=outcome.power)


CHECKS = (TwoSample(),)
