"""`draftproof tune`: which draft length and rule to use on this device, or not to speculate.

Knows the terminal and files. The procedure is `bench.tune`, the advice `bench.advice`, logs are `bench.replay`'s.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from draftproof import cost
from draftproof.bench import replay
from draftproof.bench.advice import Advice, Outcome
from draftproof.bench.plan import Wish
from draftproof.bench.runner import EngineRunner
from draftproof.bench.tune import Task, Tuning
from draftproof.bench.workloads import BUILT_IN, read_prompts
from draftproof.cli import options
from draftproof.cli.bench import check_draft, number, plan_for, words
from draftproof.cli.bench_display import display
from draftproof.cli.tune_engines import Chosen, Found, configurations
from draftproof.cli.tune_report import Report, replay_json, report_json, show, show_replay
from draftproof.drafts import DRAFTS
from draftproof.length.profile import Profile
from draftproof.profiling import profile
from draftproof.types import RequestError

_WHAT = (
    "Recommends a draft length and a rule for each batch size, or not to speculate: measures what steps cost and how "
    "drafts fare on the prompts, then the two most promising lengths against plain decoding, paired, until more data "
    "cannot change the advice. Ctrl-C shows what is known so far."
)
_EXAMPLE = "example: draftproof tune --batches 1,4 --limit 4 --json advice.json"
_STOPPED = "interrupted"


def register(commands: Any) -> None:
    parser = commands.add_parser("tune", help="recommend a draft length", description=_WHAT, epilog=_EXAMPLE)
    options.add_model(parser)
    _add_ways(parser)
    options.add_workload(parser)
    parser.add_argument("--json", metavar="FILE", help="also write everything as one JSON object")
    parser.add_argument("--profile", metavar="FILE", help="also write the costs, for draftproof cost --measured")
    parser.add_argument("--fresh", action="store_true", help="measure the costs again instead of using those kept")
    parser.add_argument(
        "--replay",
        metavar="LOG",
        help="instead: recompute a log of generate --decisions, and compare draft lengths on its trace",
    )
    unset = {name: value for name, value in vars(parser.parse_args([])).items() if name not in {"replay", "json"}}
    parser.set_defaults(run=run, unset=unset)


def _add_ways(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is considered")
    group.add_argument("--draft", default="auto", help=f"{DRAFTS} (default: auto)")
    group.add_argument("--draft-precision", help="weights of a draft model (default: auto)")
    group.add_argument("--most-k", type=int, default=8, metavar="N", help="longest draft to consider (default 8)")
    group.add_argument(
        "--rules", default="block", metavar="LIST", help="exact rules, as in block,token (default block)"
    )
    group.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="stop then (default: no limit)")


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if args.replay:
        return _replay(args, out, err)
    task = Task(_wish(args), args.most_k, args.minutes)
    check_draft(args.draft)
    _try_files(args)
    prompts = read_prompts(Path(args.prompts) if args.prompts else BUILT_IN)
    engine = options.load_engine(args, err, max(16, *task.wish.batches))
    with options.status(err) as progress:
        costs = profile(engine, progress, args.fresh)
    with display(err) as said:
        tuning = Tuning(task, costs, lambda w: plan_for(w, prompts, engine), EngineRunner(engine), perf_counter, said)
        interrupted = _stopped(tuning)
    report = _report(args, tuning)
    show(report, out)
    if args.profile:
        _write(args.profile, cost.to_json(_measured(costs, task.wish.batches, task.most)), err)
    if args.json:
        _write(args.json, json.dumps(report_json(report), indent=1, default=str, allow_nan=False) + "\n", err)
    return 130 if interrupted else 1 if any(a.outcome is Outcome.FEW for a in report.advices) else 0


def _stopped(tuning: Tuning) -> bool:
    """Whether the user had enough of it."""
    try:
        tuning.run()
    except KeyboardInterrupt:
        tuning.stopped = _STOPPED
    return tuning.stopped == _STOPPED


def _wish(args: argparse.Namespace) -> Wish:
    return Wish(
        ks=(),
        rules=tuple(words(args.rules)) or ("block",),
        batches=tuple(number(word, "--batches") for word in words(args.batches)),
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        short=args.short,
        long=args.long,
        limit=args.limit,
        seed=args.seed,
    )


def _try_files(args: argparse.Namespace) -> None:
    """A wrong path is known before the work."""
    for name in filter(None, (args.json, args.profile)):
        try:
            Path(name).open("ab").close()
        except OSError as error:
            raise RequestError(f"{name} cannot be written: {error.strerror or error}") from error


def _report(args: argparse.Namespace, tuning: Tuning) -> Report:
    advices = tuning.conclude()
    chosen = tuple(_chosen(a) for a in sorted(advices, key=lambda a: a.batch) if a.outcome is not Outcome.FEW)
    return Report(tuning, advices, configurations(Found(args.model, args.draft, chosen)))


def _chosen(advice: Advice) -> Chosen:
    return Chosen(advice.batch, int(advice.best.k) if advice.outcome is Outcome.SPECULATE else 0, advice.best.rule)


def _measured(costs: Profile, batches: tuple[int, ...], most: int) -> dict[int, cost.Measured]:
    """Full drafts: every token that was asked for is proposed."""
    return {b: cost.Measured({k: _parts(costs, b, k) for k in range(most + 1)}) for b in batches}


def _parts(costs: Profile, batch: int, k: int) -> cost.Parts:
    verify, draft, other = costs.parts(batch, k, k)
    return cost.Parts(draft, verify, other)


def _replay(args: argparse.Namespace, out: Console, err: Console) -> int:
    """Exit status 1 if any decision differs."""
    useless = list(_beside(args))
    if useless:
        raise RequestError(f"{useless[0]} has no effect with --replay, which measures nothing: leave it out")
    told = replay.replay(replay.read(Path(args.replay)))
    show_replay(told, out)
    if args.json:
        _write(args.json, json.dumps(replay_json(told), indent=1, allow_nan=False) + "\n", err)
    return 1 if told.differing else 0


def _beside(args: argparse.Namespace) -> Iterator[str]:
    """Options of measuring that were given."""
    for name, default in args.unset.items():
        if getattr(args, name) != default:
            yield "--" + name.replace("_", "-")


def _write(name: str, text: str, err: Console) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name} cannot be written: {error.strerror or error}") from error
    err.print(f"wrote {name}", soft_wrap=True, markup=False)
