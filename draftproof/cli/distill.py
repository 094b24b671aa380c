"""`draftproof distill`: train a draft head for a model, and measure what it brings. Knows the terminal.

What is collected, trained and measured is the business of `draftproof.distill`, which needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table

from draftproof.cli import options
from draftproof.model.checkpoint import ModelError
from draftproof.model.load import ModelOptions
from draftproof.types import RequestError

_WHAT = (
    "Trains a small draft head on what the model itself writes: collects texts with the model's hidden states, trains, "
    "exports, and measures on held-out prompts. Can be stopped at any time and started again."
)
_EXAMPLE = "example: draftproof distill smollm2 --out head --minutes 60, then draftproof generate --draft head:head"


def register(commands: Any) -> None:
    parser = commands.add_parser("distill", help="train a draft head", description=_WHAT, epilog=_EXAMPLE)
    parser.add_argument("model", help="smollm2, a .gguf file, a Hugging Face directory or name")
    parser.add_argument("--out", required=True, metavar="DIR", help="for the head; what it is made from is in DIR/work")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--minutes", type=float, metavar="N", help="for collecting and training (default 60)")
    bound.add_argument("--tokens", type=int, metavar="N", help="collect so many tokens, and train 8 epochs")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument("--vocabulary", type=int, default=16384, metavar="N", help="draft tokens (default 16384)")
    parser.add_argument("--prompts", metavar="FILE", help="to measure on instead: JSON lines with `turns`")
    parser.add_argument("--measure", type=int, default=12, metavar="N", help="prompts to measure on (default 12)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    _check(args)
    try:
        from draftproof.distill.run import Wish, disk_use, distill
    except ImportError as error:
        raise ModelError(f"distill needs PyTorch ({error}): pip install 'draftproof[train]'") from error
    minutes = 0.0 if args.tokens else (args.minutes or 60.0)
    wish = Wish(args.model, args.seed, minutes, args.tokens or 0, args.vocabulary)
    with _display(err) as said:
        head = distill(wish, Path(args.out), said)
    from draftproof.model.directory import checkpoint

    tokens = int(head.card["tokens"])
    disk = disk_use(checkpoint(args.model).architecture, tokens)
    err.print(
        f"{args.out}: trained on {tokens:,} tokens; {disk / 1e9:.2f} GB of states in {args.out}/work may be deleted"
    )
    rows = _measured(args, err)
    if args.json:
        out.print_json(json.dumps({"head": args.out, "card": head.card, "measured": [asdict(row) for row in rows]}))
    else:
        out.print(_table(rows))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("minutes", "tokens", "vocabulary", "measure"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise RequestError(f"--{name} {value}: give a number above 0")
    if args.prompts and not Path(args.prompts).is_file():
        raise RequestError(f"--prompts {args.prompts}: there is no such file")


def _measured(args: argparse.Namespace, err: Console) -> list[Any]:
    from draftproof.distill.evaluate import evaluate
    from draftproof.distill.run import held_out_prompts
    from draftproof.loading import load

    with options.status(err) as progress:
        engine = load(args.model, f"head:{args.out}", options=ModelOptions(), progress=progress)
    prompts = (
        [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in read_prompts(Path(args.prompts))]
        if args.prompts
        else held_out_prompts(Path(args.out), args.measure)
    )[: args.measure]
    with bars.Progress(*bars.Progress.get_default_columns(), console=err, transient=True) as bar:
        task = bar.add_task("measuring", total=2 * len(prompts))
        return [evaluate(engine, prompts, t, seed=args.seed, said=lambda: bar.advance(task)) for t in (0.0, 1.0)]


def read_prompts(path: Path) -> list[str]:
    """The first turn of every line.

    Raises:
        RequestError: a line is not a JSON object with `turns`.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(str(json.loads(line)["turns"][0]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RequestError(f"{path}:{number}: not a JSON object with a list of turns ({error})") from error
    return found


def _table(rows: Sequence[Any]) -> Table:
    table = Table(title="on prompts that were not trained on")
    for name in ("temperature", "alpha by position", "tokens a step", "ms a step", "drafting", "projected", "measured"):
        table.add_column(name, justify="right")
    for row in rows:
        measured = "-" if row.speedup is None else "{:.2f} ({:.2f} to {:.2f})".format(*row.speedup)
        table.add_row(
            f"{row.temperature:g}",
            " ".join(f"{a:.2f}" for a in row.stats.alpha_cond),
            f"{row.stats.tokens_per_step:.2f}",
            f"{1000 * row.step:.1f}",
            f"{row.draft / row.step:.0%}",
            f"{row.projected:.2f}",
            measured,
        )
    return table


@contextmanager
def _display(err: Console) -> Iterator[Callable[[Any], None]]:
    """One bar a part, with the time left on a terminal; a line every tenth elsewhere."""
    if not err.is_terminal:
        told: set[tuple[str, int]] = set()

        def line(at: Any) -> None:
            if (at.what, int(10 * at.done)) not in told:
                told.add((at.what, int(10 * at.done)))
                err.print(f"{at.what} {at.done:.0%} {at.note}", soft_wrap=True)

        yield line
        return
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn())
    with bars.Progress(
        *columns, bars.TimeRemainingColumn(), bars.TextColumn("{task.fields[note]}"), console=err
    ) as bar:
        tasks: dict[str, bars.TaskID] = {}

        def show(at: Any) -> None:
            if at.what not in tasks:
                tasks[at.what] = bar.add_task(at.what, total=1.0, note="")
            bar.update(tasks[at.what], completed=at.done, note=at.note)

        yield show
