"""`draftproof audit`: the conformance suite over several engines and their modes, and one page of what was found.

Every check that fails is run again with a fresh seed and with speculation off before anything is said of it. Knows no
engine and no check. Exit status: 0 all stand as promised, 1 something does not, 3 something could not be tested.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.cli import verify, verify_engine
from draftproof.types import RequestError
from draftproof.verify.contract import Budget
from draftproof.verify.plan import VerifyError
from draftproof.verify.run import Progress

_EXAMPLE = (
    "example: draftproof audit --engine genai --engine draftproof --quick --json audit.json --html audit.html, "
    "after draftproof audit --prepare genai"
)
_TIMEOUT = 7200.0


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "audit", help="run the conformance suite over several engines", description=__doc__, epilog=_EXAMPLE
    )
    parser.add_argument("--prepare", action="append", default=[], metavar="NAME", help="install an engine, and end")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME[:MODE,...]", help="may be repeated")
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    parser.add_argument("--show", action="append", default=[], metavar="FILE", help="results to show, and run nothing")
    parser.add_argument("--quick", action="store_true", help="a quarter of the precision, a sixteenth of the samples")
    told = Budget()
    parser.add_argument("--tv", type=float, default=told.tv, help="smallest distance that must be seen (default 0.02)")
    parser.add_argument("--seed", type=int, action="append", default=[], help="a run each; default: 1 and 2")
    parser.add_argument(
        "--folder", metavar="FOLDER", default="audit", help="where results are kept, to go on after a stop"
    )
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT, metavar="SECONDS", help="of a check, until it is hung"
    )
    parser.add_argument("--json", metavar="FILE", help="write one JSON array, an object a seed")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        if args.prepare:
            return _prepare(args.prepare, err)
        audits = _shown(args) if args.show else _audited(args, err)
    except VerifyError as error:
        raise RequestError(str(error)) from error
    _table(audits, out)
    _written(args, audits)
    return _status(audits)


def _prepare(names: Sequence[str], err: Console) -> int:
    from draftproof.verify.adapters import environment, registry

    for name in names:
        err.print(f"installing {name}: this can take minutes")
        err.print(f"{name} is ready: {environment.prepare(_engines(), name, registry.adapter(name).packages)}")
    return 0


def _engines() -> Path:
    return verify.toys().parent / "engines"


def _shown(args: argparse.Namespace) -> list[dict[str, Any]]:
    from draftproof.audit.record import read

    return [audit for file in args.show for audit in read(Path(file))]


def _audited(args: argparse.Namespace, err: Console) -> list[dict[str, Any]]:
    if not args.engine:
        raise RequestError("name at least one --engine, or what to --prepare or --show")
    with verify.display(err) as show:
        return [_one(args, seed, show) for seed in args.seed or (1, 2)]


def _one(args: argparse.Namespace, seed: int, show: Callable[[Progress], None]) -> dict[str, Any]:
    """One run over all cases."""
    from draftproof.audit.cases import cases
    from draftproof.audit.record import to_record
    from draftproof.audit.run import How, audit

    began = time.strftime("%Y-%m-%d %H:%M")
    budget = Budget(tv=args.tv, level="quick" if args.quick else "default", seed=seed)
    versions = {name: told for name, told in verify.versions().items() if name != "code"}
    how = How(budget, versions, Path(args.folder), args.timeout, show)
    options = verify_engine.named(args.engine_option)
    asked = [word.partition(":") for word in args.engine]
    every = [cases(n, m.split(",") if m else (), _engines(), verify.toys(), options) for n, _, m in asked]
    findings = [audit(case, how) for some in every for case in some]
    return to_record(findings, budget, versions, shlex.join(_again(args, seed)), began)


def _again(args: argparse.Namespace, seed: int) -> list[str]:
    """The command that runs the same once more, without where it writes."""
    named = [word for name in args.engine for word in ("--engine", name)]
    named += [word for pair in args.engine_option for word in ("--engine-option", pair)]
    return ["draftproof", "audit", *named, *["--quick"] * args.quick, "--tv", f"{args.tv:g}", "--seed", str(seed)]


def _table(audits: Sequence[dict[str, Any]], out: Console) -> None:
    table = Table("engine", "mode", "promise", "seed", "verdict", "standing", title="audit", title_justify="left")
    for audit in audits:
        for f in audit["findings"]:
            row = (f["engine"], f["mode"], f["promise"], str(audit["budget"]["seed"]), f["verdict"], f["standing"])
            table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _written(args: argparse.Namespace, audits: Sequence[dict[str, Any]]) -> None:
    from draftproof.audit.page import to_html
    from draftproof.audit.record import to_json

    for path, make in ((args.json, to_json), (args.html, to_html)):
        if path:
            try:
                Path(path).write_text(make(audits), encoding="utf-8")
            except OSError as error:
                raise RequestError(f"{path} cannot be written: {error}") from error


def _status(audits: Sequence[dict[str, Any]]) -> int:
    standings = {f["standing"] for audit in audits for f in audit["findings"]}
    if standings <= {"as promised"}:
        return 0
    return 3 if standings <= {"as promised", "could not be tested"} else 1
