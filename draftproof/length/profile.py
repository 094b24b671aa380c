"""What a step costs on one machine: seconds of verification by rows, of drafting and of the rest by batch and length.

Measured by `profiling.py`; here is only what follows from the numbers. Between measured points costs are straight
lines, beyond the last one they go on as they ended. Knows no clock, no model and no acceptance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

Point = tuple[float, float]


class Line(NamedTuple):
    """Seconds of a step: `base`, and `each` more for every token of draft length."""

    base: float
    each: float

    def at(self, k: float) -> float:
        return self.base + self.each * k


@dataclass(frozen=True, slots=True)
class Profile:
    """`verify`: (rows of a pass, seconds), rows rising. `draft` (of steps that draft) and `other`: by sequences a step.

    min_rows: fewest rows that a sequence takes, drafts or none.
    """

    verify: tuple[Point, ...]
    draft: tuple[tuple[int, Line], ...]
    other: tuple[tuple[int, Line], ...]
    min_rows: int = 1

    def seconds(self, batch: int, k: int, proposed: float) -> float:
        """Of a step of `batch` sequences that may each draft k tokens and on average draft `proposed`."""
        return sum(self.parts(batch, k, proposed))

    def parts(self, batch: int, k: float, proposed: float) -> tuple[float, float, float]:
        """The same as seconds of verification, drafting and the rest."""
        draft = self.draft_line(batch).at(k) if k else 0.0
        return self.verified(batch, proposed), draft, self.other_line(batch).at(k)

    def draft_line(self, batch: int) -> Line:
        return _line_at(self.draft, batch)

    def other_line(self, batch: int) -> Line:
        return _line_at(self.other, batch)

    def verified(self, batch: int, proposed: float) -> float:
        """Seconds of verification alone."""
        return on_line(self.verify, batch * max(1.0 + proposed, self.min_rows))

    def proposed(self, proposals: Sequence[float]) -> float:
        """What counts as proposed on average where `proposals[i]` of the steps propose more than i tokens: those that
        propose less than fills the fewest rows cost as much as if they did, so the mean number would be too low."""
        spare = self.min_rows - 1
        return spare + sum(proposals[spare:])

    def plain(self, batch: int) -> float:
        return self.seconds(batch, 0, 0.0)

    def row_worth(self, batch: int, nodes: int) -> float:
        """The chance of standing from which on a further row pays, with `nodes` rows a sequence: what it adds to a
        step, in plain steps."""
        first, last = batch * self.min_rows, batch * (1 + nodes)
        if last <= first:
            return 0.0
        rise = on_line(self.verify, last) - on_line(self.verify, first)
        return max(rise * batch / (last - first) / self.plain(batch), 0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "verify": [list(p) for p in self.verify],
            "draft": [[b, *line] for b, line in self.draft],
            "other": [[b, *line] for b, line in self.other],
            "min_rows": self.min_rows,
        }


def from_json(told: Mapping[str, Any]) -> Profile:
    """Raises: ValueError, KeyError or TypeError if it is not what `as_json` gives."""
    profile = Profile(
        tuple((float(r), float(s)) for r, s in told["verify"]),
        tuple((int(b), Line(float(x), float(y))) for b, x, y in told["draft"]),
        tuple((int(b), Line(float(x), float(y))) for b, x, y in told["other"]),
        int(told["min_rows"]),
    )
    if not (profile.verify and profile.draft and profile.other):
        raise ValueError("a profile needs points of every part")
    return profile


def _line_at(lines: Sequence[tuple[int, Line]], batch: int) -> Line:
    return Line(
        on_line([(b, line.base) for b, line in lines], batch), on_line([(b, line.each) for b, line in lines], batch)
    )


def on_line(points: Sequence[Point], x: float) -> float:
    """Straight lines through points whose first numbers rise; left of the first point as there."""
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    i = min(bisect_right(points, x, key=itemgetter(0)), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
