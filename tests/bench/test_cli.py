"""`draftproof bench` on a model of a few kilobytes. What it measures there means nothing; what it writes does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from bench.fake import FakeRunner, a_plan, result_of, sources
from tiny_models import write_work

from draftproof.bench.measure import measure
from draftproof.bench.plan import Plan, Wish
from draftproof.bench.results import create, read
from draftproof.bench.runner import EngineRunner
from draftproof.cli.main import main

Run = tuple[int, str, str]
SMALL = ("--draft", "ngram:1-2", "--k", "1,3", "--short", "4", "--long", "6", "--batches", "1,2", "--temperature", "1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def work(home: Path) -> tuple[str, ...]:
    return write_work(home)


@pytest.fixture
def run(work: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(home))

    def call(*args: str) -> Run:
        status = main(["bench", *work, *args])
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


def test_it_measures_writes_and_shows(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out, told, page = (tmp_path / name for name in ("r.jsonl", "f.json", "p.html"))
    status, shown, err = run(*SMALL, "--out", str(out), "--json", str(told), "--html", str(page))
    assert status == 0, err
    assert "measuring" in err
    for name in ("k=1", "k=3"):
        assert name in shown
    result, figures = read(out), json.loads(told.read_text())
    assert result.complete
    assert figures["complete"]
    assert set(figures["speedup"]["overall"]) == {"k=1", "k=3"}
    assert set(figures["speedup"]["by_kind"]) == {"a", "b"}
    assert figures["target"]["fingerprint"]
    assert figures["environment"]["threads"] == 1
    assert result.plan.command[0] == "draftproof"
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
    assert main(["bench", "show", str(out)]) == 0


def test_parts_add_up_on_a_real_engine(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Sums, not times: what the parts say cannot exceed the loop by more than the step before left over."""
    run(*SMALL, "--out", str(tmp_path / "r.jsonl"))
    for record in read(tmp_path / "r.jsonl").runs:
        assert 0 < sum(record.seconds.values()) < 2 * record.loop
        assert record.loop <= record.wall


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(run, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    out, real, calls = tmp_path / "r.jsonl", EngineRunner.run, []

    def tired(self, group, config, asked):  # type: ignore[no-untyped-def]
        calls.append(group)
        if len(calls) == 6 + 5:  # six warm up
            raise KeyboardInterrupt
        return real(self, group, config, asked)

    monkeypatch.setattr(EngineRunner, "run", tired)
    status, _, err = run(*SMALL, "--out", str(out))
    assert status == 130
    assert "4 of 42 runs" in err
    assert "--resume" in err
    assert len(read(out).runs) == 4
    assert main(["bench", "show", str(out)]) == 1
    monkeypatch.undo()
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path.parent))
    status, _, err = run(*SMALL, "--out", str(out), "--resume")
    assert status == 0, err
    found = read(out)
    assert Counter((r.group, r.config) for r in found.runs) == Counter(found.plan.runs)
    assert found.resumed == 1


def test_a_truncated_file_is_shown_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    lines = _measured(out, a_plan()).read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:-4]))
    told = tmp_path / "f.json"
    assert main(["bench", "show", str(out), "--json", str(told)]) == 1
    assert "not complete" in capsys.readouterr().out
    assert json.loads(told.read_text())["complete"] is False


def _measured(path: Path, plan: Plan) -> Path:
    with create(path, plan) as file:
        measure(plan, sources(plan), FakeRunner(), file)
    return path


def test_compare_two_files_and_refuse_lossy_beside_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = _measured(tmp_path / "a.jsonl", a_plan())
    other = _measured(tmp_path / "b.jsonl", a_plan(Wish((2, 4), short=9, long=17, seed=2)))
    lossy = _measured(tmp_path / "c.jsonl", a_plan(Wish((2, 4), ("lenience:1.5",), short=9, long=17)))
    assert main(["bench", "compare", str(exact), str(other)]) == 0
    assert "k=2" in capsys.readouterr().out
    assert main(["bench", "compare", str(exact), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["bench", "compare", str(exact), str(lossy)]) == 2
    assert "lossy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--k", ""), "--k is empty"),
        (("--k", "2,x"), "--k: 'x'"),
        (("--k", "0"), "from 1 to 64"),
        (("--rule", "block", "--rule", "lenience:1.5"), "lossy rules"),
        (("--rule", "bogus"), "bogus"),
        (("--batches", "1,,2"), "--batches"),
        (("--batches", "9"), "only 4 prompts"),
        (("--prompts", "nowhere.jsonl"), "cannot be read"),
        (("--short", "200"), "exceed the context"),
        (("--draft", "none"), "--draft none"),
        (("--draft", "prediction"), "--draft prediction"),
        (("--draft", "suffix:2,remember=100"), "remember"),
        (("--resume",), "--resume"),
        (("--json", "no/where.json"), "cannot be written"),
        (("--temperature", "-1"), "temperature"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, tmp_path: Path, monkeypatch, args, said: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    status, out, err = run("--draft", "ngram", "--k", "2", "--long", "8", *args)
    assert status == 2
    assert out == ""
    assert err.splitlines()[-1].startswith("draftproof: ")
    assert said in err.splitlines()[-1]
    assert not list(tmp_path.glob("bench-*"))


def test_a_broken_prompts_line_is_named(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": []}\n', encoding="utf-8")
    status, _, err = run("--k", "2", "--prompts", str(path))
    assert status == 2
    assert "line 2" in err


def test_a_file_that_is_there_is_not_overwritten(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "r.jsonl"
    _measured(out, result_of(a_plan()).plan)
    before = out.read_bytes()
    assert run(*SMALL, "--out", str(out))[0] == 2
    assert "another plan" in run(*SMALL, "--out", str(out), "--resume")[2]
    assert out.read_bytes() == before
