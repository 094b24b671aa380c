"""`draftproof accept`: is a speculative decoder correct, and is it fast? Two verdicts in one folder.

Knows the terminal and both suites' commands; what is done with them is in `acceptance`. Exit status: 0 correctness is
exact, 1 not exact, 2 wrong usage, 3 could not be tested, 4 exact but slower than --require-speedup, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from draftproof.accept import RULES
from draftproof.acceptance import run as acceptance
from draftproof.acceptance.folder import Folder, opened
from draftproof.acceptance.manifest import Subject, manifest, settle
from draftproof.acceptance.run import Speed, Task
from draftproof.acceptance.verdicts import Acceptance, accepted, record, sentences
from draftproof.bench.measure import Source
from draftproof.bench.plan import Plan, Wish, configs
from draftproof.bench.runner import EngineRunner
from draftproof.bench.summary import summary
from draftproof.bench.workloads import BUILT_IN, Prompt, read_prompts
from draftproof.cli import bench, bench_display, options, verify
from draftproof.drafts import DRAFTS, resolved
from draftproof.engine import Engine
from draftproof.types import RequestError
from draftproof.verify import suite
from draftproof.verify.contract import Budget
from draftproof.verify.plan import Leg, VerifyError, select
from draftproof.verify.report.data import Report, to_json

_WHAT = (
    "Verifies that speculation keeps the target's law, and measures what it gains: two verdicts, neither hiding the "
    "other, in one folder. What is accepted is written down first. Ctrl-C keeps what is done; the same command goes on."
)
_EXAMPLE = "example: draftproof accept smollm2 --quick --out accept-smollm2"
# how a model is loaded: as `verify` does, so that both verdicts are about the same weights
_LOADED = {
    "device": "auto",
    "compile": False,
    "precision": "auto",
    "kv_precision": "auto",
    "kv_memory": 1024,
    "context": 0,
    "threads": 0,
    "bitwise": True,
}
_DRAFT_PRECISION = "int8"


class _Work(NamedTuple):
    """What is measured at a level. `limit` is the most prompts of a kind, 0 for all."""

    limit: int
    short: int
    long: int
    batches: tuple[int, ...]


_WORK = {"quick": _Work(2, 16, 32, (1, 4)), "default": _Work(0, 32, 128, (1, 4, 16))}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The command line, understood. `lossy` is empty, or the wish with rules that change the law."""

    model: str
    draft: str
    out: Path
    prompts: list[Prompt]
    wish: Wish
    lossy: tuple[Wish, ...]
    budget: Budget
    ratio: float

    @property
    def approximate(self) -> tuple[str, ...]:
        return tuple(rule for wish in self.lossy for rule in wish.rules)


