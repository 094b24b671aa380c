"""`draftproof verify` over a stub of the suite: options, files, exit statuses."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from verify.fakes import FakeCheck, dying, leg

import draftproof.verify
from draftproof.cli import verify
from draftproof.types import RequestError
from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.outcome import Kill
from draftproof.verify.plan import Leg


@dataclass(frozen=True)
class Options:
    model: str = "toy"
    drafts: tuple[str, ...] = ()
    rules: tuple[str, ...] = ("all",)
    folder: Path = Path()


@dataclass
class Stub:
    """What the suite would be. `checks` may be replaced by a test."""

    checks: list[FakeCheck] = field(default_factory=lambda: [FakeCheck("law/a"), FakeCheck("ends/b")])
    asked: Options | None = None
    kills: tuple[Kill, ...] = (Kill("m", "w", "law/a", "law/a", True),)

    def legs(self, options: Options) -> list[Leg]:
        self.asked = options
        return [leg(*self.checks, name="toy spread, model draft")]

    def mutant_matrix(self, budget: Budget, seeds: Any, said: Any) -> Iterator[Kill]:
        for kill in self.kills:
            said(kill.name)
            yield kill


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    stub = Stub()
    suite = SimpleNamespace(Options=Options, legs=stub.legs, mutant_matrix=stub.mutant_matrix)
    monkeypatch.setitem(sys.modules, "draftproof.verify.suite", suite)  # type: ignore[arg-type]
    monkeypatch.setattr(draftproof.verify, "suite", suite, raising=False)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return stub


def call(*args: str) -> int:
    parser = argparse.ArgumentParser(prog="draftproof")
    verify.register(parser.add_subparsers())
    told = parser.parse_args(["verify", *args])
    return int(told.run(told))


def test_all_holds(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    seen = capsys.readouterr()
    assert "verdict: exact" in seen.out
    assert "2/2 toy spread, model draft / ends/b: holds" in seen.err
    assert "\x1b[" not in seen.out + seen.err
    assert stub.asked is not None
    assert (stub.asked.model, stub.asked.rules, stub.asked.folder.name) == ("toy", ("all",), "toy")


def test_options_reach_the_suite(stub: Stub) -> None:
    assert call("--model", "m", "--draft", "ngram", "--rule", "block", "--rule", "token") == 0
    assert stub.asked is not None
    assert (stub.asked.model, stub.asked.drafts, stub.asked.rules) == ("m", ("ngram",), ("block", "token"))


@pytest.mark.parametrize(
    ("check", "status", "verdict"),
    [
        (FakeCheck("x", Verdict.FAILS, 0.0), 1, "not exact"),
        (FakeCheck("x", act=dying), 3, "could not be tested"),
        (FakeCheck("x"), 0, "exact"),
    ],
)
def test_exit_status_and_files(stub: Stub, tmp_path: Path, check: FakeCheck, status: int, verdict: str) -> None:
    stub.checks = [FakeCheck("a"), check]
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html", "junit")}
    assert call(*(w for kind, path in paths.items() for w in (f"--{kind}", str(path)))) == status
    told = json.loads(paths["json"].read_text())
    assert told["verdict"] == verdict
    assert {"draftproof", "numpy", "python", "code"} <= set(told["versions"])
    assert told["settings"]["engines"] == {"toy spread, model draft": {"version": "1"}}
    root = ET.parse(paths["junit"]).getroot()
    assert (root.get("failures"), root.get("errors")) == (str(int(status == 1)), str(int(status == 3)))
    assert f"<h1>{verdict.capitalize()}</h1>" in paths["html"].read_text()


def test_budget_and_reproduction_line(stub: Stub, tmp_path: Path) -> None:
    stub.checks = [FakeCheck("a", Verdict.FAILS, 0.0)]
    path = tmp_path / "out.json"
    options = ["--rule", "block", "--quick", "--alpha", "1e-4", "--tv", "0.05", "--power", "0.9", "--seed", "7"]
    assert call(*options, "--json", str(path)) == 1
    told = json.loads(path.read_text())
    assert told["budget"] == {"alpha": 1e-4, "tv": 0.05, "power": 0.9, "level": "quick", "seed": 7}
    line = told["checks"][0]["reproduce"]
    assert line.startswith(
        "draftproof verify --rule block --quick --alpha 0.0001 --tv 0.05 --power 0.9 --seed 7 --leg "
    )
    assert line.endswith("--leg 'toy spread, model draft' --checks a")


def test_checks_and_legs_are_chosen(stub: Stub, tmp_path: Path) -> None:
    assert call("--checks", "law/*") == 0
    assert [c.runs for c in stub.checks] == [1, 0]
    assert call("--leg", "toy*", "--checks", "ends/b") == 0
    assert [c.runs for c in stub.checks] == [1, 1]
    with pytest.raises(RequestError, match="--list"):
        call("--checks", "none")


def test_list_runs_nothing(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--list") == 0
    out = capsys.readouterr().out
    assert "law/a   claim of law/a" in out
    assert sum(c.runs for c in stub.checks) == 0


def test_mutants(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert call("--mutants", "--json", str(path)) == 0
    assert json.loads(path.read_text())["mutants"][0]["killed"] is True
    stub.kills += (Kill("n", "w", "ends/b", None, False),)
    assert call("--mutants") == 1
    assert "1 of 2 planted faults" in capsys.readouterr().out
    assert call("--mutants", "--checks", "law/*") == 0


def test_resume(stub: Stub, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert call("--resume", str(store)) == 0
    assert call("--resume", str(store)) == 0
    assert [c.runs for c in stub.checks] == [1, 1]
    for other in (["--seed", "2"], ["--rule", "block"], ["--checks", "law/a"]):
        with pytest.raises(RequestError, match="another run"):
            call("--resume", str(store), *other)


def test_expected_failures(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "expect.toml"
    path.write_text('[[expected]]\ncheck = "bad"\nreason = "ticket 7"\n')
    stub.checks = [FakeCheck("a"), FakeCheck("bad", Verdict.FAILS, 0.0)]
    assert call("--expect", str(path)) == 0
    assert "ticket 7" in capsys.readouterr().out
    stub.checks = [FakeCheck("a"), FakeCheck("bad")]
    assert call("--expect", str(path)) == 1
    assert "was expected to fail" in capsys.readouterr().out


def test_interruption_keeps_and_reports(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plan = tmp_path / "out.json", verify.run_plan

    def interrupted(*args: Any, progress: Any, **more: Any) -> Any:
        def stop(at: Any) -> None:
            if at.done == 1 and at.entry is None:
                raise KeyboardInterrupt

        return plan(*args, progress=stop, **more)

    monkeypatch.setattr(verify, "run_plan", interrupted)
    assert call("--mutants", "--json", str(path)) == 130
    told = json.loads(path.read_text())
    assert [c["verdict"] for c in told["checks"]] == ["holds", "could not be tested"]
    assert told["interrupted"] is True


@pytest.mark.parametrize(
    "args",
    [
        ["--alpha", "0"],
        ["--tv", "1"],
        ["--power", "-1"],
        ["--timeout", "0"],
        ["--json", "/no/such/folder/x"],
        ["--html", "/"],
        ["--resume", "/no/such/folder/x"],
        ["--expect", "/no/such/file"],
    ],
)
def test_wrong_input_is_refused_before_anything_runs(stub: Stub, args: list[str]) -> None:
    with pytest.raises(RequestError):
        call(*args)
    assert sum(c.runs for c in stub.checks) == 0


def test_help_has_an_example(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        call("--help")
    assert "example: draftproof verify" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--quick", "--deep"], ["--engine", "unknown"], ["--seed", "x"]])
def test_wrong_usage(stub: Stub, args: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        call(*args)
