"""The unit of every comparison: seconds a token of one request, prompt left out. Knows the engine and no statistics."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.engine import Engine
from draftproof.types import RequestError, SamplingParams, StepTrace


def seconds_a_token(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, prediction: Sequence[int] | None = None
) -> float:
    """Seconds a token from the first decode step on: texts of two ways may differ at a temperature above 0.

    Raises:
        RequestError: nothing was emitted behind the first step.
    """
    outputs = [e.output for e in engine.stream(list(prompt), params, prediction) if e.output is not None]
    return per_token(outputs[0].steps)


def per_token(steps: Sequence[StepTrace]) -> float:
    """As `seconds_a_token`, of a request that has run."""
    counted = [s for s in steps if s.emitted][1:]
    tokens = sum(len(s.emitted) for s in counted)
    if tokens == 0:
        raise RequestError("the answer is too short to compare: raise --max-tokens or change the prompt")
    return sum(s.seconds.total for s in counted) / tokens
