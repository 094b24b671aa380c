"""Costs of a profile, corrected by the steps that were run: half a minute of measuring on a machine that others use is
off by some per cent from point to point, and by more where the machine was slower then than it is now.

The logarithm of a pass's seconds over the profile's is taken as `speed + own + noise`: the machine's speed now, the
same for all and drifting, and what the profile got wrong at that number of rows. Both are followed by a Kalman filter
(Kalman 1960) that takes them as independent. Drafting has a drifting speed of its own; the rest goes with the
machine's. Knows no clock: whoever runs a step tells its seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from draftproof.length.profile import Line, Profile, on_line

# standard deviations of logarithms
_NOISE, _DRIFT = 0.1, 0.005  # of one pass, and of the machine's speed from pass to pass
_PROFILE, _SPEED = 0.06, 0.3  # of a point of the profile, and of the speed since it was measured
_CLIP = 0.3  # a pass that was interrupted says no more than this
_EVERY = 16  # steps between two corrections


class Step(NamedTuple):
    """Seconds that a step took: the target's pass of `rows` in `verify`, and drafting for `batch` sequences in `draft`,
    in `k` passes, or of `k` tokens each on average if it needs none."""

    rows: int
    verify: float
    batch: int = 1
    k: float = 0.0
    draft: float = 0.0


@dataclass(slots=True)
class _Belief:
    mean: float
    variance: float

    def move(self, surprise: float, total: float) -> None:
        """`total`: variance of the surprise."""
        gain = self.variance / total
        self.mean += gain * surprise
        self.variance *= 1.0 - gain


class LearnedCosts:
    """`profile` is the corrected one; `number` counts corrections, 0 is the profile as it was measured."""

    def __init__(self, measured: Profile) -> None:
        self.measured = self.profile = measured
        self.number = 0
        self._speed, self._drafting = _Belief(0.0, _SPEED**2), _Belief(0.0, _SPEED**2)
        self._own = [_Belief(0.0, _PROFILE**2) for _ in measured.verify]
        self._noted = 0

    def note(self, step: Step) -> bool:
        """Whether `profile` has changed."""
        self._learn(
            step.verify, on_line(self.measured.verify, step.rows), self._speed, self._own[self._nearest(step.rows)]
        )
        if step.k:
            self._learn(step.draft, self.measured.parts(step.batch, step.k, 0.0)[1], self._drafting)
        self._noted += 1
        if self._noted % _EVERY:
            return False
        self.profile, self.number = self._corrected(), self.number + 1
        return True

    @staticmethod
    def _learn(seconds: float, expected: float, speed: _Belief, own: _Belief | None = None) -> None:
        if seconds <= 0.0 or expected <= 0.0:  # below the clock's resolution
            return
        beliefs = [speed] if own is None else [speed, own]
        surprise = math.log(seconds / expected) - sum(b.mean for b in beliefs)
        speed.variance += _DRIFT**2
        total = sum(b.variance for b in beliefs) + _NOISE**2
        for belief in beliefs:
            belief.move(max(min(surprise, _CLIP), -_CLIP), total)

    def _corrected(self) -> Profile:
        speed, drafting = math.exp(self._speed.mean), math.exp(self._drafting.mean)
        return replace(
            self.measured,
            verify=tuple(
                (rows, seconds * speed * math.exp(own.mean))
                for (rows, seconds), own in zip(self.measured.verify, self._own, strict=True)
            ),
            draft=tuple((b, Line(x * drafting, y * drafting)) for b, (x, y) in self.measured.draft),
            other=tuple((b, Line(x * speed, y * speed)) for b, (x, y) in self.measured.other),
        )

    def _nearest(self, rows: int) -> int:
        points = self.measured.verify
        return min(range(len(points)), key=lambda n: abs(points[n][0] - rows))
