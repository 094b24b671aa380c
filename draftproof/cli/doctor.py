"""`draftproof doctor`: what models run on here, and what is missing for more speed.

Loads no model and changes nothing. Exit status 0 also where something is missing: it is a report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.model.checkpoint import ModelError
from draftproof.model.load import devices, torch_report

_EXAMPLE = "example: draftproof doctor, or for a bug report: draftproof doctor --json"
_LIBRARIES = ("draftproof", "numpy", "openvino", "tokenizers", "torch", "transformers", "safetensors")


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor", help="say what models run on here, and what is missing", description=__doc__, epilog=_EXAMPLE
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = examine()
    print(json.dumps(found, indent=1)) if args.json else _print(found)
    return 0


def examine() -> dict[str, Any]:
    """Everything that is printed."""
    found: dict[str, Any] = {
        "versions": {name: _version(name) for name in _LIBRARIES},
        "machine": _machine(),
        "openvino": devices(),
    }
    try:
        found["torch"] = torch_report()
    except ModelError as error:
        found["torch"] = {"missing": str(error)}
    return {**found, "advice": advice(found)}


def advice(found: Mapping[str, Any]) -> list[str]:
    """One line for each thing that stands in the way of speed."""
    machine, ours, torch = found["machine"], found["openvino"], found["torch"]
    lines = []
    if ours["precision"] == "f32":
        lines.append(
            "this CPU does not compute in bf16: weights are f32, twice as much to read (int8 is less faithful), or "
            "int4 where a file holds just that, as smollm2 does"
        )
    if machine["load"] > 0.5 * machine["cores"]:
        lines.append(f"other work runs here (load {machine['load']:.1f}): figures of speed will not be repeatable")
    threads = os.environ.get("OMP_NUM_THREADS")
    if "missing" in torch:
        lines.append("for any Hugging Face model, and for GPUs: pip install draftproof[torch]")
    elif torch["device"] == "cpu":
        built = "PyTorch sees no GPU" if torch["built for CUDA"] else "this PyTorch is not built for CUDA"
        lines.append(f"{built}: models named torch:NAME run on the CPU")
        if threads and int(torch["threads"]) < machine["cores"]:
            lines.append(f"OMP_NUM_THREADS={threads} holds PyTorch to {torch['threads']} of {machine['cores']} cores")
    return lines


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": cores,
        "load": round(os.getloadavg()[0], 2),
    }


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _print(found: Mapping[str, Any]) -> None:
    out = Console(highlight=False)
    for title in ("versions", "machine", "openvino", "torch"):
        table = Table(title=title, box=box.SIMPLE, show_header=False, title_justify="left")
        for name, value in found[title].items():
            table.add_row(name, Text(_text(value)))
        out.print(table)
    for line in found["advice"]:
        out.print(f"- {line}", markup=False)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_text(part)}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "not installed" if value is None else str(value)
