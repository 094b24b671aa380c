"""`draftproof serve`: an OpenAI-compatible HTTP server on one engine.

Knows options and what they resolve to. Requests are the server's, uvicorn is `server/run.py`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from draftproof.admission import rule_named
from draftproof.cli import options
from draftproof.engine import Engine
from draftproof.length.profile import from_json
from draftproof.types import DraftLength, RequestError

_WHAT = "Answers OpenAI-compatible HTTP requests, with speculation that each request may choose."
_EXAMPLE = "example: draftproof serve smollm2 --port 8000, then curl http://127.0.0.1:8000/v1/models"
_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
_DEFAULT_MODEL = "smollm2"


def register(commands: Any) -> None:
    parser = commands.add_parser("serve", help="answer HTTP requests", description=_WHAT, epilog=_EXAMPLE)
    parser.add_argument("name", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument(
        "--engine", choices=("draftproof", "vllm"), default="draftproof", help="vllm: see serve --engine vllm --help"
    )
    _add_server(parser)
    options.add_model(parser)
    options.add_draft(parser)
    _add_vllm(parser)
    parser.set_defaults(run=run)


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="default 8000; 0 takes a free one")
    group.add_argument("--api-key", metavar="KEY", help="what clients must send; default: DRAFTPROOF_API_KEY, or none")
    group.add_argument("--served-model-name", metavar="NAME", help="what clients ask for (default: the model's name)")
    group.add_argument("--max-num-seqs", type=int, default=16, metavar="N", help="most requests a step (default 16)")
    group.add_argument("--max-queue", type=int, default=256, metavar="N", help="most requests that wait (default 256)")
    group.add_argument(
        "--prefix-cache",
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep what was computed for prompts that begin alike (default)",
    )
    group.add_argument("--grace", type=float, default=10.0, metavar="S", help="seconds to finish in after SIGTERM")
    group.add_argument("--metrics-prefix", choices=("draftproof", "vllm"), default="draftproof")
    group.add_argument("--log-level", choices=_LEVELS, default="info")


def _add_vllm(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the same in vLLM's words")
    group.add_argument("--max-model-len", type=int, metavar="N", help="--context")
    group.add_argument(
        "--kv-cache-memory", "--kv-cache-memory-bytes", metavar="BYTES", help="--kv-memory, as 1073741824 or 1G"
    )
    group.add_argument("--speculative-config", "-sc", metavar="JSON", help="--draft and --k")
    group.add_argument("--spec-method", metavar="NAME", help="method of --speculative-config")
    group.add_argument("--spec-model", metavar="NAME", help="its model")
    group.add_argument("--spec-tokens", type=int, metavar="N", help="its num_speculative_tokens")


def run(args: argparse.Namespace) -> int:
    try:
        from draftproof.server.metrics import Metrics
        from draftproof.server.run import bound, serve
        from draftproof.server.service import Service, Settings
    except ImportError as error:
        raise RequestError(f"{error.name} is missing: pip install 'draftproof[serve]'") from error
    console = Console(highlight=False)
    resolve(args)
    with ExitStack() as files:
        place = files.enter_context(bound(args.host, args.port))
        records: list[dict[str, Any]] = []
        engine = _engine(args, console, [*_decisions(args.decisions, files), partial(_costs, records)])
        settings = Settings(
            name=args.served_model_name or args.model,
            root=args.model,
            api_key=args.api_key,
            max_queue=args.max_queue,
            grace=args.grace,
            rule=args.rule,
            metrics_prefix=args.metrics_prefix,
        )
        service = Service(
            engine, settings, Metrics(engine, settings.name, settings.metrics_prefix, *map(from_json, records))
        )
        _state(console, args, engine)
        began = serve(service, place, lambda url: console.print(f"listening on {url}"), args.log_level)
    return 0 if began else 1


def resolve(args: argparse.Namespace) -> None:
    """vLLM's words into ours, in place.

    Raises: RequestError: an option is out of its range, or contradicts another one.
    """
    _resolve_model(args)
    _resolve_draft(args)
    rule_named(args.rule)
    if args.api_key is None:
        args.api_key = os.environ.get("DRAFTPROOF_API_KEY", "")
    elif not args.api_key:
        raise RequestError("--api-key is empty: give a key, or leave it out")
    for name, least in (("max_num_seqs", 1), ("max_queue", 0), ("grace", 0), ("port", 0)):
        if getattr(args, name) < least:
            raise RequestError(f"--{name.replace('_', '-')} {getattr(args, name)}: give at least {least}")
    if args.port > 65535:
        raise RequestError(f"--port {args.port}: give at most 65535")


def _resolve_model(args: argparse.Namespace) -> None:
    if args.name is not None:
        if args.model not in {_DEFAULT_MODEL, args.name}:
            raise RequestError(f"{args.name} and --model {args.model}: name one model")
        args.model = args.name
    if args.max_model_len is not None:
        if args.context not in {0, args.max_model_len}:
            raise RequestError("--max-model-len and --context are two words for one thing: give one")
        args.context = args.max_model_len
    if args.kv_cache_memory is not None:
        args.kv_memory = _mebibytes(args.kv_cache_memory)


def _mebibytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:ib|b)?", text.strip().lower())
    if found is None:
        raise RequestError(f"--kv-cache-memory {text}: write bytes as 1073741824, or 512M, or 1G")
    size = float(found[1]) * 1024 ** "kmgt".find(found[2]) * 1024 if found[2] else float(found[1])
    if size < 1 << 20:
        raise RequestError(f"--kv-cache-memory {text}: give at least 1M")
    return int(size) >> 20


def _resolve_draft(args: argparse.Namespace) -> None:
    from draftproof.server import vllm

    short = {"method": args.spec_method, "model": args.spec_model, "num_speculative_tokens": args.spec_tokens}
    short = {name: value for name, value in short.items() if value is not None}
    if args.speculative_config is not None or short:
        if args.draft != "auto" or args.k is not None:
            raise RequestError("--speculative-config says what --draft and --k say: give one of them")
        whole = vllm.parsed(args.speculative_config) if args.speculative_config is not None else {}
        args.draft, args.k = vllm.of_config({**whole, **short})
    if args.draft == "none" and args.k:
        raise RequestError(f"--k {args.k} has no effect with --draft none: name a draft, or leave --k out")
    if args.draft_precision and args.draft.partition(":")[0] in {"none", "ngram", "suffix", "prediction"}:
        raise RequestError(f"--draft-precision has no effect with --draft {args.draft}: it is for draft models")
    if args.k is None:
        args.k = 0 if args.draft == "none" else "auto"
    if args.decisions and args.k != "auto":
        raise RequestError(f"--decisions has no effect with --k {args.k}: it is for --k auto")


def _engine(args: argparse.Namespace, console: Console, heard: list[Callable[[dict[str, Any]], None]]) -> Engine:
    k: DraftLength = args.k
    return options.load_engine(
        args, console, max_running=args.max_num_seqs, k=k, decisions=heard, prefix_cache=args.prefix_cache
    )


def _costs(found: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Keeps what steps cost, which is told before the first decision."""
    if "profile" in record:
        found.append(record["profile"])


