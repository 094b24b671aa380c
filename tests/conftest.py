"""Fixtures on the real default model, loaded once a session; property tests without clock or chance."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.model import graph
from draftproof.model.base import ModelInfo
from draftproof.model.checkpoint import Checkpoint, Matrix
from draftproof.model.directory import checkpoint
from draftproof.model.load import Loaded, ModelOptions, load_model
from draftproof.model.openvino import OpenVINOModel, OpenVINOOptions

settings.register_profile("fixed", deadline=None, derandomize=True)  # no clock, and the same cases every time
settings.load_profile("fixed")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # a core each, or the thread pools of one starve the other
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})

LEFT_OUT = (14, 15)  # layers of the default model that its draft lacks: mean TV 0.29 on the fidelity text


@pytest.fixture(scope="session")
def smollm2() -> Loaded:
    """The default model in its default setting."""
    return load_model("smollm2", ModelOptions(kv_bytes=256 << 20))


@pytest.fixture(scope="session")
def smollm2_weights() -> Checkpoint:
    return checkpoint("smollm2")


@pytest.fixture(scope="session")
def short_draft(
    smollm2: Loaded, smollm2_weights: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> OpenVINOModel:
    """The default model without two of its layers, in int8: a draft whose law is clearly another one."""
    directory: Path = tmp_path_factory.mktemp("short")
    a = smollm2_weights.architecture
    kept = [i for i in range(a.layers) if i not in LEFT_OUT]

    def tensor(name: str) -> Matrix:
        layer, dot, part = name.partition(".")
        return smollm2_weights.tensor(f"{kept[int(layer)]}.{part}" if dot else name)

    graph.save(Checkpoint(replace(a, layers=len(kept)), tensor, "short"), "int8", directory)
    options = OpenVINOOptions("int8", "f32", kv_pages=smollm2.model.info.pages)
    return OpenVINOModel(directory, ModelInfo("short", 0, 8192, 0, 0), options)


@pytest.fixture
def real_engine(smollm2: Loaded, short_draft: OpenVINOModel) -> Callable[..., Engine]:
    """make(draft, pages) -> a fresh engine on the shared model; `pages` makes the pool tight."""

    def make(draft: str = "none", pages: int = 0, max_running: int = 8) -> Engine:
        vocab = smollm2.model.info.vocab
        proposer: Proposer | None = None
        if draft == "ngram":
            proposer = NgramProposer(vocab, 1, 4)
        elif draft == "model":
            proposer = ModelProposer(short_draft, vocab)
        engine = Engine(smollm2.model, smollm2.tokenizer, proposer, max_running=max_running)
        return engine if not pages else _tight(engine, pages)

    return make


def _tight(engine: Engine, pages: int) -> Engine:
    """Hold pages back, so that sequences are preempted."""
    engine.pool.alloc(engine.pool.total - pages)
    return engine
