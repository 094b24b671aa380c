"""`draftproof serve MODEL --engine vllm`: start vLLM with the speculation that tune recommended, and end it with us.

Knows tune's JSON, which of the words are ours, and that all others are vLLM's: these are passed on as they are.
Exit status: vLLM's own when it ends, 1 if --verify found it not exact, 3 if it could not be tested.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from draftproof.model.fetch import cache_dir
from draftproof.types import RequestError
from draftproof.verify.adapters import launch
from draftproof.verify.contract import EngineError
from draftproof.verify.plan import VerifyError

NAME = "vllm"
_EXAMPLE = (
    "example: draftproof serve Qwen/Qwen3-8B --engine vllm --advice advice.json --tensor-parallel-size 2, "
    "where the last option is vLLM's own"
)
_SCALING = (
    "to scale: --tensor-parallel-size N over the GPUs of one machine, --pipeline-parallel-size N over machines with "
    "Ray, --data-parallel-size N for copies; all are passed to vLLM. docs/scaling.md says which one when."
)


def asked(argv: Sequence[str]) -> bool:
    """Whether these words are for vLLM. Its options must not be read by our parser, which knows some of their names."""
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    named = any(a == f"--engine={NAME}" or (a, b) == ("--engine", NAME) for a, b in pairs)
    return argv[:1] == ["serve"] and named


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Our words in their fields, the others in `passed`."""
    parser = argparse.ArgumentParser(
        prog="draftproof serve --engine vllm", description=__doc__, epilog=_EXAMPLE, allow_abbrev=False
    )
    parser.add_argument("model", metavar="MODEL", help="a name or a folder, as vLLM takes it")
    parser.add_argument("--engine", help="vllm")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default 8000; 0 takes a free one")
    parser.add_argument("--advice", metavar="FILE", help="what draftproof tune --json wrote")
    parser.add_argument("--verify", action="store_true", help="then compare speculation with a plain copy, quickly")
    parser.add_argument(
        "--python", metavar="FILE", help="interpreter of vLLM's environment (default: the prepared one)"
    )
    parser.add_argument("--log", metavar="FILE", help="default: in the cache folder")
    parser.add_argument(
        "--patience", type=float, default=1800.0, metavar="S", help="seconds to start in (default 1800)"
    )
    args, passed = parser.parse_known_args(argv[1:])
    args.passed, args.run = passed, run
    return args


def run(args: argparse.Namespace) -> int:
    console = Console(highlight=False)
    try:
        with launch.ending_with_us():
            return _run(args, console)
    except (VerifyError, EngineError) as error:
        raise RequestError(str(error)) from error


def _run(args: argparse.Namespace, console: Console) -> int:
    command = _command(args)
    with console.status(f"vLLM starts, its log is {command.log}") if console.is_terminal else nullcontext():
        server = launch.start(command, args.port)
    try:
        console.print(f"listening on {server.url}; log: {command.log}", soft_wrap=True, markup=False)
        console.print(_SCALING, soft_wrap=True, markup=False)
        if args.verify and (status := _verified(args, server.url)):
            return status
        status = server.wait()
        return status if status >= 0 else 128 - status
    finally:
        server.stop()


def _command(args: argparse.Namespace) -> launch.Command:
    from draftproof.verify.adapters import environment, vllm

    options = {"python": args.python} if args.python else {}
    python = vllm.interpreter(cache_dir() / "engines", options)
    if python is None:
        raise RequestError(
            f"vLLM is not installed: run {environment.command(NAME)}, or name its interpreter by --python"
        )
    more = [*_speculation(args), *args.passed]

    def words(port: int) -> list[str]:
        return [*vllm.front(python, args.model), "--host", args.host, "--port", str(port), *more]

    log = Path(args.log) if args.log else cache_dir() / "engines" / NAME / "serve.log"
    return launch.Command("vLLM", words, log, patience=args.patience, host=args.host)


def _speculation(args: argparse.Namespace) -> list[str]:
    """vLLM's words for what tune advised. Words of the user's own stand instead of advice, not beside it.

    Raises:
        RequestError: the file is not tune's, or says one thing and the user another.
    """
    own = any(word.partition("=")[0] in {"--speculative-config", "-sc"} for word in args.passed)
    if not args.advice:
        return []
    if own:
        raise RequestError("--advice and --speculative-config say one thing twice: give one of them")
    try:
        lines = json.loads(Path(args.advice).read_text(encoding="utf-8"))["configurations"]["vLLM"]
        words = shlex.split(lines[0])[3:]  # behind `vllm serve MODEL`
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RequestError(f"{args.advice} holds no advice for vLLM: write it with draftproof tune --json") from error
    if '"model": "DRAFT"' in " ".join(words):
        raise RequestError(f"{args.advice} is for a head of ours: name one in vLLM's format by --speculative-config")
    return words


def _verified(args: argparse.Namespace, url: str) -> int:
    """The quick verify's exit status, against a copy without speculation that is started beside it and ended."""
    from draftproof.cli import main

    told = {"advice": None, "passed": without(args.passed), "host": "127.0.0.1"}
    plain = _command(argparse.Namespace(**{**vars(args), **told}))
    server = launch.start(replace(plain, log=plain.log.with_name("plain.log")))
    try:
        words = ["verify", "--engine", NAME, "--mode", "draft", "--model", args.model, "--url", url]
        return main.main([*words, "--plain-url", server.url, "--quick"])
    finally:
        server.stop()


def without(passed: Sequence[str]) -> list[str]:
    """The words without speculation."""
    kept, skip = [], False
    for word in passed:
        name, given, _ = word.partition("=")
        if not skip and name not in {"--speculative-config", "-sc"}:
            kept.append(word)
        skip = not skip and name in {"--speculative-config", "-sc"} and not given
    return kept
