"""Who may import whom: DESIGN.md's table as data, and a walk over every import in the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "draftproof"
CORE = {"types", "noise", "arrays"}

# room -> rooms of the package that it may import from; the longest matching name decides
ALLOWED: dict[str, set[str]] = {
    "arrays": set(),
    "types": {"watch", "arrays"},
    "tree": set(),
    "nodes": {"types", "accept", "model.base"},
    "noise": {"types", "arrays"},
    "prices": {"types", "arrays"},
    "law": {"types", "arrays", "tree"},
    "text": set(),
    "cost": set(),
    "svg": set(),
    "page": set(),
    "streaming": set(),
    "watch": set(),
    "stops": {"types", "text"},
    "accept": {*CORE, "tree"},
    "lossy": {*CORE, "accept"},
    "stats": {"types", "watch"},
    "scheduler": {"types", "kv", "length.base"},
    "scores": {"types", "arrays", "law", "scheduler"},
    "step": {
        *CORE,
        "tree",
        "law",
        "accept",
        "stops",
        "scheduler",
        "scores",
        "kv",
        "draft.base",
        "model.base",
        "prices",
        "watch",
    },
    "admission": {"types", "accept", "lossy", "nodes", "step", "text", "length.goodput", "model.base"},
    "reuse": {"draft.base", "kv", "scheduler", "step"},
    "engine": {
        *CORE,
        "reuse",
        "admission",
        "law",
        "nodes",
        "stats",
        "stops",
        "text",
        "streaming",
        "scheduler",
        "step",
        "kv",
        "draft",
        "length",
        "watch",
    }
    | {"model.base"},
    "drafts": {"draft", "model"},
    "profiling": {"engine", "length", "model.fetch", "types", "watch"},
    "loading": {"admission", "draft", "drafts", "engine", "length", "model", "profiling", "types"},
    "kv": {"kv"},
    "draft": {*CORE, "tree", "law", "kv", "model.base", "prices", "draft.base"},
    "draft.head": {*CORE, "law", "kv", "model.base", "prices", "draft.base", "draft.growth"},
    "draft.shared": {"types", "arrays", "model.base", "draft.model"},
    "draft.combined": {*CORE, "cost", "draft.base", "draft.head", "draft.suffix"},
    "length": {"types", "length", "cost", "prices"},
    "model": {"types", "arrays", "tree", "model"},
    "verify": {"verify", "svg", "page"},
    "verify.adapters.draftproof": {
        "verify",
        "arrays",
        "engine",
        "drafts",
        "types",
        "model",
        "draft",
        "accept",
        "lossy",
    },
    "distill": {"distill", "engine", "loading", "types", "stats", "bench", "model", "draft.base"},
    "bench": {
        "bench",
        "accept",
        "admission",
        "cost",
        "engine",
        "loading",
        "model.base",
        "model.load",
        "page",
        "stats",
        "svg",
        "types",
        "watch",
    },
    "bench.promise": {"bench", "cost", "length", "types"},
    "bench.tune": {"bench", "accept", "admission", "length.profile", "types"},
    "bench.replay": {"cost", "length", "types"},
    "audit": {"audit", "verify", "page"},
    "acceptance": {"acceptance", "bench", "verify", "page", "types", "model.checkpoint"},
    "server": {"server", "admission", "engine", "length.profile", "model.checkpoint", "stats", "text", "types", ""},
    "server.playground": {"server", "accept", "admission", "model.checkpoint", "page", "types"},
    "server.vllm": {"types"},
    "cli.serve": {"cli", "admission", "engine", "length.profile", "server", "types"},
    "cli": {
        "cli",
        "accept",
        "acceptance",
        "admission",
        "audit",
        "cost",
        "engine",
        "loading",
        "drafts",
        "stats",
        "types",
        "bench",
        "verify",
        "distill",
        "model",
        "",
    },
    "cli.tune": {"cli", "bench", "cost", "drafts", "length.profile", "profiling", "types"},
    "__main__": {"cli"},
    "": {"engine", "loading", "model", "stats", "types"},  # the lazy public names
}
NO_ARRAYS = (
    "tree",
    "scheduler",
    "kv.pages",
    "kv.prefix",
    "kv.table",
    "draft.ngram",
    "draft.prediction",
    "draft.suffix",
    "length.fixed",
    "length.goodput",
    "length.profile",
    "length.record",
    "stats",
    "stops",
    "cost",
)
ARRAY_LIBRARIES = {"numpy", "torch", "openvino", "scipy", "jax"}
HEAVY_ONLY_IN = {
    "openvino": (
        *("model.graph", "model.paged", "model.head", "model.openvino", "model.load"),
        *("verify.toy_openvino", "verify.adapters.workers.ovgenai"),
    ),
    "matplotlib": ("cli.cost_plot",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "pydantic": ("server",),
    "prometheus_client": ("server",),
    "transformers": ("model.torch", "verify.adapters.workers.hf"),
    "torch": (
        *("model.torch", "distill.net", "distill.muon", "distill.data", "distill.train", "distill.run"),
        "verify.adapters.workers.hf",
    ),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is entered"
            module = node.module or ""
            deeper = {f"{module}.{a.name}" for a in node.names}
            found |= {d for d in deeper if (PACKAGE.parent / d.replace(".", "/")).with_suffix(".py").exists()} or {
                module
            }
    return found


def room_rules(name: str) -> set[str]:
    while name not in ALLOWED:
        name = name.rpartition(".")[0]
    return ALLOWED[name]


def faults(name: str, source: str) -> list[str]:
    found = []
    for module in imports(source):
        top, _, rest = module.partition(".")
        if top == "draftproof":
            if not any(rest == a or (a and rest.startswith(f"{a}.")) for a in room_rules(name)):
                found.append(f"{name or '__init__'} must not import {module}")
        elif top in ARRAY_LIBRARIES and name.startswith(NO_ARRAYS):
            found.append(f"{name} must not use arrays ({module})")
        elif top in HEAVY_ONLY_IN and not name.startswith(HEAVY_ONLY_IN[top]):
            found.append(f"{name} must not import {module}")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)
def test_room_imports_only_what_it_may(path: Path) -> None:
    assert not faults(name_of(path), path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("accept", "from draftproof.engine import Engine"),
        ("verify.oracle", "from draftproof import accept"),
        ("scheduler", "import numpy as np"),
        ("kv.table", "from draftproof.model.base import TargetModel"),
        ("draft.ngram", "import openvino"),
        ("step", "from draftproof.draft.model import ModelProposer"),
    ],
)
def test_planted_import_is_caught(name: str, line: str) -> None:
    assert faults(name, line)


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="relative"):
        imports("from . import engine")
