"""`draftproof bench --server`: the options, and what is found out before a plan can be made.

Knows no terminal. What a server can do is found out by `bench.server`; what is measured there, by `bench.http`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from draftproof import __version__
from draftproof.bench.environment import environment
from draftproof.bench.groups import Load, Way
from draftproof.bench.measure import Asked, Runner, Source
from draftproof.bench.plan import Plan, Weights, Wish, configs, plan_of
from draftproof.bench.workloads import Prompt
from draftproof.types import DraftLength, RequestError, SamplingParams

if TYPE_CHECKING:
    from draftproof.bench.http import Pair
    from draftproof.bench.server import Probe, Server

N = TypeVar("N", int, float)
_ONLY_HERE = (
    "model",
    "device",
    "compile",
    "precision",
    "kv_precision",
    "kv_memory",
    "context",
    "threads",
    "bitwise",
    "draft",
    "draft_precision",
)
_ONLY_THERE = ("plain_server", "concurrency", "rate", "allow_remote", "timeout")
_PROBE = "Count from one to twenty."
_PROBE_TOKENS = 8
_TIMEOUT = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Behind the options of the model, of which the defaults are remembered."""
    group = parser.add_argument_group("a server instead of a model")
    group.add_argument("--server", metavar="URL", help="an OpenAI-compatible server, as http://127.0.0.1:8000")
    group.add_argument(
        "--plain-server", metavar="URL", help="the same without speculation, if a request cannot ask for it"
    )
    group.add_argument("--concurrency", metavar="LIST", help="requests always under way, as in 1,4,16 (default 1)")
    group.add_argument("--rate", metavar="LIST", help="requests a second at random times, as in 0.5,2")
    group.add_argument("--timeout", type=float, metavar="S", help=f"longest wait for a chunk (default {_TIMEOUT:g})")
    group.add_argument("--allow-remote", action="store_true", help="the server may be on another machine")
    names = (*_ONLY_HERE, *_ONLY_THERE, "batches")
    parser.set_defaults(unset={name: parser.get_default(name) for name in names})


def check(args: argparse.Namespace) -> None:
    """
    Raises:
        RequestError: an option would be ignored.
    """
    names = (*_ONLY_HERE, "batches") if args.server else _ONLY_THERE
    for name in names:
        if getattr(args, name) != args.unset[name]:
            option, where = f"--{name.replace('_', '-')}", "with" if args.server else "without"
            instead = ": say --concurrency" if name == "batches" else ""
            raise RequestError(f"{option} has no effect {where} --server{instead}")
    if args.concurrency is not None and args.rate is not None:
        raise RequestError("--concurrency and --rate are two ways to load a server: bench one after the other")
    if args.timeout is not None and not 0 < args.timeout < math.inf:
        raise RequestError(f"--timeout {args.timeout}: give seconds above 0")


def load_of(args: argparse.Namespace) -> tuple[Load, tuple[int, ...]]:
    """The load, and a plan's batch sizes."""
    if args.rate is not None:
        rates = _numbers(args.rate, "--rate", float)
        return Load(Way.OPEN, rates), tuple(range(1, len(rates) + 1))
    return Load(Way.CLOSED), _numbers("1" if args.concurrency is None else args.concurrency, "--concurrency", int)


def _numbers(text: str, option: str, kind: Callable[[str], N]) -> tuple[N, ...]:
    found: tuple[N, ...] = ()
    with suppress(ValueError):
        found = tuple(kind(word) for word in text.split(","))
    if not found or len(set(found)) < len(found) or not all(0 < n < math.inf for n in found):
        raise RequestError(f"{option} {text}: give numbers above 0, each once, as in 1,4")
    return found


@contextmanager
def prepared(
    args: argparse.Namespace, wish: Wish, prompts: list[Prompt]
) -> Iterator[tuple[Plan, list[Source], Runner]]:
    """Find out what the servers are and can do, and settle the plan.

    Raises:
        RequestError: a server is not there, or these cannot be compared.
    """
    try:
        from draftproof.bench import http
    except ModuleNotFoundError as error:
        raise RequestError(f"--server needs httpx ({error}): pip install 'draftproof[http]'") from error
    timeout = args.timeout or _TIMEOUT
    with ExitStack() as open_:
        probes = [open_.enter_context(_probe(url, name, args, timeout)) for url, name in _urls(args)]
        pair, ks, counted = _pair(args, wish, probes)
        wish = replace(wish, ks=ks)
        plan, sources = _plan(wish, prompts, probes[0], pair, counted)
    with http.HttpRunner(plan, pair, timeout) as runner:
        yield plan, sources, runner


