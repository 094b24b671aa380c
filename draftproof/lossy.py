"""Rules that change the law: separate algorithms under their own names, never the default, each with the TV it causes.

A lossy rule is asked for by name with its parameter ("lenience:1.5"). It answers the same questions as an exact rule,
and one more: how far the law of the token that it emits lies from the target's, given the prefix. That distance is
computed from p and q, not estimated.

Sources: lenience, Leviathan et al. 2022, appendix A.5; typical acceptance, Cai et al. 2024 ("Medusa", section 2.3.1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftproof.accept import ProposerError, Rows, claimed, draw, excess
from draftproof.noise import Noise, Purpose
from draftproof.types import Draft, Kind, Law, RequestError, Verdict

Dense = NDArray[np.float64]


class LossyRule(ABC):
    """Accept token x with probability `accepted(p, q)[x] / q(x)`; after a rejection draw from `fallback(p, q)`."""

    name: ClassVar[str]

    def draw(self, law: Law, noise: Noise, offset: int) -> int:
        return draw(law, noise.uniform(offset, Purpose.DRAFT))

    @abstractmethod
    def accepted(self, p: Dense, q: Dense) -> Dense:
        """Mass of each token that is proposed and accepted, at most q. Shape [vocab]."""

    @abstractmethod
    def fallback(self, p: Law, q: Law) -> Law: ...

    def verdict(self, rows: Rows, draft: Draft, noise: Noise) -> Verdict:
        if draft.parents:
            raise ProposerError(f"a tree was drafted, but the lossy rule {self.name!r} judges only chains")
        k = len(draft.tokens)
        for i, x in enumerate(draft.tokens):
            q = draft.laws[i]
            mass = float(self.accepted(rows[i].dense(), q.dense())[x])
            if not noise.uniform(i, Purpose.ACCEPT) * claimed(draft, i) < mass:
                token = draw(self.fallback(rows[i], q), noise.uniform(i, Purpose.NEXT))
                return Verdict(i, token, Kind.RESIDUAL)
        return Verdict(k, draw(rows[k], noise.uniform(k, Purpose.NEXT)), Kind.BONUS)

    def law(self, p: Law, q: Law) -> Dense:
        """The law of the token that comes out at one position. Shape [vocab]."""
        kept = self.accepted(p.dense(), q.dense())
        return kept + max(1.0 - float(kept.sum()), 0.0) * self.fallback(p, q).dense()

    def tv(self, rows: Rows, draft: Draft, verdict: Verdict) -> float:
        """Mean, over the positions that were judged, of the exact TV between the emitted law and p."""
        judged = range(min(verdict.accepted + 1, len(draft.tokens)))
        gaps = [0.5 * float(np.abs(self.law(rows[i], draft.laws[i]) - rows[i].dense()).sum()) for i in judged]
        return sum(gaps) / len(gaps) if gaps else 0.0


@dataclass(frozen=True, slots=True)
class Lenience(LossyRule):
    """Accept with min(1, lenience * p / q); 1 would be the exact token rule."""

    lenience: float
    name: ClassVar[str] = "lenience"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lenience) and self.lenience > 1):
            raise RequestError(f"lenience must be a number above 1, got {self.lenience} (1 is the exact rule: 'token')")

    def accepted(self, p: Dense, q: Dense) -> Dense:
        return np.minimum(q, self.lenience * p)

    def fallback(self, p: Law, q: Law) -> Law:
        weights = excess(p, q, 1.0)
        return Law(p.vocab, p.ids, weights) if weights.any() else p


@dataclass(frozen=True, slots=True)
class Typical(LossyRule):
    """Accept iff p(x) > min(epsilon, delta * exp(-entropy of p)), whatever q says; otherwise draw from p."""

    epsilon: float
    delta: float
    name: ClassVar[str] = "typical"

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < 1 and 0 < self.delta < 1):
            raise RequestError(f"typical needs epsilon and delta in (0, 1), got {self.epsilon} and {self.delta}")

    def accepted(self, p: Dense, q: Dense) -> Dense:
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -float(np.nansum(p * np.log(p)))
        return np.where(p > min(self.epsilon, self.delta * math.exp(-entropy)), q, 0.0)

    def fallback(self, p: Law, q: Law) -> Law:
        del q
        return p


def _typical(text: str) -> LossyRule:
    epsilon, _, delta = text.partition(",")
    return Typical(float(epsilon), float(delta) if delta else math.sqrt(float(epsilon)))


LOSSY: Mapping[str, Callable[[str], LossyRule]] = MappingProxyType(
    {"lenience": lambda text: Lenience(float(text)), "typical": _typical}
)


_EXAMPLES = {"lenience": "lenience:1.5", "typical": "typical:0.09"}


def parse(rule: str) -> LossyRule | None:
    """The lossy rule of that name with its parameter, "lenience:1.5" or "typical:0.09"; None if there is none.

    Raises:
        RequestError: the name is right and the parameter is not.
    """
    name, _, text = rule.partition(":")
    if name not in LOSSY:
        return None
    try:
        return LOSSY[name](text)
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"rule={rule!r}: write the parameter as a number, as in {_EXAMPLES[name]}") from error
