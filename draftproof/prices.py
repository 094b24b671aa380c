"""What a draft token must bring to be worth its cost, and when to stop drafting before it is drawn.

Prices are in tokens: what a step would bring in the seconds that a row or a pass takes. A draft goes on while its next
token is likely enough to stand. That is decided before the token is drawn, from what is known by then, so the output
law is untouched (predictable stopping). How likely a token is to stand is taken from the draft's confidence, the
largest probability before temperature and filters; for heads trained on the target's law it is close (LOG.md).
Knows no clock and no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftproof import arrays
from draftproof.types import Floats

_HOPE = 0.4  # chance that the next token stands, before the pass that says more


class Prices(NamedTuple):
    """rows[n]: of verifying n draft tokens, n = 0 .. the most that may be drafted. A draft of n passes costs
    `begin + n * each`; where that is infinite, what is looked up is all that may be proposed."""

    rows: tuple[float, ...]
    begin: float = 0.0
    each: float = 0.0

    @property
    def pass_pays(self) -> bool:
        return math.isfinite(self.begin)

    def row(self, n: int) -> float:
        """Of the n-th draft token's verification; more than can be paid where there is no room for it."""
        return self.rows[n] - self.rows[n - 1] if n < len(self.rows) else math.inf

    def drafted(self, chance: float) -> float:
        """Most tokens that a drawn draft can gain, less its price, if each token stands with this chance."""
        drafts = _gains([chance] * (len(self.rows) - 1))
        return max((g - self.rows[n] - self.begin - n * self.each for n, g in enumerate(drafts, 1)), default=0.0)

    def looked_up(self, chances: Sequence[float]) -> tuple[int, float]:
        """The best length of a draft that needs no passes, and what it gains; (0, 0.0) if none pays."""
        gains = [g - row for g, row in zip(_gains(chances), self.rows[1:], strict=False)]
        best = max(range(len(gains)), key=gains.__getitem__, default=0)
        return (best + 1, gains[best]) if gains and gains[best] > 0.0 else (0, 0.0)


def _gains(chances: Iterable[float]) -> Iterable[float]:
    """Expected accepted tokens of drafts of 1, 2, ... tokens."""
    standing, total = 1.0, 0.0
    for chance in chances:
        standing *= chance
        total += standing
        yield total


@dataclass(slots=True)
class Pace:
    """One draft on its way. Without prices it always goes on."""

    prices: Prices | None
    standing: float = 1.0  # chance that all tokens so far stand
    drawn: int = 0

    def wants_a_pass(self) -> bool:
        """Whether a pass for the next token is worth making."""
        if self.prices is None:
            return True
        return self.standing * _HOPE > self.prices.each + self.prices.row(self.drawn + 1)

    def takes(self, logits: Floats) -> bool:
        """Whether the next token, which has these logits, is worth a row; if so it counts as drawn."""
        if self.prices is not None:
            self.standing *= confidence(logits)
            if not self.standing > self.prices.row(self.drawn + 1):
                return False
        self.drawn += 1
        return True


def confidence(logits: Floats) -> float:
    """The largest probability. logits: [tokens], finite."""
    return 1.0 / float(arrays.exponentiate(logits - logits.max()).sum())
