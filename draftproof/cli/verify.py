"""`draftproof verify`: does a speculative decoder keep its target's law? A verdict a claim, with its power.

Knows no check: `verify.suite` says what is checked, `verify.run` how a run goes, `verify.outcome` what follows from it.
Exit status: 0 every claim holds, 1 not exact, 2 wrong usage, 3 could not be tested, 130 interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from draftproof.cli import verify_engine
from draftproof.types import RequestError
from draftproof.verify.contract import Budget
from draftproof.verify.outcome import Kill, conclude, read_expected
from draftproof.verify.plan import Leg, VerifyError, fingerprint, matches, select
from draftproof.verify.report import terminal
from draftproof.verify.report.data import Report, to_json
from draftproof.verify.report.junit import to_junit
from draftproof.verify.run import Progress, Ran, run_plan
from draftproof.verify.store import Store

_EXAMPLE = "example: draftproof verify --quick --html report.html, or for one claim: draftproof verify --checks 'law/*'"
TIMEOUTS = {"quick": 600.0, "default": 1800.0, "deep": 14400.0}  # seconds a check, before it counts as hung
_LIBRARIES = ("draftproof", "numpy", "openvino", "tokenizers", "scipy")


def _html(report: Report) -> str:
    from draftproof.verify.report.html import to_html  # a template engine that the other commands need not load

    return to_html(report)


_KINDS: dict[str, Callable[[Report], str]] = {"json": to_json, "html": _html, "junit": to_junit}


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "verify", help="test that speculation keeps the target's law", description=__doc__, epilog=_EXAMPLE
    )
    _add_subject(parser)
    _add_budget(parser)
    choice = parser.add_argument_group("choice")
    choice.add_argument("--checks", action="append", default=[], metavar="PATTERN", help="only these; may be repeated")
    choice.add_argument("--leg", action="append", default=[], metavar="PATTERN", help="only these subjects")
    choice.add_argument("--list", action="store_true", help="list subjects and checks with their claims, run nothing")
    choice.add_argument("--mutants", action="store_true", help="also show that planted faults are seen (kill matrix)")
    out = parser.add_argument_group("output")
    out.add_argument("--json", metavar="FILE", help="write one JSON object")
    out.add_argument("--html", metavar="FILE", help="write one self-contained page")
    out.add_argument("--junit", metavar="FILE", help="write JUnit XML for CI")
    out.add_argument("--resume", metavar="FILE", help="keep results here, and continue from what it holds")
    out.add_argument("--expect", metavar="FILE", help="TOML with [[expected]] check, reason and perhaps leg")
    parser.set_defaults(run=run)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("subject")
    group.add_argument("--model", default="toy", help="toy (default), torch:toy, or what generate takes")
    group.add_argument("--draft", action="append", default=[], help="may be repeated; default: all kinds")
    group.add_argument("--rule", action="append", default=[], help="may be repeated; default: all exact rules")
    verify_engine.add_options(parser)


def _add_budget(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("budget")
    level = group.add_mutually_exclusive_group()
    level.add_argument("--quick", dest="level", action="store_const", const="quick", help="under 2 minutes")
    level.add_argument("--deep", dest="level", action="store_const", const="deep", help="as long as it takes")
    told = Budget()
    group.add_argument("--alpha", type=float, default=told.alpha, help="chance that an honest engine fails anywhere")
    group.add_argument("--tv", type=float, default=told.tv, help="smallest distance that must be seen (default 0.02)")
    group.add_argument("--power", type=float, default=told.power, help="... with this probability (default 0.99)")
    group.add_argument("--seed", type=int, default=told.seed, metavar="N")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="a check that takes longer counts as hung")
    parser.set_defaults(level="default")


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if not out.is_terminal:
        out.width = 120  # a log has no width of its own
    try:
        with verify_engine.ending(args):
            return _run(args, out, err)
    except VerifyError as error:
        raise RequestError(str(error)) from error


def _run(args: argparse.Namespace, out: Console, err: Console) -> int:
    budget = _budget(args)
    verify_engine.check(args)
    expected = read_expected(Path(args.expect)) if args.expect else ()
    outputs = _outputs(args)
    legs = _legs(args, err)
    if args.list:
        _list(legs, out)
        return 0
    began = time.strftime("%Y-%m-%d %H:%M")
    timeout = args.timeout or TIMEOUTS[budget.level]
    with _stored(args, legs, budget) as store, display(err) as show:
        ran = run_plan(legs, budget, store=store, timeout=timeout, progress=show)
    kills, cut = (None, False) if ran.interrupted or not args.mutants else _mutants(args, budget, err)
    report = _report(args, ran, budget, expected, kills, began)
    terminal.show(report, out)
    for kind, path in outputs.items():
        _write(path, _KINDS[kind](report))
    survived = kills is not None and not all(kill.killed for kill in kills)
    return 130 if cut else report.outcome.status or int(survived)


def _budget(args: argparse.Namespace) -> Budget:
    for name in ("alpha", "tv", "power"):
        if not 0.0 < getattr(args, name) < 1.0:
            raise RequestError(f"--{name} {getattr(args, name)}: give a number between 0 and 1")
    if args.timeout is not None and not args.timeout > 0:
        raise RequestError(f"--timeout {args.timeout}: give seconds above 0")
    return Budget(args.alpha, args.tv, args.power, args.level, args.seed)


def _outputs(args: argparse.Namespace) -> dict[str, Path]:
    """Where to write what. Tried before the run: minutes must not end in a mistyped folder."""
    paths = {kind: Path(getattr(args, kind)) for kind in _KINDS if getattr(args, kind)}
    for path in paths.values():
        try:
            path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error}") from error
    return paths


def _legs(args: argparse.Namespace, err: Console) -> list[Leg]:
    with err.status("preparing subjects") if err.is_terminal else nullcontext():
        legs = verify_engine.legs(args, toys().parent) if args.engine != verify_engine.OURS else _own_legs(args)
    chosen = select(legs, args.checks, args.leg)
    if not chosen:
        raise RequestError("no check has such a name: see draftproof verify --list")
    return chosen


def _own_legs(args: argparse.Namespace) -> list[Leg]:
    from draftproof.verify import suite

    given: dict[str, Any] = {"model": args.model, "drafts": tuple(args.draft), "folder": toys()}
    if args.rule:
        given["rules"] = tuple(args.rule)
    return suite.legs(suite.Options(**given))


def toys() -> Path:
    """Where toy checkpoints are kept."""
    from draftproof.model.fetch import cache_dir

    return cache_dir() / "toy"


def _list(legs: Sequence[Leg], out: Console) -> None:
    for leg in legs:
        out.print(Text(leg.name, style="bold"))
        width = max(len(check.name) for check in leg.checks)
        for check in leg.checks:
            out.print(Text(f"  {check.name:{width}}  {check.claim}"), soft_wrap=True)


@contextmanager
def _stored(args: argparse.Namespace, legs: Sequence[Leg], budget: Budget) -> Iterator[Store | None]:
    if not args.resume:
        yield None
        return
    header = {"plan": fingerprint(legs), "versions": versions(), **asdict(budget), "subject": _subject(args)}
    with Store(Path(args.resume), header) as store:
        yield store


@contextmanager
def display(err: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left on a terminal, a line a check elsewhere."""
    if not err.is_terminal:
        yield lambda at: None if at.entry is None else err.print(_line(at), soft_wrap=True)
        return
    what = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    when = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*what, *when, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(at: Progress) -> None:
            bar.update(task, description=f"{at.leg} / {at.check}", completed=at.done, total=at.total)

        yield show


