"""Costs of passes, corrected by the passes that were run: a profile of half a minute on a busy machine is off by some
per cent from point to point, which decides between neighbouring draft lengths.

The logarithm of a pass's seconds over the profile's is taken as `speed + own + noise`: the machine's speed now, the
same for all and drifting, and what the profile got wrong at that number of rows. Both are followed by a Kalman filter
(Kalman 1960) that takes them as independent. Only `own` changes decisions. Knows no clock: whoever runs a pass tells
its seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from draftproof.length.profile import Profile, on_line

# standard deviations of logarithms
_NOISE, _DRIFT = 0.1, 0.005  # of one pass, and of the machine's speed from pass to pass
_PROFILE, _SPEED = 0.06, 0.3  # of a point of the profile, and of the speed since it was measured
_CLIP = 0.3  # a pass that was interrupted says no more than this
_EVERY = 16  # passes between two corrections


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
        self._speed = _Belief(0.0, _SPEED**2)
        self._own = [_Belief(0.0, _PROFILE**2) for _ in measured.verify]
        self._noted = 0

    def note(self, rows: int, seconds: float) -> bool:
        """Whether `profile` has changed.

        Args:
            rows, seconds: of one pass of the target.
        """
        if seconds <= 0.0:  # below the clock's resolution
            return False
        told = math.log(seconds / on_line(self.measured.verify, rows))
        own = self._own[self._nearest(rows)]
        surprise = max(min(told - self._speed.mean - own.mean, _CLIP), -_CLIP)
        self._speed.variance += _DRIFT**2
        total = self._speed.variance + own.variance + _NOISE**2
        self._speed.move(surprise, total)
        own.move(surprise, total)
        self._noted += 1
        if self._noted % _EVERY:
            return False
        points = zip(self.measured.verify, self._own, strict=True)
        self.profile = replace(self.measured, verify=tuple((r, s * math.exp(own.mean)) for (r, s), own in points))
        self.number += 1
        return True

    def _nearest(self, rows: int) -> int:
        points = self.measured.verify
        return min(range(len(points)), key=lambda n: abs(points[n][0] - rows))
