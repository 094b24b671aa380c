"""`draftproof accept` on a model of a few kilobytes and a stub of the checks: options, files, exit statuses.

What it measures there means nothing; what it writes does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptance.made import checks
from pages import Tables
from tiny_models import TINY, write_gguf
from verify.fakes import FakeCheck, FakeEngine, leg

from draftproof.acceptance.run import TOY
from draftproof.bench.results import read
from draftproof.bench.runner import EngineRunner
from draftproof.cli import accept
from draftproof.cli.main import main
from draftproof.verify.contract import Verdict
from draftproof.verify.plan import Leg
from draftproof.verify.run import Progress

LOSSY = "lenience:1.5"
ALWAYS = {"manifest.json", "verify.json", "verify.html", "bench.jsonl", "bench.json", "bench.html", "index.html"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cache")
    write_gguf(home / "tiny.gguf", replace(TINY, context=128))
    told = [{"prompt": f"hello {i}", "kind": k, "length": n} for k in "ab" for i, n in enumerate(("short", "long"))]
    (home / "p.jsonl").write_text("\n".join(map(json.dumps, told)), encoding="utf-8")
    return home


class Stub:
    """Checks that a test may replace, on an engine whose weights are those that were measured."""

    def __init__(self, out: Path) -> None:
        self.out, self.checks = out, checks()
        self.measured = [FakeCheck(f"lossy/{LOSSY}", Verdict.MEASURED, more={"witness": _distance()})]

    def subjects(self, model: str, draft: str) -> list[Leg]:
        weights = json.loads((self.out / "manifest.json").read_text())["weights"]["target"]["fingerprint"]

        class Same(FakeEngine):
            def describe(self) -> dict[str, str]:
                return {"fingerprint": weights}

        return [leg(*self.checks, engine=Same, name=f"{model}, draft {draft}")]

    def lossy(self, rules: Sequence[str]) -> list[Leg]:
        assert list(rules) == [LOSSY]
        return [leg(*self.measured, name="toy spread, model draft")]


def _distance() -> dict[str, Any]:
    return {"rule": LOSSY, "tv": 0.083, "low": 0.07, "high": 0.09}


@pytest.fixture
def stub(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub(tmp_path / "out")
    monkeypatch.setattr(accept, "subjects", stub.subjects)
    monkeypatch.setattr(accept, "lossy_subjects", stub.lossy)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(home))
    return stub


@pytest.fixture
def call(home: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str) -> tuple[int, str, str]:
        small = ("--prompts", str(home / "p.jsonl"), "--short", "4", "--long", "6", "--batches", "2")
        words = ["accept", str(home / "tiny.gguf"), "--quick", "--k", "2", "--out", str(stub.out), *small, *args]
        monkeypatch.setattr(sys, "argv", ["draftproof", *words])
        status = main(words)
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


def test_one_folder_with_both_verdicts(call: Any, stub: Stub) -> None:
    status, out, err = call("--temperature", "1")
    assert status == 0, err
    assert "Correctness: Exact." in out
    assert "Speed: " in out
    assert {p.name for p in stub.out.iterdir()} >= ALWAYS
    assert not (stub.out / "lossy.html").exists()
    told = json.loads((stub.out / "manifest.json").read_text())
    assert told["draft"] == "ngram:2-4"
    assert told["weights"]["target"]["fingerprint"]
    assert read(stub.out / "bench.jsonl").plan.ignore_eos
    assert json.loads((stub.out / "verify.json").read_text())["verdict"] == "exact"
    assert json.loads((stub.out / "bench.json").read_text())["complete"]


def test_a_failed_check_decides_the_status_and_hides_no_speed(call: Any, stub: Stub) -> None:
    stub.checks = checks(law__joint={"verdict": Verdict.FAILS, "p_value": 0.0})
    status, out, _ = call()
    assert status == 1
    assert "Correctness: Not exact." in out
    assert json.loads((stub.out / "bench.json").read_text())["complete"]


def test_a_speedup_out_of_reach_is_status_4_and_only_if_required(call: Any) -> None:
    assert call("--require-speedup", "1000")[0] == 4
    assert call("--require-speedup", "0")[0] == 0


def test_json_is_all_that_is_printed(call: Any) -> None:
    status, out, _ = call("--json")
    told = json.loads(out)
    assert (status, told["status"], told["correctness"]["verdict"]) == (0, 0, "exact")
    assert [p["part"] for p in told["parts"]] == [1, 2, 3, 4, 5, 6]


def test_lossy_rules_have_files_of_their_own(call: Any, stub: Stub) -> None:
    assert call("--rules", f"token,{LOSSY}")[0] == 0
    exact, lossy = (read(stub.out / name).plan for name in ("bench.jsonl", "lossy-bench.jsonl"))
    assert {c.rule for c in exact.speculative} == {"token"}
    assert {c.rule for c in lossy.speculative} == {LOSSY}
    assert "0.083" in (stub.out / "lossy.html").read_text()
    for name in ("index.html", "verify.html", "bench.html"):
        assert LOSSY not in Tables((stub.out / name).read_text()).words


def test_a_number_belongs_to_the_rule_before_it() -> None:
    assert list(accept._rules("token, lenience:1.5,typical:0.3,0.1,typical:.3,.2,")) == [
        "token",
        "lenience:1.5",
        "typical:0.3,0.1",
        "typical:.3,.2",
    ]
    assert list(accept._rules(" ")) == []


def test_ctrl_c_while_measuring_and_the_same_command_again(call: Any, stub: Stub, monkeypatch: Any) -> None:
    real, calls = EngineRunner.run, list[int]()

    def tired(self, group, config, asked):  # type: ignore[no-untyped-def]
        calls.append(group)
        if len(calls) == 2 + 3:  # two warm up
            raise KeyboardInterrupt
        return real(self, group, config, asked)

    with monkeypatch.context() as patch:
        patch.setattr(EngineRunner, "run", tired)
        status, out, err = call()
    assert status == 130
    assert "To go on" in err
    assert "accept" in err.splitlines()[-1]
    assert "Could not be tested" in out
    assert sum(c.runs for c in stub.checks) == 0
    assert (stub.out / "index.html").exists()
    status, _, err = call()
    assert status == 0, err
    assert read(stub.out / "bench.jsonl").resumed == 1
    assert sum(c.runs for c in stub.checks) == len(stub.checks)
    assert call()[0] == 0
    assert sum(c.runs for c in stub.checks) == len(stub.checks)


def test_ctrl_c_while_verifying_stops_all_and_the_same_command_goes_on(call: Any, stub: Stub, monkeypatch: Any) -> None:
    def stop(at: Progress) -> None:
        if at.check == "stream/evidence":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(accept.verify, "display", lambda err: nullcontext(stop))
        status, out, err = call("--rules", LOSSY)
    assert status == 130
    assert "To go on" in err
    assert "Could not be tested" in out
    done = [c.runs for c in stub.checks]
    assert 0 < sum(done) < len(done)
    assert stub.measured[0].runs == 0
    assert call("--rules", LOSSY)[0] == 0
    assert [c.runs for c in stub.checks] == [1] * len(done)
    assert stub.measured[0].runs == 1


def test_another_acceptance_in_the_same_folder_is_refused(call: Any, stub: Stub) -> None:
    assert call()[0] == 0
    before = (stub.out / "bench.jsonl").read_bytes()
    status, _, err = call("--seed", "2")
    assert status == 2
    assert "another acceptance" in err
    assert (stub.out / "bench.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--k", ""), "--k is empty"),
        (("--k", "2,x"), "--k: 'x'"),
        (("--rules", "bogus"), "bogus"),
        (("--rules", "block,block"), "name each once"),
        (("--batches", "9"), "only 4 prompts"),
        (("--draft", "none"), "--draft none"),
        (("--draft", "suffix:2,remember=100"), "remember"),
        (("--prompts", "nowhere.jsonl"), "cannot be read"),
        (("--require-speedup", "-1"), "--require-speedup"),
        (("--require-speedup", "nan"), "--require-speedup"),
        (("--temperature", "-1"), "temperature"),
        (("--short", "1"), "--short"),
    ],
)
def test_wrong_input_is_one_line_and_status_2_and_nothing_is_written_down(
    call: Any, stub: Stub, args: tuple[str, ...], said: str
) -> None:
    status, out, err = call(*args)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("draftproof: ")
    assert said in err.splitlines()[-1]
    assert not (stub.out / "manifest.json").exists()


def test_the_real_suites_name_their_subjects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys and the model with its draft; rules that change the law apart, and on toys only."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(home))
    model = str(home / "tiny.gguf")
    found = accept.subjects(model, "ngram:2-4")
    assert [each.name for each in found][-1] == f"{model}, draft ngram:2-4"
    assert all(each.name.startswith(TOY) for each in found[:-1])
    assert len(found) == 4
    assert not any(c.name.startswith("lossy/") for each in found for c in each.checks)
    assert found[-1].engine().describe()["fingerprint"]
    apart = accept.lossy_subjects([LOSSY])
    assert [[c.name for c in each.checks] for each in apart] == [[f"lossy/{LOSSY}"]]
    assert all(each.name.startswith(TOY) for each in apart)
