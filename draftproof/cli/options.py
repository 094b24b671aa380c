"""Command-line options that several commands share, and what they turn into. Knows no command."""

from __future__ import annotations

import argparse
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from draftproof.admission import rule_named
from draftproof.drafts import DRAFTS
from draftproof.engine import Engine
from draftproof.loading import load
from draftproof.model.directory import TORCH
from draftproof.model.fetch import Progress
from draftproof.model.load import ModelOptions
from draftproof.types import DraftLength, RequestError, SamplingParams


def add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default="smollm2",
        help="smollm2, a .gguf file, a directory, or a Hugging Face name; torch:NAME runs it on PyTorch",
    )
    group.add_argument("--device", default="auto", help="with torch:NAME: auto (default), cpu, cuda, mps")
    group.add_argument(
        "--compile",
        action="store_true",
        help="with torch:NAME: through torch.compile; a minute at start, no bits promised",
    )
    group.add_argument(
        "--precision",
        default="auto",
        help="weights: auto (default), f32, bf16, int8, int4. auto: int4 where the file holds just that, else bf16 "
        "if the CPU computes in it, else f32. bf16 is faster at many streams",
    )
    group.add_argument("--kv-precision", default="auto", help="KV: auto (default), f32, bf16, f16; u8 is not exact")
    group.add_argument("--kv-memory", type=int, default=1024, metavar="MIB", help="memory for KV pages (default 1024)")
    group.add_argument("--context", type=int, default=0, metavar="N", help="most tokens a sequence may have")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="default: one per core")
    group.add_argument(
        "--bitwise",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="promise that batching changes no bit (default); without, large batches are faster, the law the same",
    )


def add_draft(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "--draft",
        default="auto",
        help=f"{DRAFTS} (default: auto, the best that is there for the model); suffix:SHORTEST,remember=TOKENS also "
        "searches earlier outputs of this process, and users can then tell by timing what others were answered",
    )
    group.add_argument("--draft-precision", help="weights of a draft model (default: auto)")
    group.add_argument(
        "--k",
        type=draft_length,
        metavar="N",
        help="draft length; 0 decodes plainly; auto (default): in each step what is expected to be fastest, by costs "
        "that are measured once for model and machine. A seed repeats a text everywhere if N is a number",
    )
    group.add_argument("--decisions", metavar="FILE", help="with --k auto: write one JSON line a decision")
    group.add_argument(
        "--rule",
        default="block",
        help="exact: block (default), token, sampled, coupled; "
        "lossy, changing the output law: lenience:L, typical:EPSILON[,DELTA]",
    )


def add_workload(parser: argparse.ArgumentParser) -> None:
    """What commands that measure have in common."""
    group = parser.add_argument_group("work")
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with `prompt` or `turns` (default: 60 of our own)")
    group.add_argument("--limit", type=int, default=0, metavar="N", help="most prompts of a kind, drawn by the seed")
    group.add_argument("--batches", default="1", metavar="LIST", help="how many side by side, as in 1,4 (default 1)")
    group.add_argument("--short", type=int, default=32, metavar="N", help="most tokens of short answers (default 32)")
    group.add_argument("--long", type=int, default=128, metavar="N", help="most tokens of long answers (default 128)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="N", help="0 keeps all (default)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 keeps all (default)")
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of prompts, groups, orders, texts (default 1)")


def draft_length(text: str) -> DraftLength:
    """For argparse."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, or auto") from None


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default 1)")
    group.add_argument("--top-k", type=int, default=0, metavar="N", help="0 keeps all")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 keeps all (default)")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 keeps all (default)")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="default 1: none")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="A", help="default 0: none")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="A", help="default 0: none")
    group.add_argument("--seed", type=int, default=None, metavar="N", help="default: drawn from the system")
    group.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default 256")
    group.add_argument("--min-tokens", type=int, default=0, metavar="N", help="default 0")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be given several times")
    group.add_argument("--ignore-eos", action="store_true")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The request's parameters, with a seed that can be repeated.

    Raises:
        RequestError: an option is out of its range, or would be ignored beside another one.
    """
    rule_named(args.rule)
    if args.draft == "none" and args.k:
        raise RequestError(f"--k {args.k} has no effect with --draft none: name a draft, or leave --k out")
    if args.draft_precision and args.draft.partition(":")[0] in {"none", "ngram", "suffix", "prediction"}:
        raise RequestError(f"--draft-precision has no effect with --draft {args.draft}: it is for draft models")
    k: DraftLength = args.k if args.k is not None else "auto" if args.draft != "none" else 0
    if args.decisions and k != "auto":
        raise RequestError(f"--decisions has no effect with --k {k}: it is for --k auto")
    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=secrets.randbits(64) if args.seed is None else args.seed,
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
        rule=args.rule,
        k=k,
    )


def model_options(args: argparse.Namespace) -> ModelOptions:
    if args.kv_memory < 1:
        raise RequestError(f"--kv-memory {args.kv_memory}: give at least 1 MiB")
    only_draft = args.draft.startswith(TORCH) and not args.model.startswith(TORCH)
    return ModelOptions(
        precision=args.precision,
        kv_precision=args.kv_precision,
        kv_bytes=args.kv_memory << 20,
        context=args.context,
        threads=args.threads,
        bitwise=args.bitwise,
        device="auto" if only_draft else args.device,
        compile=args.compile and not only_draft,
    )


def draft_options(args: argparse.Namespace) -> ModelOptions:
    on_torch = args.draft.startswith(TORCH)
    return ModelOptions(
        precision=args.draft_precision or "auto",
        threads=args.threads,
        device=args.device if on_torch else "auto",
        compile=args.compile and on_torch,
    )


def load_engine(
    args: argparse.Namespace,
    console: Console,
    max_running: int = 16,
    k: DraftLength | None = None,
    decisions: Sequence[Callable[[dict[str, Any]], None]] = (),
    prefix_cache: bool = False,
) -> Engine:
    """The engine that the options describe, with a status line while it loads."""
    logging.basicConfig(format="draftproof: %(message)s", level=logging.WARNING)
    with status(console) as progress:
        return load(
            args.model,
            args.draft,
            k=k,
            max_running=max_running,
            decisions=decisions,
            prefix_cache=prefix_cache,
            options=model_options(args),
            draft_options=draft_options(args),
            progress=progress,
        )


@contextmanager
def status(console: Console) -> Iterator[Progress]:
    """A spinner on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda message: console.print(f"{message} …", highlight=False)
        return
    with console.status("loading") as status:
        yield status.update
