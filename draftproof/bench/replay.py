"""Decisions of `--k auto` once more, from their log: were they what the costs and the inputs say, and what would other
draft lengths have been expected to take on the same trace?

Knows the log of `length.goodput`; knows no engine and no clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from draftproof.cost import expected_by_position
from draftproof.length.goodput import Decision, Inputs, decide, goodput
from draftproof.length.profile import Profile, from_json
from draftproof.types import RequestError

RECORDED = "as recorded"
HINDSIGHT = "best in each step"
_NEAR = 1e-9  # what versions of the arithmetic may differ by
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Log:
    """`decisions` by the number of their line; `profiles` by the number that decisions name."""

    profiles: Mapping[int, Profile]
    decisions: Mapping[int, Decision]

    def costs(self, decision: Decision) -> Profile:
        return self.profiles[decision.inputs.costs]


class Difference(NamedTuple):
    """`what` is choice, why or goodputs."""

    line: int
    what: str
    logged: Any
    again: Any


class Policy(NamedTuple):
    """`seconds` that a token of a sequence is expected to take, and how many times faster than as recorded that is."""

    name: str
    seconds: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Replay:
    decisions: int
    differences: tuple[Difference, ...]
    policies: tuple[Policy, ...]

    @property
    def differing(self) -> int:
        """Decisions that are not what they should be."""
        return len({d.line for d in self.differences})


def read(path: Path) -> Log:
    """
    Raises:
        RequestError: it is no such log; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--replay {path} cannot be read: {error}") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise RequestError(f"--replay {path} is empty: give a log that generate --decisions wrote")
    profiles = {0: _parsed(path, *numbered[0], _profile, "the costs")}
    decisions = dict[int, Decision]()
    for n, line in numbered[1:]:
        found = _parsed(path, n, line, partial(_told, profiles), "a decision")
        if found is not None:
            decisions[n] = found
    if not decisions:
        raise RequestError(f"--replay {path} holds no decision: only an answer with --k auto writes them")
    return Log(profiles, decisions)


def _parsed(path: Path, number: int, line: str, parse: Callable[[Any], _T], what: str) -> _T:
    try:
        return parse(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"--replay {path}, line {number}: this is not {what} of a log ({error!r})") from error


def _told(profiles: dict[int, Profile], told: Mapping[str, Any]) -> Decision | None:
    """A decision under profiles that were told before it; None where the line tells a corrected profile."""
    if "profile" in told:
        profiles[_whole(told["costs"])] = _profile(told)
        return None
    decision = _decision(told)
    if decision.inputs.costs not in profiles:
        raise ValueError(f"costs {decision.inputs.costs} were not told before")
    return decision


def _profile(told: Mapping[str, Any]) -> Profile:
    profile = from_json(told["profile"])
    if not 0.0 < profile.plain(1) < math.inf:
        raise ValueError("a plain step takes no time")
    return profile


def _decision(told: Mapping[str, Any]) -> Decision:
    given = told["inputs"]
    chances, proposals = (tuple(_share(x) for x in given[name]) for name in ("chances", "proposals"))
    batch, costs = _whole(given["batch"]), _whole(given.get("costs", 0))
    held, probe, paced = tuple(map(_whole, given["held"])), bool(given["probe"]), bool(given.get("paced", False))
    inputs = Inputs(batch, chances, proposals, held, probe, costs, paced)
    goodputs = tuple(map(float, told["goodputs"]))
    if inputs.batch < 1 or len(chances) != len(proposals) or len(goodputs) != len(chances) + 1:
        raise ValueError("the numbers of positions do not fit each other")
    if not all(map(math.isfinite, goodputs)):
        raise ValueError("a goodput is not finite")
    return Decision(inputs, goodputs, _whole(told["choice"]), str(told["why"]))


def _share(value: Any) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{value} is not a share")
    return float(value)


def _whole(value: Any) -> int:
    if value != int(value) or value < 0:
        raise ValueError(f"{value} is not a whole number from 0")
    return int(value)


def replay(log: Log) -> Replay:
    """Every decision made anew, and policies compared by the profile and the recorded chances."""
    differences = tuple(d for n, told in log.decisions.items() for d in _differences(n, told, log.costs(told)))
    return Replay(len(log.decisions), differences, tuple(_policies(log)))


def _differences(line: int, told: Decision, profile: Profile) -> Iterator[Difference]:
    again = decide(profile, told.inputs)
    if not all(map(_near, told.goodputs, again.goodputs)):
        yield Difference(line, "goodputs", told.goodputs, again.goodputs)
    if told.choice != again.choice:
        yield Difference(line, "choice", told.choice, again.choice)
    if told.why != again.why:
        yield Difference(line, "why", told.why, again.why)


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_NEAR)


def _policies(log: Log) -> Iterator[Policy]:
    """The recorded choices, every fixed length, and what nobody can know beforehand.

    A decision weighs as many tokens as its choice was expected to bring: the text that it covers is the same then for
    every policy, however many steps they would need for it.
    """
    told = list(log.decisions.values())
    weights = [expected_by_position(d.inputs.chances[: d.choice]) for d in told]
    recorded = _seconds(log, told, [d.choice for d in told], weights)
    yield Policy(RECORDED, recorded, 1.0)
    for k in range(max(len(d.inputs.chances) for d in told) + 1):
        taken = _seconds(log, told, [k] * len(told), weights)
        yield Policy(f"k={k}", taken, recorded / taken)
    taken = _seconds(log, told, [_best(log.costs(d), d.inputs) for d in told], weights)
    yield Policy(HINDSIGHT, taken, recorded / taken)


def _best(profile: Profile, inputs: Inputs) -> int:
    return max(range(len(inputs.chances) + 1), key=lambda k: goodput(profile, inputs, k))


def _seconds(log: Log, told: Sequence[Decision], ks: Sequence[int], weights: Sequence[float]) -> float:
    each = (
        w / goodput(log.costs(d), d.inputs, min(k, len(d.inputs.chances)))
        for d, k, w in zip(told, ks, weights, strict=True)
    )
    return math.fsum(each) / math.fsum(weights)
