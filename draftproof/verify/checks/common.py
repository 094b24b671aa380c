"""What several checks need: prompts of a world, and a first look at samples for garbage."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.verify import oracle
from draftproof.verify.contract import EngineError, Job, Sample, World

Tokens = tuple[int, ...]
_NUMBERS = ((0, 1, 2), (3,), (2, 0, 2, 1, 3), (1, 1), (4, 2))  # word numbers of a few prompts, of different lengths


def prompts(world: World, count: int) -> list[Tokens]:
    """Prompts of different lengths and contents."""
    names = oracle.words(world)
    return [
        tuple(names[(w + n // len(_NUMBERS)) % len(names)] for w in _NUMBERS[n % len(_NUMBERS)]) for n in range(count)
    ]


def sound(jobs: Sequence[Job], samples: Sequence[Sample]) -> list[Sample]:
    """The samples, if they can be judged at all.

    Raises:
        EngineError: a sample is missing, says that it failed, or is empty without a reason.
    """
    if len(samples) != len(jobs):
        raise EngineError(f"the engine returned {len(samples)} samples for {len(jobs)} jobs")
    broken = next((s for s in samples if s.error is not None or s.finish == "error"), None)
    if broken is not None:
        raise EngineError(f"the engine reports an error: {broken.error or 'without a reason'}")
    if any(not s.tokens and s.finish == "length" for s in samples):
        raise EngineError("the engine returned no token at all, and says that the length limit was the reason")
    return list(samples)
