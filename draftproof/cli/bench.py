"""`draftproof bench`: measure what speculation gains on this device, with this model, draft and prompts.

Knows the terminal. What is measured is `bench.plan`, how `bench.measure`, and what follows from it `bench.figures`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from draftproof import __version__
from draftproof.bench import results
from draftproof.bench.environment import environment, load
from draftproof.bench.figures import Figures, figures
from draftproof.bench.groups import Load
from draftproof.bench.measure import Runner, Source, measure
from draftproof.bench.plan import Plan, Weights, Wish, configs, plan_of
from draftproof.bench.results import Result, Results
from draftproof.bench.runner import EngineRunner
from draftproof.bench.summary import summary
from draftproof.bench.workloads import BUILT_IN, Prompt, read_prompts
from draftproof.cli import bench_engines, bench_server, options
from draftproof.cli.bench_display import display
from draftproof.drafts import DRAFTS
from draftproof.engine import Engine
from draftproof.types import DraftLength, RequestError

_WHAT = (
    "Measures plain and speculative decoding on the same prompts, interleaved in random order. Plan and decision rule "
    "are written down before measuring. Ctrl-C keeps what is done; --resume goes on."
)
_KS = "2,4,auto"
_EXAMPLE = "example: draftproof bench --k 2,4 --limit 2 --json figures.json"


def register(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure what speculation gains", description=_WHAT, epilog=_EXAMPLE)
    options.add_model(parser)
    _add_ways(parser)
    options.add_workload(parser)
    bench_server.add_options(parser)
    bench_engines.add_options(parser)
    _add_files(parser)
    parser.add_argument("--out", metavar="FILE", help="result file, JSON lines (default: bench-DATE.jsonl here)")
    parser.add_argument("--resume", action="store_true", help="go on with the result file of --out")
    parser.set_defaults(run=run)
    more = parser.add_subparsers(metavar="show, compare", title="instead of measuring")
    show = more.add_parser("show", help="figures of a result file", description="Shows what a result file holds.")
    show.add_argument("file", metavar="FILE")
    _add_files(show)
    show.set_defaults(run=run_show)
    both = more.add_parser("compare", help="two result files", description="What changed from one file to the other.")
    both.add_argument("a", metavar="A", help="result file of before")
    both.add_argument("b", metavar="B", help="result file of after")
    both.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    both.set_defaults(run=run_compare)


def _add_ways(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    group.add_argument("--draft", default="auto", help=f"{DRAFTS} (default: auto)")
    group.add_argument("--draft-precision", help="weights of a draft model (default: auto)")
    group.add_argument("--k", metavar="LIST", help=f"draft lengths beside 0 (default {_KS})")
    group.add_argument("--rule", action="append", default=[], help="may be given several times (default block)")
    group.add_argument("--ignore-eos", action="store_true", help="all answers as long as they may be")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="also write the figures as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="also write one page that opens offline")


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    wish = _wish(args)
    _check(args, wish)
    prompts = read_prompts(Path(args.prompts) if args.prompts else BUILT_IN)
    path = Path(args.out or f"bench-{datetime.now(UTC):%Y-%m-%d-%H%M%S}.jsonl")
    prepare = bench_server.prepared(args, wish, prompts) if args.server else _prepared(args, wish, prompts, err)
    with prepare as (plan, sources, runner), _opened(path, plan, args.resume) as file:
        try:
            with display(err) as said:
                measure(plan, sources, runner, file, said)
        except KeyboardInterrupt:
            _say_how_to_go_on(err, path, file)
            return 130
        except RequestError:
            _say_how_to_go_on(err, path, file)
            raise
    return _report(args, results.read(path), out, err)


@contextmanager
def _prepared(
    args: argparse.Namespace, wish: Wish, prompts: list[Prompt], err: Console
) -> Iterator[tuple[Plan, list[Source], Runner]]:
    """The model of this process, and the plan for it."""
    engine = options.load_engine(args, err, max(16, *wish.batches), "auto" if "auto" in wish.ks else None)
    plan, sources = plan_for(wish, prompts, engine)
    threads = int(str(engine.settings.get("threads", 0))) or os.cpu_count() or 1
    with bench_engines.beside(args, plan, EngineRunner(engine), threads, engine.context) as runner:
        yield plan, sources, runner


def run_show(args: argparse.Namespace) -> int:
    _try_files(args)
    return _report(args, results.read(Path(args.file)), Console(highlight=False), Console(stderr=True, highlight=False))


def run_compare(args: argparse.Namespace) -> int:
    a, b = (results.read(Path(name)) for name in (args.a, args.b))
    _comparable(a.plan, b.plan)
    from draftproof.bench.report import compare, terminal

    changes = compare.compare(a, b)
    if args.json:
        print(json.dumps(compare.comparison_json(changes), default=str, allow_nan=False))
    else:
        terminal.show_changes(changes, Console(highlight=False))
    return 0


def _comparable(a: Plan, b: Plan) -> None:
    """
    Raises:
        RequestError: one file's rules are exact and the other's lossy.
    """
    if a.lossy != b.lossy:
        raise RequestError("one file is of exact rules and the other of lossy ones: they do not stand in one table")


def _wish(args: argparse.Namespace) -> Wish:
    load, batches = bench_server.load_of(args) if args.server else (Load(), _batches(args))
    return Wish(
        ks=tuple(lengths(_KS if args.k is None else args.k)),
        rules=tuple(args.rule) or ("block",),
        batches=batches,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        short=args.short,
        long=args.long,
        limit=args.limit,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        load=load,
        others=bench_engines.chosen(args),
    )


def _batches(args: argparse.Namespace) -> tuple[int, ...]:
    return tuple(number(word, "--batches") for word in words(args.batches))


def lengths(text: str) -> Iterator[DraftLength]:
    for word in words(text):
        yield "auto" if word == "auto" else number(word, "--k")


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []


def number(word: str, option: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise RequestError(f"{option}: {word!r} is no whole number; write them as in 1,4") from None


def _check(args: argparse.Namespace, wish: Wish) -> None:
    """What can be refused before a model is loaded or a server is asked."""
    bench_server.check(args)
    bench_engines.check(args)
    configs(wish.ks, wish.rules)
    check_draft(args.draft)
    if args.resume and not args.out:
        raise RequestError("--resume goes on with the file of --out: name it")
    if not args.resume and args.out and Path(args.out).exists():
        raise RequestError(f"{args.out} exists: go on with it by --resume, or give another --out")
    _try_files(args)


def check_draft(draft: str) -> None:
    """
    Raises:
        RequestError: the draft cannot be measured on prompts that come several times.
    """
    if draft in {"none", "prediction"}:
        raise RequestError(f"--draft {draft}: name a draft that proposes from the prompt alone, or leave it out")
    if "remember=" in draft:
        raise RequestError(
            f"--draft {draft}: the same prompts are answered several times, and remembered answers would make the "
            "later ones fast; leave remember= out"
        )


def _try_files(args: argparse.Namespace) -> None:
    """A wrong path is known before the work."""
    for name in filter(None, (args.json, args.html)):
        try:
            Path(name).open("ab").close()
        except OSError as error:
            raise RequestError(f"{name} cannot be written: {error.strerror or error}") from error


def plan_for(wish: Wish, prompts: list[Prompt], engine: Engine) -> tuple[Plan, list[Source]]:
    """The plan, and what each of its prompts stands for."""
    tokens: dict[str, tuple[int, ...]] = {}

    def encode(text: str) -> tuple[int, ...]:
        if text not in tokens:
            tokens[text] = tuple(engine.tokenizer.chat([{"role": "user", "content": text}]))
        return tokens[text]

    plan = plan_of(wish, prompts, encode, engine.context, _made(engine))
    texts = {p.id: p.text for p in prompts}
    return plan, [Source(texts[p.id], encode(texts[p.id])) for p in plan.prompts]


def _made(engine: Engine) -> Mapping[str, Any]:
    """What a plan says beside what was asked for."""
    told = engine.settings
    draft = {name.removeprefix("draft_"): value for name, value in told.items() if name.startswith("draft_")}
    target = {name: value for name, value in told.items() if not name.startswith("draft")}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ("draftproof", *sys.argv[1:]),
        "draftproof": __version__,
        "environment": environment(int(str(told.get("threads", 0)))),
        "target": Weights(engine.target.info.name, str(told.get("fingerprint", "")), target),
        "draft": Weights(str(told.get("draft", "")), str(draft.get("fingerprint", "")), draft),
    }


def _opened(path: Path, plan: Plan, again: bool) -> Results:
    if not again:
        return results.create(path, plan)
    return results.resume(path, plan, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load": load()})


def _say_how_to_go_on(err: Console, path: Path, file: Results) -> None:
    words = [w for w in ("draftproof", *sys.argv[1:]) if w != "--resume"]
    if not any(w == "--out" or w.startswith("--out=") for w in words):
        words += ["--out", str(path)]
    done, planned = len(file.done), len(file.result.plan.runs)
    err.print(f"interrupted: {done} of {planned} runs are in {path}. To go on:", soft_wrap=True, markup=False)
    err.print(shlex.join([*words, "--resume"]), soft_wrap=True, markup=False)


def _report(args: argparse.Namespace, result: Result, out: Console, err: Console) -> int:
    """Exit status 1 if the result is not complete."""
    found = figures(result)
    from draftproof.bench.report import terminal

    terminal.show(found, out)
    if args.json:
        _write(args.json, json.dumps(summary(found), indent=1, default=str, allow_nan=False) + "\n", err)
    if args.html:
        _write(args.html, _page(found, result), err)
    return 0 if found.complete else 1


def _page(found: Figures, result: Result) -> str:
    from draftproof.bench.report import html

    return html.page(found, result)


def _write(name: str, text: str, err: Console) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name} cannot be written: {error.strerror or error}") from error
    err.print(f"wrote {name}", soft_wrap=True, markup=False)
