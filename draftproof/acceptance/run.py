"""The two acceptances, each by the suite that is there for it: what they find, kept in the folder as it comes.

Neither stops the other: what breaks while time is measured is told beside the figures, and a check that fails does not
keep time from being measured. Knows no check, no engine, no terminal and no page.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftproof.bench import results
from draftproof.bench.environment import load
from draftproof.bench.figures import Figures, figures
from draftproof.bench.measure import Runner, Said, Source, measure
from draftproof.bench.plan import Plan
from draftproof.bench.results import Result, Results
from draftproof.model.checkpoint import ModelError
from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.outcome import Outcome, Overall, conclude
from draftproof.verify.plan import Entry, Leg, fingerprint
from draftproof.verify.report.data import Report, reproduce
from draftproof.verify.run import Progress, Ran, run_plan
from draftproof.verify.store import Store

TOY = "toy "  # the names of legs on toys begin so
Show = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured. `trouble` says why measuring ended early; "" if it did not."""

    result: Result
    figures: Figures
    trouble: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be verified, and what the report says of it. `weights` is the target's fingerprint.

    `legs` makes the subjects: it may load a model.
    """

    legs: Callable[[], Sequence[Leg]]
    budget: Budget
    timeout: float
    versions: Mapping[str, str]
    command: str
    when: str
    model: str
    draft: str
    weights: str
    rules: Sequence[str]


def speed(plan: Plan, sources: Sequence[Source], runner: Runner, path: Path, said: Said) -> Speed:
    """Measure what the file does not hold yet. Ctrl-C keeps what was obtained.

    Raises:
        RequestError: the file is of another plan, or damaged.
    """
    trouble, interrupted = "", False
    with _begun(path, plan) as file:
        try:
            measure(plan, sources, runner, file, said)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:  # noqa: BLE001  whatever it was, correctness is still to be judged
            trouble = f"measuring ended early: {type(error).__name__}: {error}"
    found = results.read(path)
    return Speed(found, figures(found), trouble, interrupted)


def _begun(path: Path, plan: Plan) -> Results:
    """A file without one whole line holds nothing: the process was killed as it began."""
    if path.exists() and b"\n" in path.read_bytes():
        return results.resume(path, plan, {"load": load()})
    path.unlink(missing_ok=True)
    return results.create(path, plan)


def correctness(task: Task, path: Path, show: Show) -> Report:
    """Run the checks that the store does not hold yet. Ctrl-C keeps what was obtained.

    Raises:
        VerifyError: the store is of another run.
    """
    try:
        legs = list(task.legs())
    except ModelError as error:
        return untested(task, f"the model could not be loaded to be verified: {error}")
    except KeyboardInterrupt:
        return interrupted(task)
    header = {"plan": fingerprint(legs), "versions": task.versions, **asdict(task.budget), "subject": _subject(task)}
    with Store(path, header) as store:
        ran = run_plan(legs, task.budget, store=store, timeout=task.timeout, progress=show)
    return _report(task, ran, _of_these_weights(conclude(ran, task.budget), ran, task))


def interrupted(task: Task) -> Report:
    """Of a run that ended before anything was verified."""
    outcome = Outcome(Overall.UNTESTED, (), ("interrupted before it was verified",), interrupted=True, status=130)
    return _report(task, Ran(interrupted=True), outcome)


def untested(task: Task, why: str) -> Report:
    return _report(task, Ran(), Outcome(Overall.UNTESTED, (), (why,), status=3))


def other_weights(engines: Mapping[str, Mapping[str, str]], weights: str) -> list[str]:
    """Legs whose engine says that it ran on other weights than these."""
    return [leg for leg, said in engines.items() if not leg.startswith(TOY) and said.get("fingerprint", "") != weights]


def _of_these_weights(outcome: Outcome, ran: Ran, task: Task) -> Outcome:
    """Nothing is shown of the manifest's weights if others were verified."""
    wrong = [
        f"{leg}: other weights than the manifest's were verified" for leg in other_weights(ran.engines, task.weights)
    ]
    if not wrong:
        return outcome
    verdict = Overall.UNTESTED if outcome.verdict is Overall.EXACT else outcome.verdict
    return replace(outcome, verdict=verdict, reasons=(*outcome.reasons, *wrong), status=outcome.status or 3)


def _report(task: Task, ran: Ran, outcome: Outcome) -> Report:
    report = Report(
        outcome,
        task.budget,
        command=task.command,
        base=_base(task, ["--model", task.model, "--draft", task.draft]),
        versions=task.versions,
        settings=_subject(task),
        engines=ran.engines,
        when=task.when,
    )
    toys = replace(report, base=_base(task, []))
    return replace(report, outcome=replace(outcome, entries=tuple(_again(e, toys) for e in outcome.entries)))


def _again(entry: Entry, toys: Report) -> Entry:
    """What fails on a toy is reproduced there, not on the model that the report is about."""
    if entry.result.verdict is not Verdict.FAILS or not entry.leg.startswith(TOY):
        return entry
    told: dict[str, Any] = {"reproduce": reproduce(toys, entry), **(entry.result.witness or {})}
    return replace(entry, result=replace(entry.result, witness=told))


def _base(task: Task, subject: Sequence[str]) -> str:
    level = [f"--{task.budget.level}"] * (task.budget.level != "default")
    return shlex.join(["draftproof", "verify", *subject, *level, "--seed", str(task.budget.seed)])


def _subject(task: Task) -> dict[str, str]:
    return {"engine": "draftproof", "model": task.model, "draft": task.draft, "rules": ", ".join(task.rules)}