def _line(at: Progress) -> Text:
    result = at.entry.result if at.entry else None
    told = f"{result.verdict} ({result.seconds:.1f} s)" if result else ""
    return Text(f"{at.done}/{at.total} {at.leg} / {at.check}: {told}")


def _mutants(args: argparse.Namespace, budget: Budget, err: Console) -> tuple[tuple[Kill, ...], bool]:
    """What became of the planted faults, and whether the user had enough of it."""
    from draftproof.verify import suite

    found: list[Kill] = []
    cut = False
    with _saying(err) as said:
        try:
            found.extend(suite.mutant_matrix(budget, (budget.seed,), said))
        except KeyboardInterrupt:
            cut = True
    return tuple(k for k in found if not args.checks or matches(k.expected_check, args.checks)), cut


@contextmanager
def _saying(err: Console) -> Iterator[Callable[[str], None]]:
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("planted faults") as status:
        yield lambda name: status.update(f"planted fault: {name}")


def _report(
    args: argparse.Namespace, ran: Ran, budget: Budget, expected: Any, kills: tuple[Kill, ...] | None, began: str
) -> Report:
    return Report(
        conclude(ran, budget, expected),
        budget,
        command=shlex.join(["draftproof", *sys.argv[1:]]),
        base=_base(args),
        versions=versions(),
        settings=_subject(args),
        engines=ran.engines,
        kills=kills,
        when=began,
    )


def _subject(args: argparse.Namespace) -> dict[str, str]:
    """What was asked for, in words that a file can hold."""
    rules, drafts = ", ".join(args.rule) or "all exact ones", ", ".join(args.draft) or "all kinds"
    own = {"engine": args.engine, "model": args.model, "drafts": drafts, "rules": rules}
    return own | verify_engine.subject(args)


def _base(args: argparse.Namespace) -> str:
    """The command that names the same subject and budget, without outputs and choices."""
    told = Budget()
    words = ["draftproof", "verify", *verify_engine.words(args)]
    words += ["--model", args.model] * (args.model != "toy")
    words += [w for draft in args.draft for w in ("--draft", draft)]
    words += [w for rule in args.rule for w in ("--rule", rule)]
    words += [f"--{args.level}"] * (args.level != "default")
    for name in ("alpha", "tv", "power"):
        words += [f"--{name}", f"{getattr(args, name):g}"] * (getattr(args, name) != getattr(told, name))
    return shlex.join([*words, "--seed", str(args.seed)])


def versions() -> dict[str, str]:
    """Of what decides the results; `code` is a hash over this package's own files."""
    package = Path(__file__).parent.parent
    code = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(package.rglob("*.py")))).hexdigest()[:12]
    return {name: _version(name) for name in _LIBRARIES} | {
        "python": platform.python_version(),
        "code": code,
        "machine": platform.platform(),
    }


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}") from error
