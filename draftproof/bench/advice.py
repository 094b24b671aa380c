"""What may be said of draft lengths after some groups, and whether more groups could change it.

Every look at the data has its share of one error, so that all that is said of a batch size holds together. Knows
seconds by group; knows no clock, model or record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from draftproof.bench.plan import PLAIN, Config
from draftproof.bench.stats import Ratio, paired_ratio

ERROR = 0.05  # of all that is said of a batch size
MOST_LOOKS = 5
TIE = 1.02  # a difference of no more than 2 % decides nothing
DECISION = (
    "The unit is a request's seconds a token behind its first chunk; ratios are of sums over prompts, paired by the "
    "groups that were measured side by side, with Student intervals. The error of 5 % for a batch size is split evenly "
    "over the planned looks and, within a look, over all comparisons between its configurations. A configuration pays "
    "if the low end of its ratio to plain decoding is above 1, and is out if the high end is at most 1.02. Advice: the "
    "fastest measured configuration, if it pays and is not out; else do not speculate. Settled, so that no more is "
    "measured: every configuration is out; or the fastest one pays, is not out, and no other one can be more than 2 % "
    "faster than it."
)


class Outcome(StrEnum):
    SPECULATE = "speculate"
    PLAIN = "do not speculate"
    FEW = "too few to say"


@dataclass(frozen=True, slots=True)
class Looks:
    """When to look: after so many groups; `error` of each comparison at each look."""

    groups: tuple[int, ...]
    error: float

    @property
    def least(self) -> int:
        return least(self.error)


@dataclass(frozen=True, slots=True)
class Against:
    """How many times faster a configuration is than `base`."""

    config: str
    base: str
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Advice:
    """`best` is the fastest configuration that was measured, `ratio` its own to plain decoding: an interval from 0 to
    infinity where there are too few groups. `rivals` are the others against it."""

    batch: int
    outcome: Outcome
    best: Config
    ratio: Ratio
    groups: int
    settled: bool
    why: str
    against: tuple[Against, ...] = ()
    rivals: tuple[Against, ...] = ()


def least(error: float) -> int:
    """Groups that it takes: fewer all fall on one side more often than `error` where nothing differs."""
    return math.ceil(math.log2(2.0 / error))


def looks(groups: int, ways: int) -> Looks:
    """As many as there are groups enough for. ways: speculative configurations."""
    comparisons = ways * (ways + 1) // 2
    fitting = [n for n in range(1, MOST_LOOKS + 1) if groups // n >= least(ERROR / n / comparisons)]
    count = max(fitting, default=1)
    return Looks(tuple(groups * (i + 1) // count for i in range(count)), ERROR / count / comparisons)


def advise(batch: int, configs: Sequence[Config], seconds: Mapping[str, Sequence[float]], looks: Looks) -> Advice:
    """
    Args:
        configs: the speculative ones, the most promising first.
        seconds: of each configuration and of plain decoding, group by group.
    """
    groups = len(seconds[PLAIN])
    if groups < looks.least:
        why = f"{groups} groups were measured, {looks.least} are needed"
        return Advice(batch, Outcome.FEW, configs[0], Ratio(1.0, 0.0, math.inf), groups, False, why)
    against = {c.name: _against(c.name, PLAIN, seconds, looks.error) for c in configs}
    best = max(configs, key=lambda c: against[c.name].ratio.ratio)
    rivals = tuple(_against(c.name, best.name, seconds, looks.error) for c in configs if c.name != best.name)
    outcome, settled, why = _judged(against, best.name, rivals)
    told = tuple(against.values())
    return Advice(batch, outcome, best, against[best.name].ratio, groups, settled, why, told, rivals)


def _against(config: str, base: str, seconds: Mapping[str, Sequence[float]], error: float) -> Against:
    return Against(config, base, paired_ratio(seconds[base], seconds[config], error))


def _judged(against: Mapping[str, Against], best: str, rivals: Sequence[Against]) -> tuple[Outcome, bool, str]:
    if all(_out(a) for a in against.values()):
        return Outcome.PLAIN, True, "nothing measured can be more than 2 % faster than plain decoding"
    if _out(against[best]) or against[best].ratio.low <= 1.0:
        return (
            Outcome.PLAIN,
            False,
            "nothing measured was shown to be faster than plain decoding to an extent that matters",
        )
    if all(_out(r) for r in rivals):
        return Outcome.SPECULATE, True, f"{best} is faster than plain decoding, and none can be more than 2 % faster"
    open_ = " and ".join(r.config for r in rivals if not _out(r))
    return Outcome.SPECULATE, False, f"{best} is faster than plain decoding; {open_} may be more than 2 % faster"


def _out(told: Against) -> bool:
    return told.ratio.high <= TIE
