"""Acceptances that never ran: made-up runs of both suites, with what a test plants in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.fake import PARTS, FakeRunner, a_plan, result_of
from verify.fakes import FakeCheck, FakeEngine, leg

from draftproof.acceptance.manifest import Subject, manifest
from draftproof.acceptance.run import Speed, Task, correctness
from draftproof.bench.figures import figures
from draftproof.bench.measure import Asked
from draftproof.bench.plan import Config, Plan, Wish
from draftproof.bench.results import RunRecord
from draftproof.verify.contract import Budget
from draftproof.verify.plan import Leg
from draftproof.verify.report.data import Report

BEHIND = {  # a check of each part that verify fills
    2: ("rules/joint", "rules/acceptance", "rules/pure"),
    3: ("law/joint", "acceptance/counts", "stream/evidence"),
    4: ("rules/boundary", "ends/pairs"),
    6: ("bitwise/abort", "bitwise/preempt"),
}
BUDGET = Budget(level="quick")
SLOW = {name: 3 * seconds for name, seconds in PARTS.items()}
WISH = Wish((2, "auto"), short=9, long=17, batches=(1, 4), ignore_eos=True)


class ModelEngine(FakeEngine):
    """Says whose weights it runs on, as an engine on a model does."""

    weights = "ab"

    def describe(self) -> dict[str, str]:
        return {"version": self.version, "fingerprint": self.weights}


class AutoRunner(FakeRunner):
    """Automatic draft lengths are 3. Speculation emits two tokens a step."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"stand": lambda config, _: int(config.k != 0), **fields})

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        return super().run(group, replace(config, k=3) if config.k == "auto" else config, asked)


def checks(**changed: Any) -> list[FakeCheck]:
    """Of all parts; `changed` replaces fields of some, named with __ for the stroke."""
    told = {name.replace("__", "/"): fields for name, fields in changed.items()}
    statistical = {"law", "acceptance", "stream"}
    return [
        FakeCheck(name, **{"statistical": name.partition("/")[0] in statistical, **told.get(name, {})})
        for names in BEHIND.values()
        for name in names
    ]


def legs(**changed: Any) -> list[Leg]:
    some = [c for c in checks(**changed) if not c.name.startswith("rules/")]
    return [
        leg(*checks(**changed), name="toy spread, model draft"),
        leg(*some, engine=ModelEngine, name="toy-sized model, draft ngram"),
    ]


def task(made: Any, **fields: Any) -> Task:
    told = {
        "budget": BUDGET,
        "timeout": 60.0,
        "versions": {"code": "c"},
        "command": "draftproof accept m",
        "when": "now",
    }
    about = {"model": "m", "draft": "ngram", "weights": "ab", "rules": ("block", "token")}
    return Task(legs=made, **{**told, **about, **fields})


def report(tmp: Any, **changed: Any) -> Report:
    return correctness(task(lambda: legs(**changed)), tmp / "verify.jsonl", lambda at: None)


def plan(wish: Wish = WISH, **made: object) -> Plan:
    return a_plan(wish, **made)


def speed(slow: bool = False, runs: int = -1, of: Plan | None = None, trouble: str = "") -> Speed:
    """`slow`: steps of speculation take three times as long. `runs`: all, or the first."""
    of = of or plan()
    parts = {c.name: SLOW for c in of.speculative} if slow else {}
    result = result_of(of, AutoRunner(parts=parts))
    if runs >= 0:
        result = replace(result, runs=result.runs[:runs], ended=False)
    return Speed(result, figures(result), trouble)


def told(of: Plan | None = None, lossy: Sequence[str] = ()) -> dict[str, Any]:
    names = tuple(n for part in BEHIND.values() for n in part)
    subject = Subject("m", "ngram", of or plan(), BUDGET, {"code": "c"}, names, ("block", "token"), lossy, (2,), 128)
    return manifest(subject)
