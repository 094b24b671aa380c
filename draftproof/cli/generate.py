"""`draftproof generate`: answer one prompt, token by token, and say where the tokens and the time came from.

Knows the terminal. Generation is the engine's, figures are `stats`, comparisons are `compare`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.bench.stats import Ratio
from draftproof.cli import options
from draftproof.cli.compare import compare
from draftproof.engine import Engine, Event
from draftproof.stats import Stats, summary
from draftproof.types import Kind, Output, RequestError, SamplingParams, StepTrace

_COLOURS = {Kind.ACCEPTED: "green", Kind.RESIDUAL: "yellow", Kind.BONUS: "cyan"}
_WHAT = "Answers one prompt, token by token, and says where the tokens and the time came from."
_EXAMPLE = "example: draftproof generate --temperature 0 --compare 'Why is the sky blue?'"


def register(commands: Any) -> None:
    parser = commands.add_parser("generate", help="answer a prompt", description=_WHAT, epilog=_EXAMPLE)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    options.add_model(parser)
    options.add_draft(parser)
    options.add_sampling(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--chat", action="store_true", help="the prompt is a user's message (default)")
    form.add_argument("--raw", action="store_true", help="the prompt is plain text to be continued")
    parser.add_argument("--system", metavar="TEXT", help="system message of the chat")
    parser.add_argument("--prediction", metavar="FILE", help="text that the answer is expected to resemble")
    parser.add_argument("--compare", action="store_true", help="also measure against plain decoding, interleaved")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="pairs to measure with --compare")
    parser.add_argument("--trace", metavar="FILE", help="write one JSON line a step")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    params = options.sampling_params(args)
    _check(args, params)
    text = _prompt(args)
    expected = _read(args.prediction) if args.prediction else None
    for path in filter(None, (args.trace, args.decisions)):
        _write_lines(Path(path), ())  # a wrong path is known before the work
    decisions: list[dict[str, Any]] = []
    heard = [decisions.append] if args.decisions else []
    engine = options.load_engine(args, err, k="auto" if params.k == "auto" else None, decisions=heard)
    tokens = _tokens(engine, text, args)
    expectation = engine.tokenizer.encode(expected, special=False) if expected is not None else None
    output = _show(engine, tokens, params, expectation, None if args.json else out)
    if args.trace:
        _write_lines(Path(args.trace), map(_traced, output.steps))
    if args.decisions:
        _write_lines(Path(args.decisions), decisions)
    speedup, problem = None, output.error
    if args.compare and output.error is None:
        try:
            speedup = compare(engine, tokens, params, expectation, args.repeats, err)
        except RequestError as error:
            problem = str(error)
    stats = summary(output.steps)
    if args.json:
        print(json.dumps(report(engine, params, output, stats, speedup), ensure_ascii=False))
    else:
        _figures(err, engine, params, output, stats, speedup)
    if problem is not None:
        print(f"draftproof: {problem}", file=sys.stderr)
    return 1 if problem is not None else 0


def _check(args: argparse.Namespace, params: SamplingParams) -> None:
    """Options that would be ignored, or are too few."""
    if args.repeats < 2:
        raise RequestError(f"--repeats {args.repeats}: give at least 2, one pair has no spread")
    if bool(args.prediction) != (args.draft == "prediction"):
        raise RequestError("--prediction FILE and --draft prediction go together")
    if args.raw and args.system:
        raise RequestError("--system has no effect with --raw: put it into the text, or leave --raw out")
    if args.compare and not params.k:
        raise RequestError("--compare needs a draft length above 0: this would compare plain decoding with itself")


def _prompt(args: argparse.Namespace) -> str:
    text = args.prompt
    if text is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise RequestError("there is no prompt: give one as an argument or on standard input")
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8 text ({error})") from error
    if not text.strip() and not args.raw:
        raise RequestError("the prompt is empty: give some text")
    return str(text)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error


def _tokens(engine: Engine, text: str, args: argparse.Namespace) -> list[int]:
    if args.raw:
        return engine.tokenizer.encode(text)
    system = [{"role": "system", "content": args.system}] if args.system else []
    return engine.tokenizer.chat([*system, {"role": "user", "content": text}])


def _show(
    engine: Engine, tokens: list[int], params: SamplingParams, expectation: list[int] | None, out: Console | None
) -> Output:
    """Generate; print as it comes unless `out` is None."""
    for event in engine.stream(tokens, params, expectation):
        if out is not None:
            _write(out, event)
        if event.output is not None:
            if out is not None:
                out.print()
            return event.output
    raise AssertionError("a stream ends with an output")


def _write(out: Console, event: Event) -> None:
    """In colours on a terminal; elsewhere the text as it is, tabs and all."""
    if out.is_terminal:
        out.print(_coloured(event), end="", soft_wrap=True)
    else:
        out.file.write(event.text)
    out.file.flush()


def _coloured(event: Event) -> Text:
    text = Text()
    for piece, kind in zip(event.pieces, event.kinds, strict=True):
        text.append(piece, style=_COLOURS[kind])
    return text.append(event.text[len("".join(event.pieces)) :])


def _traced(step: StepTrace) -> dict[str, Any]:
    """Seconds are those of the whole step."""
    return {**asdict(step), "seconds": step.seconds._asdict()}


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}") from error


def report(
    engine: Engine, params: SamplingParams, output: Output, stats: Stats, speedup: Ratio | None
) -> dict[str, object]:
    """What --json prints."""
    asked = {f.name: getattr(params, f.name) for f in fields(params)}
    settings = {**engine.settings, **asked, "prompt_tokens": len(output.prompt)}
    settings["logit_bias"] = {str(t): b for t, b in params.logit_bias.items()}
    result: dict[str, object] = {
        "text": output.text,
        "tokens": list(output.tokens),
        "finish_reason": str(output.finish),
        "tokens_per_step": stats.tokens_per_step,
        "alpha": stats.alpha,
        "alpha_cond": list(stats.alpha_cond),
        "seconds": {**stats.seconds._asdict(), "total": stats.seconds.total},
        "steps": stats.steps,
        "proposed": stats.proposed,
        "accepted": stats.accepted,
        "tv_per_step": stats.tv,
        "settings": settings,
    }
    if output.error is not None:
        result["error"] = output.error
    if speedup is not None:
        result["speedup"] = speedup._asdict()
    return result


def _figures(
    err: Console, engine: Engine, params: SamplingParams, output: Output, stats: Stats, speedup: Ratio | None
) -> None:
    """The lines under the answer, on standard error so that standard output is the answer alone."""
    if stats.steps == 0:
        err.print(f"no token came out (finish: {output.finish})")
        return
    legend = Text("accepted from the draft", style=_COLOURS[Kind.ACCEPTED])
    legend.append("  the target's own: ", style="dim").append("after a rejection", style=_COLOURS[Kind.RESIDUAL])
    legend.append("  ").append("after a full draft", style=_COLOURS[Kind.BONUS])
    err.print(legend)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _lines(engine, params, output, stats, speedup):
        table.add_row(Text(name, style="dim"), value)
    err.print(table)


def _lines(
    engine: Engine, params: SamplingParams, output: Output, stats: Stats, speedup: Ratio | None
) -> list[tuple[str, str]]:
    spoken = [s for s in output.steps if s.emitted]
    later = summary(spoken[1:]) if len(spoken) > 1 else stats  # the first step reads the prompt
    s, n = later.seconds, later.steps
    positions = "  ".join(f"{a:.2f}" for a in stats.alpha_cond) or "nothing was proposed"
    rate = later.tokens / s.total
    lines = [
        ("tokens", f"{len(output.tokens)} in {stats.steps} steps, {rate:.1f} a second (finish: {output.finish})"),
        ("tokens per step", f"{stats.tokens_per_step:.2f}"),
        ("acceptance by position", positions),
        ("milliseconds a step", "   ".join(f"{part} {1e3 * t / n:.2f}" for part, t in s._asdict().items())),
        ("settings", _settings(engine, params)),
    ]
    if stats.tv:
        lines.append(("lossy rule", f"{params.rule} moved the law by TV {stats.tv:.4f} a step"))
    if speedup is not None:
        lines.append(("against plain decoding", f"{speedup.ratio:.2f} × ({speedup.low:.2f} to {speedup.high:.2f})"))
    return lines


def _settings(engine: Engine, params: SamplingParams) -> str:
    hidden = ("model", "fingerprint", "draft_fingerprint", "source", "format", "weights")
    chosen = {"rule": params.rule, "k": params.k, "temperature": params.temperature, "seed": params.seed}
    shown = {**{"model": engine.target.info.name}, **chosen, **engine.settings}
    return ", ".join(
        f"{n.replace('_', ' ')} {_short(n, v)}" for n, v in shown.items() if n not in hidden[1:] and v is not None
    )


def _short(name: str, value: object) -> str:
    if name.endswith("bytes"):
        return f"{int(str(value)) >> 20} MiB"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
