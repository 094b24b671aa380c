"""What a run is made of, and what it leaves: legs, entries, and values that survive a file.

Knows neither how a check runs nor what is concluded from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from draftproof.verify.contract import Check, EngineUnderTest, Result, Verdict, World

_LONG = 240  # characters of a note


class VerifyError(ValueError):
    """A plan, store or file of expectations that cannot be used; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One subject: an engine in one configuration on one world, and the checks it must stand.

    `essential` names (or patterns) the checks without which nothing is proved. None: all that the engine's abilities
    allow and that do not say `essential = False`. The engine is made when first needed, and again after it broke.
    """

    name: str
    engine: Callable[[], EngineUnderTest]
    world: World
    checks: tuple[Check, ...]
    essential: tuple[str, ...] | None = None


class State(StrEnum):
    RAN = "ran"
    SKIPPED = "skipped"  # the engine does not declare what the check needs
    BROKE = "broke"  # the engine or the check died, hung or answered garbage
    UNRUN = "not run"  # the run was interrupted before


@dataclass(frozen=True, slots=True)
class Entry:
    """A result and where it comes from. `drafted` samples were asked for with k > 0 and had `proposed` draft tokens."""

    leg: str
    result: Result
    state: State = State.RAN
    essential: bool = True
    statistical: bool = True
    drafted: int = 0
    proposed: int | None = None

    @property
    def key(self) -> str:
        return key(self.leg, self.result.name)


def key(leg: str, check: str) -> str:
    return f"{leg} / {check}"


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == p or fnmatchcase(name, p) for p in patterns)


def select(legs: Sequence[Leg], checks: Sequence[str] = (), names: Sequence[str] = ()) -> list[Leg]:
    """The legs and checks that match the patterns; no pattern keeps all. Legs without a check are left out."""
    kept = [leg for leg in legs if not names or matches(leg.name, names)]
    cut = [replace(leg, checks=tuple(c for c in leg.checks if not checks or matches(c.name, checks))) for leg in kept]
    return [leg for leg in cut if leg.checks]


def statistical(check: Check) -> bool:
    """Checks that only ever prove or hold may say `statistical = False`; they take no share of the budget."""
    return bool(getattr(check, "statistical", True))


def planned(legs: Sequence[Leg]) -> int:
    """How many checks share the error budget.

    Raises:
        VerifyError: two legs, or two checks of a leg, have one name.
    """
    names = [key(leg.name, c.name) for leg in legs for c in leg.checks]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise VerifyError(f"two checks are called {twice[0]!r}: give legs and checks names of their own")
    return sum(statistical(c) for leg in legs for c in leg.checks)


def essential(leg: Leg, check: Check, lacking: bool) -> bool:
    """Whether "exact" cannot be said without this check. `lacking`: the engine does not declare what it needs."""
    if leg.essential is not None:
        return matches(check.name, leg.essential)
    return not lacking and bool(getattr(check, "essential", True))


def fingerprint(legs: Sequence[Leg]) -> str:
    """Changes when any leg, world, check, claim or need does."""
    plan = [
        [leg.name, leg.world.name, leg.world.vocab, leg.essential and list(leg.essential)]
        + [[c.name, c.claim, sorted(c.needs), statistical(c), essential(leg, c, False)] for c in leg.checks]
        for leg in legs
    ]
    return hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """The value in JSON's types, so that a result is the same before and after a file."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    elif isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, Enum):
        value = value.value
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "replace").decode()  # half a surrogate pair has no place in a file


def readable(text: str) -> str:
    """One line of bearable length without control characters: what an engine says must not drive a terminal."""
    line = "".join(c if c.isprintable() else " " for c in text[: _LONG + 1]).strip()
    return line if len(line) <= _LONG else line[: _LONG - 1] + "…"


def entry_from_json(record: Mapping[str, Any]) -> Entry:
    told = {**record["result"], "verdict": Verdict(record["result"]["verdict"])}
    return Entry(**{**record, "state": State(record["state"]), "result": Result(**told)})