def _urls(args: argparse.Namespace) -> list[tuple[str, str]]:
    plain = [(args.plain_server, "--plain-server")] if args.plain_server else []
    return [(args.server, "--server"), *plain]


def _probe(url: str, option: str, args: argparse.Namespace, timeout: float) -> Probe:
    from draftproof.bench.server import Probe, address

    return Probe(address(url, option, args.allow_remote), timeout)


def _pair(args: argparse.Namespace, wish: Wish, probes: Sequence[Probe]) -> tuple[Pair, tuple[DraftLength, ...], str]:
    """Who decodes what and how it is told, the draft lengths, and how tokens are counted."""
    from draftproof.bench.http import Pair

    servers = [probe.server() for probe in probes]
    main, plain = servers[0], servers[-1]
    if main.url == plain.url and len(servers) > 1:
        raise RequestError("--server and --plain-server are the same: leave --plain-server out")
    tokens = [p.encode(s.model, _PROBE) for p, s in zip(probes, servers, strict=True)]
    if all(tokens) and tokens[0] != tokens[-1]:
        raise RequestError("the two servers read a prompt as other tokens: start both with the same model")
    ids = all(tokens) and all(p.takes(s.model, tokens[0], {}) for p, s in zip(probes, servers, strict=True))
    prompt = tokens[0] if ids else _PROBE
    tells = probes[0].speculates(main.model, prompt, wish.ks)
    pair = Pair(main, plain, tells, ids)
    params = SamplingParams(temperature=0.0, max_tokens=_PROBE_TOKENS)
    answer = probes[0].streams(pair.body(configs(wish.ks, wish.rules)[-1], Asked("probe", _PROBE, tokens[0], params)))
    if not tells:
        return pair, _fixed(args, wish, plain == main, answer.drafts.longest), answer.counted.value
    return pair, wish.ks, answer.counted.value


def _fixed(args: argparse.Namespace, wish: Wish, alone: bool, longest: int) -> tuple[DraftLength, ...]:
    """The one draft length of a server that has been started with it."""
    if alone:
        raise RequestError(
            f"{args.server} does not take a draft length with each request: start the same model without speculation "
            "beside it and name that by --plain-server"
        )
    if wish.rules != ("block",):
        raise RequestError(f"--rule has no effect: {args.server} does not take it with each request")
    if args.k is None and longest:
        return (longest,)
    if args.k is None or len(wish.ks) != 1:
        raise RequestError(f"{args.server} has one draft length for all requests: say which by --k, as in --k 3")
    if longest and wish.ks[0] not in (longest, "auto"):
        raise RequestError(f"--k {wish.ks[0]}: {args.server} says that its draft length is {longest}")
    return wish.ks


def _plan(wish: Wish, prompts: list[Prompt], probe: Probe, pair: Pair, counted: str) -> tuple[Plan, list[Source]]:
    tokens: dict[str, tuple[int, ...]] = {}

    def encode(text: str) -> tuple[int, ...]:
        """No tokens where texts are sent: how many they make is the server's business."""
        if text not in tokens:
            tokens[text] = probe.encode(pair.server.model, text) if pair.ids else ()
            if pair.ids and not tokens[text]:
                raise RequestError(f"{probe.url} gave no tokens for a prompt: leave it out, {text[:60]!r}")
        return tokens[text]

    context = min(pair.server.context, pair.plain.context)
    plan = plan_of(wish, prompts, encode, context, _made(pair, counted))
    texts = {p.id: p.text for p in prompts}
    return plan, [Source(texts[p.id], encode(texts[p.id])) for p in plan.prompts]


def _made(pair: Pair, counted: str) -> Mapping[str, Any]:
    """What a plan says beside what was asked for. Fingerprints of weights are not known over HTTP."""
    settings = {
        "prompts": "token ids, in the model's chat template" if pair.ids else "texts, without a chat template",
        "tokens of a chunk by": counted,
        "draft length": "told with each request" if pair.tells else "the server's own",
    }
    where = {**_told("server", pair.server), **(_told("plain server", pair.plain) if pair.plain != pair.server else {})}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ("draftproof", *sys.argv[1:]),
        "draftproof": __version__,
        "environment": {**{k: v for k, v in environment(0).items() if k not in {"threads", "peak memory"}}, **where},
        "target": Weights(pair.server.model, "", settings),
        "draft": Weights("the server's own", "", {}),
    }


def _told(name: str, server: Server) -> dict[str, str]:
    found = {
        name: server.url,
        f"{name} version": server.version,
        f"{name} owner": server.owner,
        f"{name} model": server.model,
        f"{name} prefix cache": "emptied before each run" if server.resets else "as the server has it",
        f"{name} counts drafts": "yes" if server.counts else "no",
    }
    return {key: value for key, value in found.items() if value}
