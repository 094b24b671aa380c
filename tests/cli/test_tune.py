"""`draftproof tune` on a model of a few kilobytes. What it advises there means nothing; what it writes does."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench.tuning import profile, runner, tuning
from rich.console import Console
from tiny_models import write_work

from draftproof import cost, profiling
from draftproof.bench.advice import Outcome
from draftproof.bench.runner import EngineRunner
from draftproof.bench.tune import Tuning
from draftproof.cli import tune_report
from draftproof.cli.main import main
from draftproof.cli.tune_engines import Chosen, Found, configurations, ranges
from draftproof.cli.tune_report import Report, report_json, show

Run = tuple[int, str, str]
SMALL = ("--draft", "ngram:1-2", "--most-k", "2", "--short", "4", "--long", "5", "--temperature", "1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def work(home: Path) -> tuple[str, ...]:
    return write_work(home)


@pytest.fixture
def run(work: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(home))
    monkeypatch.setattr("draftproof.bench.runner.gc", SimpleNamespace(collect=int))  # slow, and no time counts here

    def call(*args: str) -> Run:
        status = main(["tune", *work, *args])
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


def test_it_measures_advises_and_writes(run, home: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    told, costs = tmp_path / "t.json", tmp_path / "c.json"
    status, out, err = run(*SMALL, "--batches", "1,2", "--json", str(told), "--profile", str(costs))
    assert status == 0, err
    for word in ("acceptance by position", "predicted", "advice", "draftproof generate", "vllm serve", "llama-server"):
        assert word in out
    found = json.loads(told.read_text())
    assert found["complete"]
    assert [a["batch"] for a in found["advice"]] == [1, 2]
    assert {a["advice"] for a in found["advice"]} <= {"speculate", "do not speculate"}
    assert found["decision"]
    assert (found["inputs"]["most_k"], found["inputs"]["minutes"], found["inputs"]["seed"]) == (2, None, 1)
    assert found["target"]["fingerprint"]
    for trial in found["trials"]:
        assert trial["looks"]["planned"]
        assert len({len(column) for column in trial["seconds"].values()}) == 1
        assert set(trial["seconds"]) == {"plain", "k=1", "k=2"}
    parts = cost.measured(costs.read_text())
    assert set(parts) == {1, 2}
    assert list(parts[2].lengths) == [0, 1, 2]
    assert main(["cost", "--measured", str(costs), "--alpha", "0.5", "--k", "2", "--json"]) == 0


def test_costs_are_measured_once_unless_asked(run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls: list[int] = []

    def enough(self: Tuning) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))  # those of a busy machine are not kept
    monkeypatch.setattr(profiling, "measured", lambda engine: calls.append(1) or profile())
    monkeypatch.setattr(Tuning, "run", enough)
    for args, count in (((), 1), ((), 1), (("--fresh",), 2), ((), 2)):
        assert run(*SMALL, "--context", "96", *args)[0] == 130  # a configuration that nothing else has measured
        assert len(calls) == count


def test_ctrl_c_shows_what_is_known(run, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    real, calls, told = EngineRunner.run, [], tmp_path / "t.json"

    def tired(self, group, config, asked):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return real(self, group, config, asked)

    monkeypatch.setattr(EngineRunner, "run", tired)
    status, out, _ = run(*SMALL, "--json", str(told))
    assert status == 130
    assert "interrupted: this is what is known so far" in out
    assert "predicted" in out
    assert "too few to say" in out
    found = json.loads(told.read_text())
    assert (found["complete"], found["stopped"]) == (False, "interrupted")
    assert found["configurations"] == {}
    assert found["advice"][0]["ratio"]["high"] is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--most-k", "65"), "--most-k 65"),
        (("--most-k", "9", "--short", "4"), "--short 4"),
        (("--rules", "block,lenience:1.5"), "exact rules"),
        (("--rules", "block,block"), "name each once"),
        (("--batches", "1,x"), "--batches"),
        (("--batches", ""), "--batches"),
        (("--batches", "9"), "only 4 prompts"),
        (("--minutes", "0"), "--minutes 0"),
        (("--draft", "none"), "--draft none"),
        (("--draft", "suffix:2,remember=100"), "remember"),
        (("--json", "no/where.json"), "cannot be written"),
        (("--profile", "no/where.json"), "cannot be written"),
        (("--prompts", "nowhere.jsonl"), "cannot be read"),
        (("--temperature", "-1"), "temperature"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, tmp_path: Path, monkeypatch, args, said: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*SMALL, *args)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("draftproof: ")
    assert said in err.splitlines()[-1]


@pytest.fixture(scope="module")
def log(work: tuple[str, ...], home: Path) -> Path:
    path = home / "log.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_CACHE", str(home))
        args = (*work[:-2], "--draft", "ngram:1-2", "--max-tokens", "24", "--seed", "3")
        assert main(["generate", *args, "--ignore-eos", "--decisions", str(path), "hello hello hello"]) == 0
    return path


def test_replay_of_what_generate_wrote(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "r.json"
    assert main(["tune", "--replay", str(log), "--json", str(told)]) == 0
    out = capsys.readouterr().out
    found = json.loads(told.read_text())
    decisions = sum("choice" in json.loads(line) for line in log.read_text().splitlines())
    assert (found["differing"], found["decisions"]) == (0, decisions)
    assert "as recorded" in out
    assert "best in each step" in out


def test_replay_of_a_tampered_log_is_status_1(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "choice": 11})
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert main(["tune", "--replay", str(tmp_path / "t.jsonl")]) == 1
    assert "line 3: choice is 11" in capsys.readouterr().out


def test_replay_refuses_broken_lines_and_options_without_effect(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.jsonl").write_text(log.read_text() + "{\n", encoding="utf-8")
    assert main(["tune", "--replay", str(tmp_path / "b.jsonl")]) == 2
    assert f"line {len(log.read_text().splitlines()) + 1}" in capsys.readouterr().err
    assert main(["tune", "--replay", str(log), "--most-k", "3"]) == 2
    assert "--most-k has no effect with --replay" in capsys.readouterr().err


def test_tables_and_json_of_a_clear_answer() -> None:
    told = tuning(runner(2))
    told.run()
    report = Report(told, told.conclude(), configurations(Found("MODEL", "ngram", (Chosen(1, 2, "block"),))))
    out = Console(record=True, width=160)
    show(report, out)
    text = out.export_text()
    assert "k=2, rule block" in text
    assert "2.62 × (2.62 to 2.62)" in text
    assert "--k 2" in text
    assert "where to start measuring" in text
    found = report_json(report)
    assert json.loads(json.dumps(found, allow_nan=False))["advice"][0]["k"] == 2
    assert found["trials"][0]["said"][-1]["settled"]


def test_unsettled_advice_says_why_it_ended() -> None:
    told = tuning(runner(2, noise=3.0))
    told.run()
    out = Console(record=True, width=250)
    show(Report(told, told.conclude(), {}), out)
    assert "the prompts are used up" in out.export_text()
    assert tune_report._said(told.conclude()[0]) == str(Outcome.PLAIN)


def commands(draft: str, *chosen: Chosen, model: str = "target") -> dict[str, list[str]]:
    return configurations(Found(model, draft, chosen))


def vllm(draft: str, *chosen: Chosen) -> Any:
    words = shlex.split(commands(draft, *chosen)["vLLM"][0])
    return json.loads(words[words.index("--speculative-config") + 1])


ONE, FOUR, NINE = Chosen(1, 4, "block"), Chosen(4, 2, "token"), Chosen(16, 0, "block")


def test_ranges_cover_every_batch_from_1() -> None:
    assert ranges([ONE, FOUR, NINE]) == [[1, 3, 4], [4, 15, 2], [16, 16, 0]]
    assert ranges([FOUR]) == [[1, 4, 2]]


def test_vllm_gets_lengths_by_batch() -> None:
    assert vllm("small", ONE, FOUR, NINE) == {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 3, 4], [4, 15, 2], [16, 16, 0]],
    }
    assert vllm("ngram:2-5", ONE) == {"method": "ngram", "prompt_lookup_max": 5, "num_speculative_tokens": 4}
    assert vllm("suffix:3", ONE) == {"method": "suffix", "num_speculative_tokens": 4}
    assert vllm("head", ONE)["method"] == "eagle3"


def test_lines_of_each_engine() -> None:
    told = commands("small", ONE)
    assert told["draftproof"] == ["draftproof generate --model target --draft small --k 4 --rule block"]
    assert told["SGLang"][0].endswith(
        "--speculative-algorithm STANDALONE --speculative-draft-model-path small --speculative-num-steps 4 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    assert told["llama-server"] == [
        "llama-server -m target --spec-type draft-simple --spec-draft-model small --spec-draft-n-max 4"
    ]
    looked_up = commands("auto", ONE)
    assert "NGRAM --speculative-num-draft-tokens 5" in looked_up["SGLang"][0]
    assert "ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 4" in looked_up["llama-server"][0]
    assert all("EAGLE-3" in commands("combined", ONE)[name][-1] for name in ("vLLM", "SGLang", "llama-server"))


def test_do_not_speculate_is_a_configuration() -> None:
    told = commands("small", NINE)
    assert told["draftproof"] == ["draftproof generate --model target --draft none"]
    assert told["vLLM"] == ["vllm serve target"]
    assert told["SGLang"] == ["python3 -m sglang.launch_server --model-path target"]
    assert told["llama-server"] == ["llama-server -m target --spec-type none"]


def test_batches_that_differ_have_lines_of_their_own() -> None:
    told = commands("small", ONE, FOUR)["draftproof"]
    assert [line.splitlines()[0] for line in told] == ["# batch 1", "# batch 4"]
    assert commands("small") == {}
