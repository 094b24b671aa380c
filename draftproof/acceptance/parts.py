"""The six parts of an acceptance, the checks behind each, and what they add up to.

Knows results of checks; knows no engine, no file and no page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from draftproof.verify.contract import Verdict
from draftproof.verify.plan import Entry, State, matches


class Standing(StrEnum):
    """Of a check over all its subjects, or of a part over all its checks."""

    HOLDS = "holds"
    FAILS = "fails"
    PARTLY = "holds in part"  # something of it was not shown
    MISSING = "not shown"
    MEASURED = "measured"  # figures, no claim


@dataclass(frozen=True, slots=True)
class Part:
    """`checks` are names or patterns of verify's checks; parts 1 and 5 bring their own rows instead."""

    number: int
    title: str
    about: str
    checks: tuple[str, ...] = ()


PARTS = (
    Part(
        1,
        "What was accepted",
        "Versions, weights of target and draft, sampling settings, stop rules and workload were written to "
        "manifest.json before anything ran.",
    ),
    Part(
        2,
        "Enumeration on tiny vocabularies",
        "Every way that the noise can fall out is followed, without sampling: accepted mass and residual together are "
        "the target's law.",
        ("rules/joint", "rules/acceptance", "rules/pure"),
    ),
    Part(
        3,
        "Frequencies",
        "Outputs are counted and compared with the law. A fault as large as the TV seen would have been noticed with "
        "the stated power.",
        ("law/*", "acceptance/*", "stream/*", "blackbox/*", "numerics/*"),
    ),
    Part(
        4,
        "Edges",
        "No mass under the target (the first draft token must fall), equal laws (all must stand), the ends of the "
        "uniform, and every way to stop, at every offset of a block.",
        ("rules/boundary", "ends/*"),
    ),
    Part(
        5,
        "Time",
        "Plain and speculative decoding on the same prompts, interleaved in random order, for fixed lengths and batch "
        "sizes.",
    ),
    Part(
        6,
        "Cancellation and roll-back",
        "Rejected tokens, other requests, cancelling and preemption leave nothing behind: seeded texts stay what they "
        "were, bit by bit.",
        ("bitwise/*",),
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A check over its subjects. `held` names those that it holds on, `subjects` counts all.

    `p_value` is the smallest, `tv` the widest, `power` the least of the subjects; () where no subject has one.
    """

    name: str
    claim: str
    standing: Standing
    held: tuple[str, ...] = ()
    subjects: int = 0
    samples: int = 0
    p_value: tuple[float, ...] = ()
    tv: tuple[float, ...] = ()
    power: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A part and what came of it."""

    part: Part
    standing: Standing
    rows: tuple[Row, ...]


def shown(part: Part, rows: Sequence[Row]) -> Shown:
    """Holds only if every row does; figures without a claim neither help nor harm."""
    found = {row.standing for row in rows} - {Standing.MEASURED}
    if Standing.FAILS in found:
        return Shown(part, Standing.FAILS, tuple(rows))
    if not found & {Standing.HOLDS, Standing.PARTLY}:
        return Shown(part, Standing.MISSING, tuple(rows))
    return Shown(part, Standing.HOLDS if found == {Standing.HOLDS} else Standing.PARTLY, tuple(rows))


def checked(part: Part, entries: Sequence[Entry]) -> Shown:
    """The part's rows from the entries of a run, in their order."""
    mine = [e for e in entries if matches(e.result.name, part.checks)]
    return shown(part, [_row([e for e in mine if e.result.name == n]) for n in names(e.result.name for e in mine)])


def names(found: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(found))


def _row(entries: Sequence[Entry]) -> Row:
    results = [e.result for e in entries]
    tested = [r for r in results if r.verdict in {Verdict.HOLDS, Verdict.FAILS}]
    return Row(
        name=results[0].name,
        claim=results[0].claim,
        standing=_standing(entries),
        held=tuple(e.leg for e in entries if e.result.verdict in {Verdict.HOLDS, Verdict.MEASURED}),
        subjects=len(entries),
        samples=sum(r.samples for r in results),
        p_value=tuple(sorted(e.result.p_value for e in entries if e.statistical and e.result in tested)[:1]),
        tv=tuple(sorted(r.detectable_tv for r in tested if r.detectable_tv is not None)[-1:]),
        power=tuple(sorted(r.power for r in tested if r.power is not None)[:1]),
        note="; ".join(names(r.note for r in results if r.note)),
    )


def _standing(entries: Sequence[Entry]) -> Standing:
    found = {e.result.verdict for e in entries}
    if Verdict.FAILS in found:
        return Standing.FAILS
    if Verdict.HOLDS not in found:
        return Standing.MEASURED if found == {Verdict.MEASURED} else Standing.MISSING
    silent = [e for e in entries if e.result.verdict is Verdict.UNTESTED]
    return Standing.PARTLY if any(e.essential or e.state is not State.SKIPPED for e in silent) else Standing.HOLDS
