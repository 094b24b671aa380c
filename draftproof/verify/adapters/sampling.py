"""What an engine is that can only sample: the rest of the contract, which nobody calls without the ability for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Job, RuleUnderTest, Sample

_WHY = "not among the abilities of this engine"


class OnlySamples:
    """To be derived from; `sample` is the engine's own."""

    context = 0

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        raise NotImplementedError(_WHY)

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        raise NotImplementedError(_WHY)

    def rule(self, name: str) -> RuleUnderTest:
        raise NotImplementedError(_WHY)

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        raise NotImplementedError(_WHY)

    def sample_tight(self, jobs: Sequence[Job]) -> list[Sample]:
        raise NotImplementedError(_WHY)
