"""`draftproof fidelity`: how close a loaded model is to a float32 pass over its file's own weights.

Prints the mean overlap of next-token laws and remembers it, so that every later load can state it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from draftproof.cli import options
from draftproof.model import fidelity, reference
from draftproof.model.directory import TORCH, checkpoint, prepare
from draftproof.model.load import ModelOptions, load_model
from draftproof.types import RequestError

_WHAT = "How close is the loaded model to a float32 pass over its file's own weights? Later loads state the answer."
_EXAMPLE = "example: draftproof fidelity --precisions f32,int8"


def register(commands: Any) -> None:
    parser = commands.add_parser("fidelity", help="compare with float32", description=_WHAT, epilog=_EXAMPLE)
    parser.add_argument("--model", default="smollm2", help="anything but a ready OpenVINO directory")
    parser.add_argument("--precisions", default="auto", help="list, such as f32,int8 (default: this machine's own)")
    parser.add_argument("--kv-precision", default="auto")
    parser.add_argument("--device", default="auto", help="with torch:NAME: auto (default), cpu, cuda, mps")
    parser.add_argument("--tokens", type=int, default=384, metavar="N", help="length of the text (default 384)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    err = Console(stderr=True, highlight=False)
    results: dict[str, dict[str, object]] = {}
    exact = None
    with options.status(err) as progress:
        if args.tokens < 1:
            raise RequestError(f"--tokens {args.tokens}: give a positive number")
        source = checkpoint(args.model, progress)
        for name in args.precisions.split(","):
            wanted = ModelOptions(precision=name, kv_precision=args.kv_precision, device=args.device)
            model, tokenizer = load_model(args.model, wanted, progress)
            precision = str(model.info.settings["weights"])
            tokens = tuple(tokenizer.encode(fidelity.text(), special=False)[: args.tokens])
            progress(f"comparing {len(tokens)} positions")
            ours = fidelity.all_logits(model, tokens)
            exact = reference.logits(source, tokens) if exact is None else exact
            result = fidelity.compare(ours, exact[: len(ours)])
            directory = None if args.model.startswith(TORCH) else prepare(args.model, precision)
            fidelity.record(directory, model.info.settings, result)
            results[precision] = {**result._asdict(), "kv_precision": model.info.settings["kv_precision"]}
    print(json.dumps(results)) if args.json else _print(results)
    return 0


_COLUMNS = {
    "overlap": "overlap",
    "lowest": "lowest",
    "argmax_agreement": "same argmax",
    "entropy": "entropy",
    "entropy_float32": "float32's",
}


def _print(results: dict[str, dict[str, object]]) -> None:
    positions = next(iter(results.values()))["positions"]
    title = f"overlap with a float32 pass over the file's own weights, {positions} positions"
    table = Table("weights", "KV", *_COLUMNS.values(), title=title, box=box.SIMPLE)
    for precision, row in results.items():
        cells = [row["kv_precision"], *(row[name] for name in _COLUMNS)]
        table.add_row(precision, *(f"{c:.4f}" if isinstance(c, float) else str(c) for c in cells))
    Console(highlight=False).print(table)
