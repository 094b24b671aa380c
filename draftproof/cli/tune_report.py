"""What `draftproof tune` found, as tables and as one JSON object. Knows rich; measures and decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.bench.advice import DECISION, Advice, Against, Outcome
from draftproof.bench.plan import plan_json
from draftproof.bench.promise import Seen
from draftproof.bench.replay import Replay
from draftproof.bench.stats import Ratio
from draftproof.bench.tune import Trial, Tuning, seconds
from draftproof.cli.tune_engines import NOTE

_STYLES = {Outcome.SPECULATE: "green", Outcome.PLAIN: "yellow", Outcome.FEW: "red"}
_SHOWN = 5  # differing decisions that are shown


@dataclass(frozen=True, slots=True)
class Report:
    """`commands` are the configurations by engine; `stopped` says why it ended early, if it did."""

    tuning: Tuning
    advices: tuple[Advice, ...]
    commands: Mapping[str, Sequence[str]]

    @property
    def stopped(self) -> str:
        return self.tuning.stopped


def show(report: Report, out: Console) -> None:
    if report.stopped:
        out.print(Text(f"! {report.stopped}: this is what is known so far", style="bold red"))
    for seen in report.tuning.seen:
        out.print(_acceptance(seen))
    for batch in dict.fromkeys(p.batch for p in report.tuning.promises):
        out.print(_promises(report.tuning, batch))
    if report.advices:
        out.print(_advices(report))
        out.print(Text(DECISION, style="dim"))
    for engine, lines in report.commands.items():
        out.print(Text(f"\n{engine}", style="bold"))
        for line in lines:
            out.print(line, soft_wrap=True, markup=False, highlight=False)
    if report.commands:
        out.print(Text(f"\n{NOTE}", style="dim"))


def _acceptance(seen: Seen) -> Table:
    table = _table(f"acceptance by position, rule {seen.rule}: {seen.prompts} prompts, {seen.steps} steps")
    for head in ("position", "stands after those before", "of those judged", "proposed"):
        table.add_column(head, justify="right")
    for i, chance in enumerate(seen.chances):
        judged = f"{seen.alpha_cond[i]:.3f}" if i < len(seen.alpha_cond) else "none judged"
        table.add_row(str(i + 1), f"{chance:.3f}", judged, f"{seen.proposals[i]:.3f}")
    return table


def _promises(tuning: Tuning, batch: int) -> Table:
    mine = [p for p in tuning.promises if p.batch == batch]
    measured = {int(c.k) for t in tuning.trials if t.batch == batch for c in t.plan.configs}
    table = _table(f"predicted from costs and acceptance, batch {batch}")
    for head in ("k", "rule", "tokens a step", "ms a step", "against plain", ""):
        table.add_column(head, justify="right")
    for p in mine:
        mark = "measured" if p.k in measured else ""
        table.add_row(str(p.k), p.rule, f"{p.tokens:.2f}", f"{1e3 * p.seconds:.2f}", f"{p.speedup:.2f} ×", mark)
    return table


def _advices(report: Report) -> Table:
    table = _table("advice, from paired measurements")
    for head in ("batch", "advice", "against plain", "groups", "why"):
        table.add_column(head, justify="right" if head == "batch" else "left")
    for a in report.advices:
        ended = "" if a.settled else f" ({_ended(report, a)})"
        table.add_row(
            str(a.batch), Text(_said(a), style=_STYLES[a.outcome]), _ratio(a.ratio, a), str(a.groups), a.why + ended
        )
    return table


def _said(advice: Advice) -> str:
    speculates = advice.outcome is Outcome.SPECULATE
    return f"k={advice.best.k}, rule {advice.best.rule}" if speculates else str(advice.outcome)


def _ended(report: Report, advice: Advice) -> str:
    trial = next(t for t in report.tuning.trials if t.batch == advice.batch)
    return "the prompts are used up" if trial.done == len(trial.plan.groups) else report.stopped


def _ratio(ratio: Ratio, advice: Advice) -> str:
    if not math.isfinite(ratio.high):
        return "not known"
    return f"{advice.best.name}: {ratio.ratio:.2f} × ({ratio.low:.2f} to {ratio.high:.2f})"


def _table(title: str) -> Table:
    return Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def report_json(report: Report) -> dict[str, Any]:
    """Everything: what was asked, measured, decided and why. An end of an interval that is not known is null."""
    tuning = report.tuning
    plan = tuning.learning
    return {
        "complete": not report.stopped,
        "stopped": report.stopped,
        "decision": DECISION,
        "advice": [_advice(a) for a in report.advices],
        "configurations": {engine: list(lines) for engine, lines in report.commands.items()},
        "note": NOTE,
        "inputs": {**asdict(tuning.task.wish), "most_k": tuning.task.most, "minutes": _finite(tuning.task.minutes)},
        "command": list(plan.command),
        "draftproof": plan.draftproof,
        "environment": dict(plan.environment),
        "target": asdict(plan.target),
        "draft": asdict(plan.draft),
        "profile": tuning.profile.as_json(),
        "acceptance": [asdict(s) for s in tuning.seen],
        "predicted": [p._asdict() for p in tuning.promises],
        "learning": {"plan": plan_json(plan), "groups": len({r.group for r in tuning.learned})},
        "trials": [_trial(t) for t in tuning.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "batch": trial.batch,
        "plan": plan_json(trial.plan),
        "looks": {"planned": list(trial.looks.groups), "error": trial.looks.error, "least": trial.looks.least},
        "said": [_advice(a) for a in trial.said],
        "seconds": seconds(trial.plan, trial.runs),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    against = {"against_plain": advice.against, "against_best": advice.rivals}
    return {
        "batch": advice.batch,
        "advice": str(advice.outcome),
        "k": advice.best.k if advice.outcome is Outcome.SPECULATE else 0,
        "rule": advice.best.rule,
        "best": advice.best.name,
        "ratio": _ratio_json(advice.ratio),
        "groups": advice.groups,
        "settled": advice.settled,
        "why": advice.why,
        **{name: [_against(a) for a in told] for name, told in against.items()},
    }


def _against(told: Against) -> dict[str, Any]:
    return {"config": told.config, "base": told.base, **_ratio_json(told.ratio)}


def _ratio_json(ratio: Ratio) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in ratio._asdict().items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show_replay(told: Replay, out: Console) -> None:
    out.print(f"{told.decisions} decisions, {told.differing} of them not as recomputed")
    for d in told.differences[:_SHOWN]:
        out.print(f"line {d.line}: {d.what} is {d.logged}, recomputed {d.again}", soft_wrap=True)
    table = _table("policies on the same trace, by the profile and the recorded chances")
    for head in ("draft length", "ms a token", "against the recorded choices"):
        table.add_column(head, justify="right")
    for p in told.policies:
        table.add_row(p.name, f"{1e3 * p.seconds:.3f}", f"{p.speedup:.3f} ×")
    out.print(table)


def replay_json(told: Replay) -> dict[str, Any]:
    return {
        "decisions": told.decisions,
        "differing": told.differing,
        "differences": [d._asdict() for d in told.differences],
        "policies": [p._asdict() for p in told.policies],
    }
