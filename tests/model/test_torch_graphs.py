"""Passes that are filled up and recorded. What a CUDA graph replays is run again here; the rest is the same code."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_programs import NEAR, program, reference, target  # noqa: E402

from draftproof.model import torch_graphs  # noqa: E402
from draftproof.model.checkpoint import ModelError  # noqa: E402
from draftproof.model.torch_graphs import Shape, shape_of  # noqa: E402
from draftproof.types import Chunk  # noqa: E402


def chunk(rows: int, past: int = 0, pages: int = 1, **more: Any) -> Chunk:
    return Chunk((5,) * rows, past, tuple(range(pages)), 1, **more)


def test_passes_of_a_shape_are_recorded_once() -> None:
    model = target("llama", graphs=True)
    made = model._graphs._made
    made.clear()
    for past in (0, 1, 5):
        model.forward([chunk(2, past), chunk(1, 0), chunk(1, 3)])
    assert list(made) == [Shape(4, 2, 1)]
    model.forward([chunk(2, 7, pages=2)])
    assert list(made) == [Shape(4, 2, 1), Shape(1, 2, 2)]


@pytest.mark.parametrize(
    "chunks", [[chunk(9)], [chunk(1)] * 65, [chunk(1, 8 * 4096, 4097)], [chunk(2, depths=(0, 0), visible=((0,), (1,)))]]
)
def test_what_is_not_worth_recording_runs_without(chunks: list[Chunk]) -> None:
    assert shape_of(chunks, 8) is None
    assert shape_of([chunk(8), chunk(3, 2)], 8) == Shape(2, 8, 1)


def test_logits_outlive_the_next_pass() -> None:
    """A replay writes where the one before wrote."""
    model = target("llama", graphs=True, laws_here=True, hidden_layers=(-1,))
    first = model.forward([chunk(2)])
    kept = torch.as_tensor(first.logits).clone(), np.array(first.hidden)
    model.forward([Chunk((9, 8), 0, (1,), 1)])
    assert torch.equal(torch.as_tensor(first.logits), kept[0])
    assert np.array_equal(first.hidden, kept[1])


def _first_table_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: dict[Shape, Any] = {}
    right = torch_graphs._table
    monkeypatch.setattr(torch_graphs, "_table", lambda chunks, shape: tables.setdefault(shape, right(chunks, shape)))


def _first_positions_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of a number that Python worked out while a pass was recorded."""
    seen: dict[Shape, Any] = {}
    right = torch_graphs.filled

    def fixed(table: Any, shape: Shape, page_size: int) -> Any:
        made = right(table, shape, page_size)
        return made._replace(positions=seen.setdefault(shape, made.positions.clone()))

    monkeypatch.setattr(torch_graphs, "filled", fixed)


def _zeros_fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_graphs._table

    def zeros(chunks: list[Chunk], shape: Shape) -> list[list[int]]:
        lines = right(chunks, shape)
        for line, c in zip(lines, chunks, strict=False):
            line[len(c.tokens) : shape.rows] = [0] * (shape.rows - len(c.tokens))
        return lines

    monkeypatch.setattr(torch_graphs, "_table", zeros)


@pytest.mark.parametrize("fault", [_first_table_for_ever, _first_positions_for_ever, _zeros_fill_up])
def test_planted_fault_is_seen(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of them overwrites the last row's K and V with another token's."""
    model, expected = target("llama", graphs=True), reference("llama")
    fault(monkeypatch)
    model._graphs._made.clear()
    assert max(program(model, expected, seed) for seed in range(3)) > 10 * NEAR


def test_the_check_at_load_sees_a_recording_that_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    _first_table_for_ever(monkeypatch)
    with pytest.raises(ModelError, match="differ from transformers"):
        target("llama", graphs=True)


def test_a_device_that_records_nothing_runs_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch_graphs, "by_running", refuse)
    with caplog.at_level(logging.WARNING):
        model, expected = target("llama", graphs=True), reference("llama")
        assert program(model, expected, 0) < NEAR
    assert [r.getMessage() for r in caplog.records] == [
        "passes are not recorded as CUDA graphs: operation not permitted when stream is capturing"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_graphs_are_recorded_on_cuda() -> None:
    model = target("llama", device="cuda")
    assert model._graphs is not None
    assert model._graphs._made
