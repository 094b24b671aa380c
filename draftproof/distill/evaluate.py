"""What a head is worth: acceptance by position, tokens a step, and measured speed against plain decoding.

Plain and speculative decoding run on the same prompts in turn, in an order that is drawn; the speed-up is a paired
ratio with its interval. Knows the engine's public names. Knows nothing of training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from draftproof.bench.pair import per_token
from draftproof.bench.stats import Ratio, paired_ratio
from draftproof.engine import Engine
from draftproof.stats import Stats, summary
from draftproof.types import RequestError, SamplingParams, StepTrace


@dataclass(frozen=True, slots=True)
class Measured:
    """One temperature. `stats` are of the speculative runs; seconds are those of a step, `draft` part of `step`."""

    temperature: float
    stats: Stats
    plain: float
    step: float
    draft: float
    speedup: Ratio | None  # None if there were too few prompts to say

    @property
    def projected(self) -> float:
        """The speed-up that tokens a step and seconds a step make."""
        return self.stats.tokens_per_step * self.plain / self.step


def evaluate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    tokens: int = 64,
    seed: int = 1,
    said: Callable[[], None] = lambda: None,
) -> Measured:
    """Both ways over all prompts, `tokens` new tokens each. `said` hears of each prompt that is done.

    Raises:
        RequestError: no prompt has an answer of two steps.
    """
    order = random.Random(seed)
    params = SamplingParams(temperature=temperature, max_tokens=tokens, seed=seed)
    ways = (replace(params, k=0), params)
    steps: tuple[list[StepTrace], list[StepTrace]] = ([], [])
    seconds: list[tuple[float, float]] = []
    engine.generate(list(prompts[0]), params)  # warm-up
    for n, prompt in enumerate(prompts):
        runs: list[Sequence[StepTrace]] = [(), ()]
        for way in order.sample((0, 1), 2):
            runs[way] = engine.generate(list(prompt), replace(ways[way], seed=seed + n))[0].steps
            steps[way].extend(runs[way])
        if all(len([s for s in run if s.emitted]) > 1 for run in runs):
            seconds.append((per_token(runs[0]), per_token(runs[1])))
        said()
    if not seconds:
        raise RequestError("every answer ended at once: give other prompts")
    plain, stats = summary(steps[0]), summary(steps[1])
    ratio = paired_ratio([p for p, _ in seconds], [s for _, s in seconds]) if len(seconds) > 1 else None
    return Measured(
        temperature,
        stats,
        plain.seconds.total / plain.steps,
        stats.seconds.total / stats.steps,
        stats.seconds.draft / stats.steps,
        ratio,
    )
