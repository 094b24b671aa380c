"""Costs as measured, on a clock that moves by what a made-up machine would need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toys import Letters, drafting, random_table

from draftproof import profiling, watch
from draftproof.engine import Engine
from draftproof.length.profile import from_json
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.types import Chunk, Forward, SamplingParams

VOCAB = 5


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A target whose pass takes 1 s, and 0.1 s more for each row; a draft that takes 0.05 s a token and pass."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.rows = clock, list[int]()
        self.model = TabularModel(random_table(VOCAB, 1), tabular_info(VOCAB, min_rows=2, max_rows=40))
        self.proposer = drafting(random_table(VOCAB, 2), VOCAB)
        self._slow(self.model, 1.0, 0.1)
        self._slow(self.proposer.model, 0.05, 0.0)
        self.engine = Engine(self.model, Letters(), self.proposer, max_running=8)

    def _slow(self, model: Any, base: float, each: float) -> None:
        honest = model.forward

        def forward(chunks: Sequence[Chunk]) -> Forward:
            rows = sum(len(c.tokens) for c in chunks)
            self.clock.now += base + each * rows
            self.rows.append(rows)
            return honest(chunks)  # type: ignore[no-any-return]

        model.forward = forward


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    clock = Clock()
    monkeypatch.setattr(watch, "perf_counter", clock)
    monkeypatch.setattr(profiling, "perf_counter", clock)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return Machine(clock)


def test_costs_are_found(machine: Machine) -> None:
    found = profiling.measured(machine.engine)
    assert [rows for rows, _ in found.verify] == [2, 3, 4, 5, 6, 8, 10, 13, 16, 24, 32]
    for rows, seconds in found.verify:
        assert seconds == pytest.approx(1.0 + 0.1 * rows)
    assert [b for b, _ in found.draft] == [1, 4]
    for _, line in found.draft:
        assert line.each == pytest.approx(0.05)
    for _, line in found.other:
        assert line.at(4) == pytest.approx(0.0)
    assert found.min_rows == 2


def test_it_is_measured_once(machine: Machine) -> None:
    said: list[str] = []
    first = profiling.profile(machine.engine, said.append)
    passes = len(machine.rows)
    assert profiling.profile(machine.engine, said.append) == first
    assert len(machine.rows) == passes
    assert len(said) == 1


def test_another_configuration_is_measured_anew(machine: Machine) -> None:
    profiling.profile(machine.engine, lambda _: None)
    passes = len(machine.rows)
    other = Engine(machine.model, Letters(), machine.proposer, max_running=8, settings={"threads": 7})
    profiling.profile(other, lambda _: None)
    assert len(machine.rows) > passes


@pytest.mark.parametrize("text", ["", "{}", '{"profile": {"verify": []}}'])
def test_a_damaged_file_is_replaced(machine: Machine, tmp_path: Path, text: str) -> None:
    profiling.profile(machine.engine, lambda _: None)
    path = next((tmp_path / "profiles").iterdir())
    path.write_text(text, encoding="utf-8")
    found = profiling.profile(machine.engine, lambda _: None)
    assert from_json(json.loads(path.read_text(encoding="utf-8"))["profile"]) == found


def test_costs_of_a_busy_machine_are_not_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("os.getloadavg", lambda: (1e3, 0.0, 0.0))
    assert profiling.profile(machine.engine, said.append).min_rows == 2
    assert not (tmp_path / "profiles").exists()
    assert said[0].endswith("not kept")


def test_a_cache_that_cannot_be_written_is_no_obstacle(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way", encoding="utf-8")
    assert profiling.profile(machine.engine, lambda _: None).min_rows == 2


def test_a_busy_engine_is_refused(machine: Machine) -> None:
    machine.engine.add([1])
    with pytest.raises(ValueError, match="idle"):
        profiling.measured(machine.engine)


def test_noise_never_makes_more_rows_cheaper() -> None:
    assert profiling._rising([(1, 2.0), (2, 1.5), (3, 2.5)]) == ((1, 1.5), (2, 1.5), (3, 2.5))


def test_pages_that_are_written_to_are_not_found_again(machine: Machine) -> None:
    prompt = [n % VOCAB for n in range(24)]
    engine = Engine(machine.model, Letters(), machine.proposer, max_running=1, prefix_cache=True)
    params = SamplingParams(max_tokens=2, ignore_eos=True, seed=1)
    engine.generate([prompt], params)
    assert engine.generate([prompt], params)[0].cached > 0
    profiling.measured(engine)
    assert engine.generate([prompt], params)[0].cached == 0
