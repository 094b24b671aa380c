"""What is audited: an engine in a mode, what that mode promises, and the legs that put it to the test.

Knows which legs there are, not how they run or what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftproof.verify import foreign, suite
from draftproof.verify.adapters import registry
from draftproof.verify.adapters.registry import Promise
from draftproof.verify.plan import Leg, VerifyError, matches

OURS = "draftproof"
_OWN = {"draft": ("a draft model, all exact rules", "model"), "lookup": ("n-gram lookup, all exact rules", "ngram")}


@dataclass(frozen=True, slots=True)
class Case:
    """An engine in a mode. `off` are the same checks on the same engine without speculation; () where it has no such
    mode of its own. `command` says how to run it alone."""

    engine: str
    mode: str
    what: str
    promise: Promise
    legs: tuple[Leg, ...]
    off: tuple[Leg, ...]
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.mode}"


def cases(engine: str, modes: Sequence[str], home: Path, toys: Path, options: Mapping[str, str]) -> list[Case]:
    """One case a mode; no modes means all.

    Raises:
        VerifyError: no such engine or mode, or the engine is not installed.
    """
    if engine == OURS:
        return [_own(mode, toys) for mode in modes or tuple(_OWN)]
    return [_foreign(engine, mode, home, toys, options) for mode in modes or tuple(registry.adapter(engine).modes)]


def _foreign(engine: str, mode: str, home: Path, toys: Path, options: Mapping[str, str]) -> Case:
    wish = foreign.Wish(engine, home, toys, (mode,), options=options)
    legs = tuple(foreign.legs(wish))
    told = registry.adapter(engine).modes
    plain = next(name for name, other in told.items() if other.promise is Promise.PLAIN)
    off = tuple(replace(leg, checks=legs[0].checks) for leg in foreign.legs(replace(wish, modes=(plain,))))
    chosen = [word for name, value in options.items() for word in ("--engine-option", f"{name}={value}")]
    command = ("--engine", engine, "--launch", "--mode", mode, *chosen)
    return Case(engine, mode, told[mode].what, told[mode].promise, legs, () if mode == plain else off, command)


def _own(mode: str, toys: Path) -> Case:
    if mode not in _OWN:
        raise VerifyError(f"{OURS} has no mode {mode!r}: give one of {', '.join(_OWN)}")
    what, draft = _OWN[mode]
    legs = suite.legs(suite.Options(drafts=(draft,), rules=suite.EXACT_RULES, folder=toys))
    return Case(OURS, mode, what, Promise.EXACT, tuple(legs), (), ("--draft", draft))


def narrowed(legs: Sequence[Leg], checks: Sequence[str], word: str) -> list[Leg]:
    """The legs with these checks alone, under names of their own."""
    cut = [replace(leg, checks=tuple(c for c in leg.checks if matches(c.name, checks))) for leg in legs]
    return [replace(leg, name=f"{leg.name}, {word}") for leg in cut if leg.checks]
