"""`draftproof cost`: what speculation would gain by the cost model, and with which draft length.

Knows its options. Formulas are `draftproof.cost`'s, words and tables `cli.cost_report`'s, the picture is
`cli.cost_plot`'s. Measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from draftproof import cost
from draftproof.cli.cost_report import ALPHAS, SHORT, Scenario, report, show
from draftproof.types import RequestError

SUFFIXES = (".svg", ".png")
_WHAT = (
    "What speculative decoding would gain over plain decoding by the cost model, which draft length is best, and where "
    "it breaks even. An analytical scenario, not a measurement."
)
_EXAMPLE = "example: draftproof cost --alpha 0.8 --k 4 --draft-cost 0.1 --plot cost.svg"
_BEYOND, _MOST, _DIGITS = 2, 1000.0, 10


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "cost", help="what speculation would gain, by the cost model", description=_WHAT, epilog=_EXAMPLE
    )
    parser.add_argument("--alpha", required=True, metavar="A", help="share of draft tokens accepted, 0 to 1")
    parser.add_argument("--k", required=True, metavar="N", help="draft length; 0 is plain decoding")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--draft-cost", metavar="C", help="time of one draft token, in plain decoding steps")
    times.add_argument("--measured", metavar="FILE", help="JSON file with the measured parts of steps (docs/cost.md)")
    parser.add_argument("--batch", metavar="B", help="with --measured: batch size (default: the smallest in the file)")
    parser.add_argument(
        "--draft-operations",
        metavar="R",
        help="arithmetic operations of the draft for one token, in those of the target (default: as its share of time)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves, into a .svg or .png file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    asked = scenario(args)
    if args.plot is not None:
        _plot(asked, Path(args.plot))
    print(json.dumps(report(asked), allow_nan=False)) if args.json else show(asked, Console(highlight=False))
    return 0


def scenario(args: argparse.Namespace) -> Scenario:
    """The options, checked and put together.

    Raises:
        RequestError: an option is out of its range or without effect, or the file is not what it should be.
    """
    alpha, k = _number("--alpha", args.alpha, 1.0), _whole("--k", args.k, cost.LONGEST)
    batches = {} if args.measured is None else _read(args.measured)
    costs: cost.Costs
    if batches:
        batch = _batch(args, batches)
        costs = batches[batch]
        lengths = costs.lengths
        if k not in lengths:
            raise RequestError(f"--k {k} was not measured at batch {batch}: the file has {_list(lengths)}")
        known: dict[str, object] = {"measured": args.measured, "batch": batch}
    else:
        if args.batch is not None:
            raise RequestError(f"--batch {args.batch} has no effect without --measured: leave it out, or give a file")
        costs = cost.Modelled(_number("--draft-cost", args.draft_cost, _MOST))
        lengths = costs.lengths[: 1 + max(SHORT, k, *(cost.best(a, costs).k + _BEYOND for a in (alpha, *ALPHAS)))]
        known = {"draft_cost": costs.c}
    share = costs.draft if args.draft_operations is None else _constant(args.draft_operations)
    known |= {"draft_operations": share(k), "draft_operations_given": args.draft_operations is not None}
    return Scenario(alpha, k, costs, share, lengths, {"alpha": alpha, "k": k, **known}, batches)


def _number(name: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= most:
        raise RequestError(f"{name} {text}: give a number from 0 to {most:g}")
    return value


def _whole(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS and int(text) <= most):
        raise RequestError(f"{name} {text}: give a whole number from 0 to {most}")
    return int(text)


def _constant(text: str) -> cost.Share:
    share = _number("--draft-operations", text, _MOST)
    return lambda _: share


def _read(path: str) -> dict[int, cost.Measured]:
    try:
        return cost.measured(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"--measured {path}: {error}") from error


def _batch(args: argparse.Namespace, batches: Mapping[int, cost.Measured]) -> int:
    batch = min(batches) if args.batch is None else _whole("--batch", args.batch, max(batches))
    if batch not in batches:
        raise RequestError(f"--batch {batch} was not measured: the file has {_list(batches)}")
    return batch


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def _plot(asked: Scenario, path: Path) -> None:
    """Curves of the asked acceptance and of ALPHAS over k, and the break-even line."""
    if path.suffix.lower() not in SUFFIXES:
        raise RequestError(f"--plot {path}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        from draftproof.cli import cost_plot
    except ImportError as error:
        raise RequestError(f"--plot needs matplotlib ({error}): pip install 'draftproof[plot]'") from error
    alphas = sorted({*ALPHAS, asked.alpha})
    curves = [cost.over_k(alpha, asked.lengths, asked.costs, asked.share) for alpha in alphas]
    try:
        cost_plot.draw(path, curves, asked.point, asked.note, asked.given)
    except OSError as error:
        raise RequestError(f"--plot {path} cannot be written: {error}") from error