def _decisions(path: str | None, files: ExitStack) -> list[Callable[[dict[str, Any]], None]]:
    """Who hears of decisions: a file, line by line, or nobody."""
    if not path:
        return []
    try:
        file = files.enter_context(Path(path).open("w", encoding="utf-8"))  # noqa: SIM115 - `files` closes it
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}") from error
    return [lambda record: print(json.dumps(record), file=file)]


def _state(console: Console, args: argparse.Namespace, engine: Engine) -> None:
    """The resolved configuration, without the key."""
    told = {
        "model": args.model,
        "served as": args.served_model_name or args.model,
        **{name: value for name, value in engine.settings.items() if name not in {"model", "source"}},
        "k": args.k,
        "rule": args.rule,
        "max model len": engine.context,
        "KV pages": f"{engine.pool.total} of {engine.pool.page_size} tokens",
        "max num seqs": args.max_num_seqs,
        "max queue": args.max_queue,
        "prefix cache": "on" if args.prefix_cache else "off",
        "grace": f"{args.grace:g} s",
        "metrics prefix": args.metrics_prefix,
        "api key": "asked for" if args.api_key else "none",
    }
    for name, value in told.items():
        console.print(f"{name.replace('_', ' ')}: {value}", markup=False, soft_wrap=True)
    if not args.api_key and args.host not in {"127.0.0.1", "::1", "localhost"}:
        console.print("anybody who reaches this address may use the server: give --api-key to change that")
