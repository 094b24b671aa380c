"""How drafts fared, by position, with older steps counting less. Knows no cost and no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_MEMORY = 0.97  # what a step still counts for when the next one has come
_RISE = 0.2  # seen with a head and with look-ups: .44 .47 .61 .69, and .35 .47 .54
GUESS = 4.0  # steps that a prior which nobody has seen counts for


@dataclass(slots=True)
class Tally:
    """`seen` steps, of which `share` had it; both fade."""

    seen: float = 0.0
    had: float = 0.0

    def note(self, had: bool) -> None:
        self.seen = self.seen * _MEMORY + 1.0
        self.had = self.had * _MEMORY + had

    def share(self, prior: float, weight: float) -> float:
        """As if `weight` steps had had it as often as `prior` says."""
        return (self.had + weight * prior) / (self.seen + weight)


@dataclass(slots=True)
class Record:
    """`stood[i]`: of the steps whose first i draft tokens stood, those whose next one stood as well, be it that it fell
    or that none was proposed. `given[i]`: of the steps that asked for more than i tokens, those that got them."""

    stood: list[Tally] = field(default_factory=list)
    given: list[Tally] = field(default_factory=list)

    def note(self, asked: int, proposed: int, accepted: int) -> None:
        while len(self.stood) < asked:
            self.stood.append(Tally())
            self.given.append(Tally())
        for i in range(asked):
            self.given[i].note(proposed > i)
            if accepted >= i:
                self.stood[i].note(accepted > i)

    def chances(self, most: int, prior: Sequence[float], weight: float = GUESS) -> list[float]:
        """That token i + 1 stands given that those before it did; see `_shares` for the prior.

        A draft that began well mostly goes on: an unseen position is taken to be a little better than the one before.
        """
        return _shares(self.stood, most, prior, weight, _RISE)

    def proposals(self, most: int, prior: Sequence[float], weight: float = GUESS) -> list[float]:
        """That a step which asks for more than i tokens gets them."""
        return _shares(self.given, most, prior, weight, 0.0)


def begun(chances: Sequence[float], proposals: Sequence[float], steps: float) -> Record:
    """As if `steps` steps had shown this already; it fades as steps come."""
    return Record([Tally(steps, steps * p) for p in chances], [Tally(steps, steps * p) for p in proposals])


def _shares(tallies: Sequence[Tally], most: int, prior: Sequence[float], weight: float, rise: float) -> list[float]:
    """Where little was seen, `prior` for the first positions, and behind its end what the position before shows, nearer
    to 1 by a share of `rise`."""
    found: list[float] = []
    for i in range(most):
        expected = prior[i] if i < len(prior) else found[-1] + rise * (1.0 - found[-1])
        found.append(tallies[i].share(expected, weight) if i < len(tallies) else expected)
    return found
