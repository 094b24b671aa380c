"""The result file: the plan comes first, nothing is lost or counted twice, damage is told from a torn end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from bench.fake import FakeRunner, a_plan, result_of, sources

from draftproof.bench.measure import Asked, measure
from draftproof.bench.plan import Config, Plan, Wish
from draftproof.bench.results import Results, RunRecord, create, read, resume
from draftproof.types import RequestError

NOTE = {"at": "later", "load": [0.0]}


def small(seed: int = 1) -> Plan:
    return a_plan(Wish((2,), short=4, long=5, limit=1, seed=seed))


def measured(path: Path, plan: Plan) -> Path:
    with create(path, plan) as file:
        measure(plan, sources(plan), FakeRunner(), file)
    return path


def go_on(path: Path, plan: Plan) -> FakeRunner:
    runner = FakeRunner()
    with resume(path, plan, NOTE) as file:
        measure(plan, sources(plan), runner, file)
    return runner


def test_the_plan_is_on_disk_before_anything_runs(tmp_path: Path) -> None:
    path, seen = tmp_path / "r.jsonl", []

    class Looking(FakeRunner):
        def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
            seen.append(read(path))
            return super().run(group, config, asked)

    plan = small()
    with create(path, plan) as file:
        measure(plan, sources(plan), Looking(), file)
    assert seen[0].plan == plan
    assert not seen[0].runs
    assert len(seen[-1].runs) == len(plan.runs) - 1  # and every run as soon as it is done


def test_a_file_gives_back_what_was_measured(tmp_path: Path) -> None:
    plan = small()
    found = read(measured(tmp_path / "r.jsonl", plan))
    assert found.complete
    assert found.plan == plan
    assert found.runs == result_of(plan).runs


def test_killed_anywhere_it_goes_on_without_loss_or_double_counts(tmp_path: Path) -> None:
    """Cut behind every line and in the middle of every line but the first."""
    plan = small()
    whole = measured(tmp_path / "whole.jsonl", plan).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    middles = [(a + b) // 2 for a, b in pairwise(ends)]
    for cut in (*ends, *middles, len(whole) - 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        before = read(path)
        assert before.complete == (cut == len(whole))
        runner = go_on(path, plan)
        found = read(path)
        assert found.complete
        assert Counter((r.group, r.config) for r in found.runs) == Counter(plan.runs)
        assert found.resumed == (0 if before.complete else 1)
        missing = len(plan.runs) - len(before.runs)
        warm = len(plan.configs) if missing else 0
        assert len(runner.calls) == warm + missing  # nothing was measured again


def test_nothing_of_a_torn_line_stays(tmp_path: Path) -> None:
    """Killed again right after it went on: what was written is shorter than what was torn."""
    plan, path = small(), tmp_path / "r.jsonl"
    lines = measured(path, plan).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + max(lines[4:], key=len)[:-1])
    resume(path, plan, NOTE).__exit__(None, None, None)
    assert path.read_bytes() == b"".join(lines[:4]) + json.dumps({"kind": "resume", **NOTE}).encode() + b"\n"
    assert len(read(path).runs) == 3


def test_an_interrupted_run_keeps_what_was_done(tmp_path: Path) -> None:
    class Tired(FakeRunner):
        def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
            if len(self.calls) == 7:
                raise KeyboardInterrupt
            return super().run(group, config, asked)

    path, plan = tmp_path / "r.jsonl", small()
    with pytest.raises(KeyboardInterrupt), create(path, plan) as file:
        measure(plan, sources(plan), Tired(), file)
    assert len(read(path).runs) == 5  # two of the seven were warm-up
    go_on(path, plan)
    assert read(path).complete


def test_another_plan_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = measured(tmp_path / "r.jsonl", small())
    with pytest.raises(RequestError, match=r"another plan \(other: seed"):
        resume(path, small(seed=2), NOTE)


def test_a_file_is_not_overwritten_or_shared(tmp_path: Path) -> None:
    path, plan = tmp_path / "r.jsonl", small()
    with create(path, plan):
        with pytest.raises(RequestError, match="exists"):
            create(path, plan)
        with pytest.raises(RequestError, match="in use"):
            resume(path, plan, NOTE)
    with pytest.raises(RequestError, match="cannot be written"):
        create(tmp_path / "no" / "r.jsonl", plan)
    with pytest.raises(RequestError, match="cannot be gone on with"):
        resume(tmp_path / "other.jsonl", plan, NOTE)


def spoilt(lines: list[bytes], how: str) -> list[bytes]:
    match how:
        case "twice":
            return [*lines, lines[2]]
        case "not JSON":
            return [*lines[:2], b"{", *lines[3:]]
        case "unplanned":
            return [*lines[:2], json.dumps({**json.loads(lines[2]), "group": 99}).encode(), *lines[3:]]
        case "no requests":
            told = json.loads(lines[2])
            del told["requests"]
            return [*lines[:2], json.dumps(told).encode(), *lines[3:]]
        case "a foreign kind":
            return [*lines[:2], b'{"kind": "remark"}', *lines[3:]]
    return [how.encode(), *lines[1:]]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("twice", "measured twice"),
        ("unplanned", "not planned"),
        ("not JSON", "line 3"),
        ("no requests", "line 3"),
        ("a foreign kind", "line 3"),
        ("[1]", "line 1"),
        ('{"kind": "plan"}', "line 1"),
        ('{"kind": "plan", "version": 2}', "line 1"),
    ],
)
def test_damage_is_refused_and_named(tmp_path: Path, how: str, said: str) -> None:
    path = measured(tmp_path / "r.jsonl", small())
    path.write_bytes(b"\n".join(spoilt(path.read_bytes().splitlines(), how)) + b"\n")
    with pytest.raises(RequestError, match=said):
        read(path)


def test_an_empty_file_and_a_torn_plan_hold_nothing(tmp_path: Path) -> None:
    for n, content in enumerate((b"", b'{"kind": "pl')):
        (tmp_path / str(n)).write_bytes(content)
        with pytest.raises(RequestError, match="no plan"):
            read(tmp_path / str(n))


def test_the_end_is_not_written_before_the_end(tmp_path: Path) -> None:
    plan = small()
    with create(tmp_path / "r.jsonl", plan) as file:
        with pytest.raises(ValueError, match="0 of"):
            file.end()
        run = result_of(plan).runs[0]
        file.add(run)
        with pytest.raises(ValueError, match="before"):
            file.add(run)
    assert isinstance(file, Results)
