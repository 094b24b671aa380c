"""How a planted fault or an honest variant becomes an engine. Knows no fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from draftproof.verify.contract import Ability, EngineUnderTest, Mutant, World
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.rules import Rules


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine that is not a mutant: it must survive everything, or cannot be tested at all.

    `drafts`: whether its draft tokens follow the law of the world's draft. If not, make the engine on the world, and
    give the checks the same world without a draft: there is no acceptance to be compared with.
    """

    name: str
    what: str
    make: Callable[[World], EngineUnderTest]
    drafts: bool = True


def built(
    world: World,
    name: str,
    kind: Callable[[World], Honest] = Honest,
    rules: tuple[str, ...] = (),
    parts: type[Rules] = Rules,
    can: frozenset[Ability] | None = None,
    looks_up: bool = False,
    shortens: bool = False,
) -> Honest:
    """An engine of that kind with what is given in place of the honest parts."""
    engine = kind(world)
    engine.name, engine.parts = name, parts()
    engine.rules, engine.can = rules or engine.rules, engine.can if can is None else can
    engine.looks_up, engine.shortens = engine.looks_up or looks_up, shortens
    return engine


def planted(
    name: str,
    what: str,
    check: str,
    kind: type[Honest] = Honest,
    *rules: str,
    parts: type[Rules] = Rules,
    can: frozenset[Ability] | None = None,
    world: str = "tabular",
) -> Mutant:
    """`rules`: those that the engine offers, so that a check spends its samples where the fault is."""
    make = partial(built, name=name, kind=kind, rules=rules or ("token",), parts=parts, can=can)
    return Mutant(name, what, check, make, world)


def variant(
    name: str,
    what: str,
    *rules: str,
    kind: type[Honest] = Honest,
    parts: type[Rules] = Rules,
    looks_up: bool = False,
    shortens: bool = False,
    drafts: bool = True,
) -> Variant:
    make = partial(built, name=name, kind=kind, rules=rules, parts=parts, looks_up=looks_up, shortens=shortens)
    return Variant(name, what, make, drafts and not looks_up)
