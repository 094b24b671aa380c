"""`draftproof bench --engine`: other engines beside ours in one interleaved run, each plain and with its speculation.

Knows how adapters are started, and that the same prompts go to all as the same tokens. What is measured is the plan's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from draftproof.bench.measure import Asked, Runner
from draftproof.bench.plan import Plan, configs, other
from draftproof.model.fetch import cache_dir, smollm2_gguf
from draftproof.types import RequestError
from draftproof.verify.contract import EngineError, Job, Params
from draftproof.verify.plan import VerifyError

if TYPE_CHECKING:
    from draftproof.bench.side import Answered, Side
    from draftproof.verify.adapters.registry import Adapter, Setup

_TIMEOUT = 600.0
_K = 4
# as their makers ship them, not as they are verified
_DEFAULTS = {
    "llama-server": {"kv": "f16", "attention": "auto"},
    "vllm": {"dtype": "auto", "args": "--no-enable-prefix-caching"},
}
_FIELDS = {"llama-server": {"cache_prompt": False}}  # a prompt that comes again is read again


class Chosen(NamedTuple):
    engine: str
    mode: str


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("other engines beside ours")
    group.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME[:MODE,...]",
        help="start it here and measure it too; may be repeated; default modes: plain, and looked-up drafts",
    )
    group.add_argument(
        "--engine-model",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the same model in that engine's form, where ours is not a GGUF file and cannot be written as safetensors",
    )
    group.add_argument("--engine-draft", action="append", default=[], metavar="NAME=PATH", help="its draft model")
    group.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE", help="of all adapters")


def check(args: argparse.Namespace) -> None:
    """
    Raises:
        RequestError: an option would be ignored.
    """
    if args.engine and args.server:
        raise RequestError("--engine measures other engines beside ours, --server one server alone: give one of them")
    for name in ("engine_model", "engine_draft", "engine_option"):
        if getattr(args, name) and not args.engine:
            raise RequestError(f"--{name.replace('_', '-')} has no effect without --engine")


def chosen(args: argparse.Namespace) -> tuple[Chosen, ...]:
    """Engines with their modes, in the order of the command line.

    Raises:
        RequestError: there is none of that name, or one is named twice.
    """
    found: list[Chosen] = []
    for word in args.engine:
        name, _, modes = word.partition(":")
        found += [Chosen(name, mode) for mode in (modes.split(",") if modes else _usual(_adapter(name)))]
    for each in found:
        if each.mode not in _adapter(each.engine).modes:
            told = ", ".join(_adapter(each.engine).modes)
            raise RequestError(f"--engine {each.engine}:{each.mode}: it has the modes {told}")
    if len(set(found)) < len(found):
        raise RequestError("--engine: name each mode of an engine once")
    return tuple(found)


def _usual(adapter: Adapter) -> list[str]:
    """Without a draft model: plain decoding and looked-up drafts."""
    from draftproof.verify.adapters.registry import Drafting

    return [name for name, mode in adapter.modes.items() if mode.drafting in (Drafting.NONE, Drafting.LOOKUP)]


def _adapter(name: str) -> Adapter:
    from draftproof.verify.adapters.registry import adapter

    try:
        return adapter(name)
    except VerifyError as error:
        raise RequestError(str(error)) from error


@contextmanager
def beside(args: argparse.Namespace, plan: Plan, ours: Runner, threads: int, context: int) -> Iterator[Runner]:
    """A runner for all of the plan's configurations; the engines live as long as it.

    Raises:
        RequestError: one is not there, has no model, or does not start.
    """
    if not args.engine:
        yield ours
        return
    from draftproof.bench.side import SideBySide
    from draftproof.verify.adapters import launch

    sides: dict[str, Side] = {}
    with launch.ending_with_us(), ExitStack() as started:
        for each in chosen(args):
            try:
                setup = _setup(args, each, plan, threads, context)
                sides[other(*each).name] = _side(each, setup, plan, started)
            except (EngineError, VerifyError) as error:
                raise RequestError(str(error)) from error
        yield SideBySide(ours, sides)


def _setup(args: argparse.Namespace, each: Chosen, plan: Plan, threads: int, context: int) -> Setup:
    from draftproof.verify.adapters.registry import Drafting, Setup

    models, drafts = (_named(words, option) for words, option in _files(args))
    model = models.get(each.engine) or _ours(args.model, each)
    needs = _adapter(each.engine).modes[each.mode].drafting is Drafting.MODEL
    if needs and each.engine not in drafts:
        raise RequestError(f"--engine {each.engine}:{each.mode} needs a draft model: name it by --engine-draft")
    options = {
        **_DEFAULTS.get(each.engine, {}),
        "threads": str(threads),
        "slots": str(max(plan.batches)),
        "context": str(context),
        **_named(args.engine_option, "--engine-option"),
    }
    return Setup(each.mode, model, drafts.get(each.engine, ""), cache_dir() / "engines", _K, options=options)


def _ours(model: str, each: Chosen) -> str:
    """Our model in the engine's form, where it has one.

    Raises:
        RequestError: it must be named.
    """
    from draftproof.model.export import hugging_face
    from draftproof.verify.adapters.registry import Form

    form = _adapter(each.engine).form
    if form is Form.GGUF and (model == "smollm2" or model.endswith(".gguf")):
        return str(smollm2_gguf()) if model == "smollm2" else model
    if form is Form.HF:
        return str(hugging_face(model))
    raise RequestError(f"--engine {each.engine} needs {model} in its form, {form}: name it by --engine-model")


def _files(args: argparse.Namespace) -> list[tuple[Sequence[str], str]]:
    return [(args.engine_model, "--engine-model"), (args.engine_draft, "--engine-draft")]


def _named(words: Sequence[str], option: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if wrong := next((name for name, sign, _ in pairs if not (name and sign)), ""):
        raise RequestError(f"{option} {wrong}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _side(each: Chosen, setup: Setup, plan: Plan, started: ExitStack) -> Side:
    """Over HTTP where the adapter serves, so that times are those of each chunk; else answers in one piece."""
    from draftproof.bench.side import Side, WholeRunner

    adapter, config = _adapter(each.engine), other(*each)
    if missing := adapter.missing(setup):
        raise VerifyError(missing)
    serve: Callable[[Setup], tuple[str, Callable[[], None]]] | None = getattr(adapter, "serve", None)
    if serve is None:
        engine = adapter.engine(setup)
        started.callback(engine.close)
        return Side(WholeRunner(lambda asked: _answered(engine, asked)), config)
    url, stop = serve(setup)
    started.callback(stop)
    runner = started.enter_context(_http(url, plan, _FIELDS.get(each.engine, {})))
    plain = configs((1,), ("block",))[0]
    return Side(runner, plain if each.mode == "plain" else config)


def _http(url: str, plan: Plan, more: Mapping[str, Any]) -> Any:
    from draftproof.bench.http import HttpRunner, Pair
    from draftproof.bench.server import Probe

    with Probe(url, _TIMEOUT) as probe:
        server = probe.server()
    return HttpRunner(plan, Pair(server, server, tells=False, ids=True, more=more), _TIMEOUT)


def _answered(engine: Any, asked: Asked) -> Answered:
    from draftproof.bench.side import Answered

    p = asked.params
    params = Params(p.temperature, p.top_k, p.top_p, max_tokens=p.max_tokens, ignore_eos=p.ignore_eos, k=_K)
    (sample,) = engine.sample([Job(asked.tokens, params, p.seed)])
    return Answered(len(sample.tokens), sample.finish, sample.proposed or 0, sample.accepted or 0)
