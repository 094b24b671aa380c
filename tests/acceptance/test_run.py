"""Manifest, stores and result files: what is written first, kept, gone on with and refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptance.made import BUDGET, WISH, AutoRunner, checks, legs, plan, task, told
from bench.fake import sources
from verify.fakes import FakeCheck, leg

from draftproof.acceptance import run
from draftproof.acceptance.folder import opened
from draftproof.acceptance.manifest import settle
from draftproof.bench.measure import Asked
from draftproof.bench.plan import Config, Weights
from draftproof.bench.results import RunRecord
from draftproof.model.checkpoint import ModelError
from draftproof.types import RequestError
from draftproof.verify.contract import Verdict
from draftproof.verify.outcome import Overall
from draftproof.verify.plan import VerifyError
from draftproof.verify.report.data import record
from draftproof.verify.run import Progress


class Stopping(AutoRunner):
    """Goes `runs` runs, then raises."""

    def __init__(self, runs: int, error: BaseException) -> None:
        super().__init__()
        self.left, self.error = runs, error

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().run(group, config, asked)


def measured(path: Path, runner: AutoRunner) -> run.Speed:
    return run.speed(plan(), sources(plan()), runner, path, lambda at: None)


WARM = 2 * 3  # runs that warm up: batch sizes times configurations


# the manifest


def test_the_manifest_names_all_that_is_accepted(tmp_path: Path) -> None:
    settle(tmp_path / "manifest.json", told(lossy=("lenience:1.5",)))
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["weights"]["target"]["fingerprint"] == "ab"
    assert found["weights"]["draft"]["name"] == "ngram"
    assert found["versions"] == {"code": "c"}
    assert found["sampling"]["temperature"] == 0.0
    assert found["sampling"]["draft lengths"] == ["2", "auto"]
    assert found["sampling"]["verified rules"] == ["block", "token"]
    assert found["stops"]["stop tokens"] == [2]
    assert "fixed length" in found["stops"]["stop tokens in part 5"]
    assert len(found["workload"]["prompts"]) == len(plan().prompts)
    assert all({"sha256", "tokens", "max_tokens"} <= set(p) for p in found["workload"]["prompts"])
    assert found["workload"]["batch sizes"] == [1, 4]
    assert found["budget"]["alpha"] == BUDGET.alpha
    assert found["rules that change the law"] == ["lenience:1.5"]
    assert [p["checks"] != [] for p in found["parts"]] == [False, True, True, True, False, True]


def test_the_same_acceptance_goes_on_whenever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    first = settle(path, told())
    later = plan(created="2027-01-01T00:00:00+00:00", command=("draftproof", "accept"))
    busy = replace(later, environment={**later.environment, "load": [9.0, 9.0, 9.0]})
    assert settle(path, told(busy)) == first


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (plan(target=Weights("toy", "cd", {"precision": "f32"})), "weights"),
        (plan(replace(WISH, short=5)), "workload"),
        (plan(replace(WISH, temperature=1.0)), "sampling"),
        (plan(environment={"cpu": "other"}), "environment"),
    ],
)
def test_another_acceptance_is_refused(tmp_path: Path, other: Any, said: str) -> None:
    settle(tmp_path / "manifest.json", told())
    with pytest.raises(RequestError, match=said):
        settle(tmp_path / "manifest.json", told(other))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1}'])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RequestError, match="no manifest"):
        settle(tmp_path / "manifest.json", told())


def test_folders_that_may_be_used(tmp_path: Path) -> None:
    assert opened(tmp_path / "a" / "b").path.is_dir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(RequestError, match="not empty"):
        opened(tmp_path / "full")
    (tmp_path / "full" / "manifest.json").write_text("{}")
    opened(tmp_path / "full")
    with pytest.raises(RequestError, match="cannot be used"):
        opened(tmp_path / "full" / "thesis.txt")


# speed


def test_measuring_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    first = measured(path, Stopping(WARM + 5, KeyboardInterrupt()))
    assert first.interrupted
    assert (len(first.result.runs), first.figures.complete) == (5, False)
    second = measured(path, AutoRunner())
    assert not second.interrupted
    assert second.figures.complete
    assert Counter((r.group, r.config) for r in second.result.runs) == Counter(plan().runs)
    assert second.result.runs[:5] == first.result.runs


def test_a_run_that_is_over_measures_nothing_again(tmp_path: Path) -> None:
    measured(tmp_path / "bench.jsonl", AutoRunner())
    again = AutoRunner()
    assert measured(tmp_path / "bench.jsonl", again).figures.complete
    assert again.calls == []


@pytest.mark.parametrize("left", [b"", b'{"kind": "pl'])
def test_a_result_file_that_was_killed_at_birth_begins_anew(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "bench.jsonl").write_bytes(left)
    assert measured(tmp_path / "bench.jsonl", AutoRunner()).figures.complete


@pytest.mark.parametrize("error", [RequestError("prompt chat-1 failed"), RuntimeError("kernel died")])
def test_what_breaks_while_measuring_is_told_and_not_raised(tmp_path: Path, error: Exception) -> None:
    found = measured(tmp_path / "bench.jsonl", Stopping(WARM + 5, error))
    assert str(error) in found.trouble
    assert not found.figures.complete
    assert not found.interrupted


# correctness


def test_checks_go_on_where_they_were_interrupted(tmp_path: Path) -> None:
    def stop(at: Progress) -> None:
        if at.check == "stream/evidence":
            raise KeyboardInterrupt

    stopped = run.correctness(task(lambda: [leg(*checks())], weights=""), tmp_path / "s", stop)
    assert stopped.outcome.interrupted
    assert (stopped.outcome.status, stopped.outcome.verdict) == (130, Overall.UNTESTED)
    whole = checks()
    found = run.correctness(task(lambda: [leg(*whole)], weights=""), tmp_path / "s", lambda at: None)
    assert found.outcome.verdict is Overall.EXACT
    at = [c.name for c in whole].index("stream/evidence")
    assert [c.runs for c in whole] == [0] * at + [1] * (len(whole) - at)


def test_a_store_of_another_budget_is_refused(tmp_path: Path) -> None:
    run.correctness(task(legs), tmp_path / "s", lambda at: None)
    with pytest.raises(VerifyError, match="another run"):
        run.correctness(task(legs, budget=replace(BUDGET, seed=2)), tmp_path / "s", lambda at: None)


def test_a_model_that_cannot_be_loaded_again_is_no_pass(tmp_path: Path) -> None:
    def gone() -> Any:
        raise ModelError("the file is gone")

    found = run.correctness(task(gone), tmp_path / "s", lambda at: None)
    assert (found.outcome.verdict, found.outcome.status) == (Overall.UNTESTED, 3)
    assert "the file is gone" in found.outcome.reasons[0]


def test_what_fails_on_a_toy_is_reproduced_on_the_toy(tmp_path: Path) -> None:
    bad = FakeCheck("law/joint", Verdict.FAILS, 0.0)
    two = [leg(bad, name="toy spread, model draft"), leg(bad, name="m, draft ngram")]
    told = record(run.correctness(task(lambda: two, weights=""), tmp_path / "s", lambda at: None))
    toy, model = (row["reproduce"] for row in told["checks"])
    assert toy == "draftproof verify --quick --seed 1 --leg 'toy spread, model draft' --checks law/joint"
    assert model == (
        "draftproof verify --model m --draft ngram --quick --seed 1 --leg 'm, draft ngram' --checks law/joint"
    )
