"""`draftproof verify --engine`: the options of engines that are not ours, and the legs that follow from them.

Knows no engine: `verify.foreign` says what is checked, `verify.adapters` how an engine is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from draftproof.types import RequestError
from draftproof.verify.adapters.registry import MODULES
from draftproof.verify.plan import Leg

OURS = "draftproof"
_LENGTH = 3
_ONLY_FOREIGN = ("mode", "url", "plain_url", "launch", "k", "engine_option")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("another engine")
    told = f"{OURS} (default), {', '.join(MODULES)}, or a module of yours"
    group.add_argument("--engine", type=_engine, default=OURS, metavar="NAME", help=told)
    group.add_argument("--launch", action="store_true", help="start it here and end it afterwards")
    group.add_argument("--url", metavar="URL", help="one that runs already, as http://127.0.0.1:8000")
    group.add_argument("--plain-url", metavar="URL", help="the same model there without speculation, as a control")
    group.add_argument("--mode", action="append", default=[], help="way to draft, may be repeated; default: all it has")
    group.add_argument("--k", type=int, metavar="N", help=f"draft length that it is started with (default {_LENGTH})")
    group.add_argument(
        "--engine-option", action="append", default=[], metavar="NAME=VALUE", help="of its adapter; may be repeated"
    )


def _engine(name: str) -> str:
    if name != OURS and name not in MODULES and "." not in name:
        raise argparse.ArgumentTypeError(f"no engine is called {name!r}: give one of {OURS}, {', '.join(MODULES)}")
    return name


def check(args: argparse.Namespace) -> None:
    """
    Raises:
        RequestError: an option would be ignored.
    """
    if args.engine == OURS:
        for name in _ONLY_FOREIGN:
            if getattr(args, name):
                raise RequestError(f"--{name.replace('_', '-')} has no effect on our own engine: name an --engine")
        return
    if args.rule:
        raise RequestError(f"--rule has no effect on {args.engine}: its ways to draft are chosen by --mode")
    if len(args.draft) > 1:
        raise RequestError(f"--draft: {args.engine} is started with one draft model: name one")
    if bool(args.url) == args.launch:
        raise RequestError(f"--engine {args.engine}: say either --launch, to start it here, or --url, where it runs")
    if args.plain_url and not args.url:
        raise RequestError("--plain-url is the control of --url: with --launch it is started as well")
    if args.k is not None and args.k < 1:
        raise RequestError(f"--k {args.k}: give at least 1")


def ending(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Where a server is started, it is ended with us."""
    from draftproof.verify.adapters import launch

    return launch.ending_with_us() if args.launch else nullcontext()


def legs(args: argparse.Namespace, cache: Path) -> list[Leg]:
    """A leg a mode.

    Raises:
        RequestError: an option is not as it must be.
        VerifyError: see `foreign.legs`.
    """
    from draftproof.verify import foreign

    wish = foreign.Wish(
        engine=args.engine,
        home=cache / "engines",
        toys=cache / "toy",
        modes=tuple(args.mode),
        model=args.model,
        draft=args.draft[0] if args.draft else "",
        k=args.k or _LENGTH,
        url=args.url or "",
        options=options(args),
    )
    return foreign.legs(wish)


def options(args: argparse.Namespace) -> dict[str, str]:
    return named(args.engine_option) | ({"plain_url": args.plain_url} if args.plain_url else {})


def named(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words as a table.

    Raises:
        RequestError: a word is no such pair.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := next((name for name, sign, _ in pairs if not (name and sign)), None):
        raise RequestError(f"--engine-option {wrong}: write NAME=VALUE, as in threads=2")
    return {name: value for name, _, value in pairs}


def words(args: argparse.Namespace) -> list[str]:
    """What names the same subject again."""
    if args.engine == OURS:
        return []
    told: list[str] = ["--engine", args.engine, *["--launch"] * args.launch]
    for name in ("url", "plain_url", "k"):
        if getattr(args, name) is not None:
            told += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    for name, values in (("--mode", args.mode), ("--engine-option", args.engine_option)):
        told += [word for value in values for word in (name, value)]
    return told


def subject(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, in words that a file can hold."""
    if args.engine == OURS:
        return {}
    where = args.url or "started here"
    return {"modes": ", ".join(args.mode) or "all", "where": where, "options": ", ".join(args.engine_option) or "none"}