class _Measured(NamedTuple):
    manifest: dict[str, Any]
    speed: Speed
    lossy: tuple[Speed, ...]


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "accept", help="verify and measure: two verdicts in one folder", description=_WHAT, epilog=_EXAMPLE
    )
    parser.add_argument("model", metavar="MODEL", help="smollm2, a .gguf file, a directory, or a Hugging Face name")
    parser.add_argument("--draft", default="auto", help=f"{DRAFTS} (default: auto)")
    parser.add_argument("--out", metavar="FOLDER", help="report folder (default: accept-MODEL here)")
    parser.add_argument("--quick", action="store_const", dest="level", const="quick", help="less of everything")
    parser.add_argument("--prompts", metavar="FILE", help="JSON lines, as bench takes them (default: 60 of our own)")
    parser.add_argument("--k", default="2,3,auto", metavar="LIST", help="draft lengths beside 0 (default 2,3,auto)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="while measuring (default 0)")
    parser.add_argument(
        "--rules",
        default="",
        metavar="LIST",
        help="exact rules to be measured (default block; all are verified), and lossy ones as lenience:1.5, which get "
        "a page of their own",
    )
    parser.add_argument("--batches", metavar="LIST", help="batch sizes (default 1,4,16; with --quick 1,4)")
    parser.add_argument("--short", type=int, metavar="N", help="tokens of short answers (default 32; with --quick 16)")
    parser.add_argument("--long", type=int, metavar="N", help="tokens of long answers (default 128; with --quick 32)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of both suites (default 1)")
    parser.add_argument(
        "--require-speedup",
        type=float,
        default=0.0,
        metavar="R",
        help="exit with 4 unless the interval of k=auto, or else of the first of --k, lies above R at every batch size",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(run=run, level="default", draft_precision=_DRAFT_PRECISION, **_LOADED)


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    asked = _asked(args)
    folder = opened(asked.out)
    try:
        measured = _measure(args, asked, folder, err)  # first: engines of the other suite would take its memory
        report, lossy = _verify(asked, measured, folder, err)
    except VerifyError as error:
        raise RequestError(str(error)) from error
    found = accepted(measured.manifest, report, measured.speed, asked.ratio, asked.approximate)
    _write(folder, found, measured, lossy)
    _show(args, found, folder, out)
    if 130 in _statuses(found, measured, lossy):
        err.print("interrupted: what is done is kept. To go on:", soft_wrap=True)
        err.print(shlex.join(["draftproof", *sys.argv[1:]]), soft_wrap=True, markup=False)
        return 130
    return found.status


def _asked(args: argparse.Namespace) -> _Asked:
    """What can be refused before a model is loaded."""
    if not args.require_speedup >= 0:
        raise RequestError(f"--require-speedup {args.require_speedup}: give a ratio above 0, as 1.1")
    draft = resolved(args.draft, args.model)
    bench.check_draft(draft)
    draft = "ngram:2-4" if draft == "ngram" else draft  # named, since both suites have a default of their own
    wish, rules = _wish(args), list(_rules(args.rules))
    exact = tuple(r for r in rules if r in RULES) or ("block",)
    lossy = tuple(r for r in rules if r not in RULES)
    wishes = [replace(wish, rules=exact), *([replace(wish, rules=lossy)] if lossy else [])]
    for each in wishes:
        configs(each.ks, each.rules)
    prompts = read_prompts(Path(args.prompts) if args.prompts else BUILT_IN)
    path = Path(args.out or f"accept-{Path(args.model).name}")
    budget = Budget(level=args.level, seed=args.seed)
    return _Asked(args.model, draft, path, prompts, wishes[0], tuple(wishes[1:]), budget, args.require_speedup)


def _rules(text: str) -> Iterator[str]:
    """A number belongs to the rule before it, as in typical:0.3,0.1."""
    return (word.strip() for word in re.split(r",(?!\s*[\d.])", text) if word.strip())


def _wish(args: argparse.Namespace) -> Wish:
    """Answers have a fixed length: stop tokens are ignored while time is measured."""
    work = _WORK[args.level]
    told = [bench.number(word, "--batches") for word in bench.words(args.batches or "")]
    return Wish(
        ks=tuple(bench.lengths(args.k)),
        batches=tuple(told) or work.batches,
        temperature=args.temperature,
        short=work.short if args.short is None else args.short,
        long=work.long if args.long is None else args.long,
        limit=work.limit,
        seed=args.seed,
        ignore_eos=True,
    )


def _measure(args: argparse.Namespace, asked: _Asked, folder: Folder, err: Console) -> _Measured:
    """Write down what is accepted, then measure. The engine is gone when this returns."""
    most = max(16, *asked.wish.batches)
    args.draft = asked.draft
    engine = options.load_engine(args, err, most, "auto" if "auto" in asked.wish.ks else None)
    planned = [bench.plan_for(wish, asked.prompts, engine) for wish in (asked.wish, *asked.lossy)]
    told = settle(folder.manifest, manifest(_subject(asked, planned[0][0], engine)))
    runner, speeds = EngineRunner(engine), list[Speed]()
    for (plan, sources), path in zip(planned, (folder.bench, folder.lossy_bench), strict=False):
        speeds.append(_timed(plan, sources, runner, path, err))
        if speeds[-1].interrupted:
            break
    return _Measured(told, speeds[0], tuple(speeds[1:]))


def _timed(plan: Plan, sources: Sequence[Source], runner: EngineRunner, path: Path, err: Console) -> Speed:
    with bench_display.display(err) as said:
        return acceptance.speed(plan, sources, runner, path, said)


def _subject(asked: _Asked, plan: Plan, engine: Engine) -> Subject:
    return Subject(
        model=asked.model,
        draft=asked.draft,
        plan=plan,
        budget=asked.budget,
        versions=verify.versions(),
        checks=tuple(suite.all_checks()),
        rules=suite.EXACT_RULES,
        lossy=asked.approximate,
        stop_tokens=engine.target.info.eos_ids,
        context=engine.context,
    )


def _verify(asked: _Asked, measured: _Measured, folder: Folder, err: Console) -> tuple[Report, tuple[Report, ...]]:
    plan = measured.speed.result.plan
    task = Task(
        legs=lambda: subjects(asked.model, asked.draft),
        budget=asked.budget,
        timeout=verify.TIMEOUTS[asked.budget.level],
        versions=measured.manifest["versions"],
        command=shlex.join(plan.command),
        when=plan.created,
        model=asked.model,
        draft=asked.draft,
        weights=plan.target.fingerprint,
        rules=suite.EXACT_RULES,
    )
    apart = replace(task, legs=lambda: lossy_subjects(asked.approximate), rules=asked.approximate)
    if measured.speed.interrupted or any(s.interrupted for s in measured.lossy):
        return acceptance.interrupted(task), tuple(acceptance.interrupted(apart) for _ in asked.lossy)
    with verify.display(err) as show:
        report = acceptance.correctness(task, folder.store, show)
    if report.outcome.interrupted:
        return report, tuple(acceptance.interrupted(apart) for _ in asked.lossy)
    with verify.display(err) as show:
        return report, tuple(acceptance.correctness(apart, folder.lossy_store, show) for _ in asked.lossy)


def subjects(model: str, draft: str) -> list[Leg]:
    """The toys, whose laws are exact, and the model with its draft."""
    toys = suite.legs(suite.Options(rules=suite.EXACT_RULES, folder=verify.toys()))
    return select([*toys, *suite.legs(suite.Options(model, (draft,), suite.EXACT_RULES))])


def lossy_subjects(rules: Sequence[str]) -> list[Leg]:
    """Toys on which it is measured how far such rules move the law."""
    return select(suite.legs(suite.Options(rules=tuple(rules), folder=verify.toys())))


def _write(folder: Folder, found: Acceptance, measured: _Measured, lossy: tuple[Report, ...]) -> None:
    from draftproof.acceptance import page
    from draftproof.bench.report import html as bench_page
    from draftproof.verify.report.html import to_html

    figures, result = measured.speed.figures, measured.speed.result
    told = json.dumps(summary(figures), indent=1, default=str, allow_nan=False)
    folder.write(folder.verify_json, to_json(found.report))
    folder.write(folder.verify_html, to_html(found.report))
    folder.write(folder.bench_json, f"{told}\n")
    folder.write(folder.bench_html, bench_page.page(figures, result))
    folder.write(folder.index, page.index(found))
    for report, speed in zip(lossy, measured.lossy, strict=False):
        folder.write(folder.lossy, page.lossy_page(found.manifest, report, speed))


def _show(args: argparse.Namespace, found: Acceptance, folder: Folder, out: Console) -> None:
    if args.json:
        print(json.dumps({**record(found), "report": str(folder.index)}, default=str, allow_nan=False))
        return
    for line in sentences(found):
        out.print(Text(line), soft_wrap=True)
    out.print(Text(f"The report is {folder.index}"), soft_wrap=True)


def _statuses(found: Acceptance, measured: _Measured, lossy: Sequence[Report]) -> set[int]:
    cut = [found.speed.interrupted, *(s.interrupted for s in measured.lossy)]
    return {found.report.outcome.status, *(r.outcome.status for r in lossy), *(130 for c in cut if c)}
