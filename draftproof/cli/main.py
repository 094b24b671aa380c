"""The `draftproof` command: finds the subcommand and turns known errors into one line and an exit status.

Knows no subcommand's business. Exit status: 0 done, 1 the work failed, 2 wrong usage or input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from draftproof import __version__
from draftproof.cli import serve_vllm

COMMANDS = ("generate", "serve", "verify", "bench", "tune", "accept", "audit", "distill", "fidelity", "cost", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="draftproof",
        description="Speculative decoding that can be proved.",
        epilog="example: echo 'Why is the sky blue?' | draftproof generate --compare",
    )
    parser.add_argument("--version", action="version", version=f"draftproof {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"draftproof.cli.{name}")
        module.register(commands)
    words = sys.argv[1:] if argv is None else argv
    return _run(serve_vllm.parsed(words) if serve_vllm.asked(words) else parser.parse_args(words))


def _run(args: argparse.Namespace) -> int:
    from draftproof.model.checkpoint import ModelError
    from draftproof.types import RequestError

    try:
        return int(args.run(args))
    except (ModelError, RequestError) as error:
        print(f"draftproof: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("draftproof: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads any more; be quiet about it
        return 1


if __name__ == "__main__":
    sys.exit(main())
