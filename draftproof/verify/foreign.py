"""Which checks run on engines that are not ours: a leg a mode, on toy checkpoints with exact laws or on any model.

Knows adapters by their names alone. Which of the checks can run is settled by what the started engine declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from draftproof.verify import toy
from draftproof.verify.adapters.registry import Adapter, Drafting, Form, Promise, Setup, adapter, started
from draftproof.verify.checks import acceptance, bitwise, blackbox, ends, law
from draftproof.verify.contract import Check, Floats, World
from draftproof.verify.plan import Leg, VerifyError
from draftproof.verify.toy_model import Toy


class AcceptanceIfKnown(acceptance.AcceptanceCounts):
    """Of an engine that draws drafts by a rule whose acceptance has a formula; others cannot be tested by it."""

    essential = False


FOREIGN_CHECKS: tuple[Check, ...] = (
    law.LawTemperature(),
    law.LawBlock(),
    *law.CHECKS,
    law.LawRepetition(),
    AcceptanceIfKnown(),
    *bitwise.CHECKS,
    ends.Pairs(),
    ends.Books(),
)
CONTROL_CHECKS: tuple[Check, ...] = (law.LawTemperature(), law.LawBlock(), law.LawJoint(), law.LawFilters())
PUBLIC_CHECKS: tuple[Check, ...] = (law.LawTemperature(), law.LawPublic(), blackbox.TwoSample())
UNKNOWN_CHECKS: tuple[Check, ...] = (blackbox.TwoSample(), ends.Pairs(), *bitwise.CHECKS)
_PUBLIC = ("openai",)  # adapters that send public fields alone
_VOCAB, _SPECIAL = 1 << 16, 1000  # ids of an unknown vocabulary: some are taken to be there, the first not to be words


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of an engine. No modes: all that it has. `model` "toy" stands for checkpoints with exact laws.

    `url` is a server that runs already; then `model` says what it serves.
    """

    engine: str
    home: Path
    toys: Path
    modes: Sequence[str] = ()
    model: str = "toy"
    draft: str = ""
    k: int = 3
    url: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def legs(wish: Wish) -> list[Leg]:
    """A leg a mode.

    Raises:
        VerifyError: no such engine or mode, something is not installed, or nothing could be tested.
    """
    chosen = adapter(wish.engine)
    if unknown := [name for name in wish.modes if name not in chosen.modes]:
        raise VerifyError(f"{wish.engine} has no mode {unknown[0]!r}: give one of {', '.join(chosen.modes)}")
    modes = tuple(wish.modes or chosen.modes)
    if wish.url and len(modes) > 1:
        raise VerifyError(f"a server runs in one mode: say by --mode which of {', '.join(modes)}")
    if wish.model != "toy" and wish.url and not wish.options.get("plain_url"):
        raise VerifyError(
            f"what {wish.model} says is only known from the same model without speculation: give its --plain-url"
        )
    return [_leg(wish, chosen, mode) for mode in modes]


def _leg(wish: Wish, chosen: Adapter, mode: str) -> Leg:
    exact = wish.model == "toy"
    target, draft = toy_files(chosen.form, wish.toys) if exact else (wish.model, wish.draft)
    drafting = chosen.modes[mode].drafting
    if drafting is Drafting.MODEL and not draft and not wish.url:
        raise VerifyError(f"mode {mode} of {wish.engine} needs a draft model: name it by --draft, in its own form")
    setup = Setup(mode, target, draft if drafting is Drafting.MODEL else "", wish.home, wish.k, wish.url, wish.options)
    if missing := chosen.missing(setup):
        raise VerifyError(missing)
    world = toy.world(toy.pair()) if exact else unknown_world(wish.model)
    judged = FOREIGN_CHECKS if chosen.modes[mode].promise is Promise.EXACT else CONTROL_CHECKS
    checks = PUBLIC_CHECKS if wish.engine in _PUBLIC else judged
    return Leg(
        f"{wish.engine}, {mode}", partial(started, wish.engine, setup), world, checks if exact else UNKNOWN_CHECKS
    )


def toy_files(form: Form, folder: Path, name: str = "spread") -> tuple[str, str]:
    """Target and draft of a toy pair, written in the form that an engine loads."""
    pair, place = toy.pair(name), folder / name
    if form is Form.GGUF:
        return _each(pair, lambda one, word: toy.write_gguf(one, place / f"{word}.gguf"))
    if form is Form.OPENVINO:
        from draftproof.verify.toy_openvino import write_openvino

        return _each(pair, lambda one, word: write_openvino(one, place / f"{word}-openvino"))
    return _each(pair, lambda one, word: toy.write_hf(one, place / word))


def _each(pair: toy.Pair, write: Callable[[Toy, str], Path]) -> tuple[str, str]:
    return str(write(pair.target, "target")), str(write(pair.draft, "draft"))


def unknown_world(name: str) -> World:
    """A model whose laws are not known: only checks that ask for none of them can run."""

    def unknown(_: tuple[int, ...]) -> Floats:
        raise VerifyError(f"the laws of {name} are not known")

    return World(name, _VOCAB, unknown, None, impossible=tuple(range(_SPECIAL)))
