"""`draftproof generate` on a model of a few kilobytes: what is printed where, and every wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import TINY, write_gguf

from draftproof.cli.main import main
from draftproof.watch import Seconds

Run = tuple[int, str, str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(home: Path) -> str:
    write_gguf(home / "tiny.gguf", replace(TINY, context=128))
    return str(home / "tiny.gguf")


@pytest.fixture
def run(tiny: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(home))

    def call(*args: str, model: str = tiny) -> Run:
        status = main(["generate", "--model", model, "--kv-memory", "1", "--threads", "1", *args])
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


COMMON = ("--max-tokens", "12", "--seed", "7")


def test_text_on_stdout_figures_on_stderr(run) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run(*COMMON, "--k", "3", "hello")
    assert status == 0
    assert "\x1b[" not in out + err  # no colour when it is not a terminal
    for word in ("tokens per step", "acceptance by position", "draft", "verify", "other", "block", "precision"):
        assert word in err
    assert "tokens per step" not in out


def test_json_is_one_object_with_the_promised_fields(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run(*COMMON, "--json", "--compare", "--repeats", "2", "hello")
    assert status == 0
    report = json.loads(out)
    assert {"text", "tokens", "finish_reason", "tokens_per_step", "alpha", "alpha_cond", "settings"} <= set(report)
    assert set(report["seconds"]) == {*Seconds._fields, "total"}
    assert report["seconds"]["total"] == pytest.approx(sum(report["seconds"][p] for p in Seconds._fields))
    assert report["speedup"]["low"] <= report["speedup"]["ratio"] <= report["speedup"]["high"]
    assert len(report["tokens"]) == 12
    assert report["finish_reason"] == "length"
    assert report["settings"]["seed"] == 7


def test_same_seed_same_text_and_coupled_equals_plain(run) -> None:  # type: ignore[no-untyped-def]
    texts = [
        json.loads(run(*COMMON, "--json", "--rule", "coupled", "--draft", draft, "--k", k, "hello")[1])["text"]
        for draft, k in (("none", "0"), ("ngram:1-3", "4"), ("ngram:1-3", "1"))
    ]
    assert texts[0] == texts[1] == texts[2]
    assert json.loads(run("--max-tokens", "12", "--seed", "8", "--json", "hello")[1])["text"] != texts[0]


def test_decisions_are_written_with_the_costs_they_rest_on(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "decisions.jsonl"
    _, out, _ = run(*COMMON, "--json", "--decisions", str(path), "--draft", "ngram:1-3", "hello hello hello")
    costs, *decisions = [json.loads(line) for line in path.read_text().splitlines()]
    assert costs.keys() == {"profile"}
    assert sum(d["emitted"] for d in decisions) == len(json.loads(out)["tokens"])
    assert json.loads(out)["settings"]["k"] == "auto"


def test_decisions_without_auto_are_refused(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, _, err = run(*COMMON, "--k", "3", "--decisions", str(tmp_path / "d"), "hello")
    assert (status, "--decisions has no effect with --k 3" in err) == (2, True)


def test_trace_has_one_line_a_step(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace.jsonl"
    _, out, _ = run(*COMMON, "--json", "--trace", str(path), "--draft", "ngram:1-3", "hello hello hello")
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    report = json.loads(out)
    assert len(steps) == report["steps"]
    assert [t for s in steps for t in s["emitted"]] == report["tokens"]
    assert {"proposed", "accepted", "kind", "seconds"} <= set(steps[0])


def test_raw_and_prediction_and_draft_model(run, tiny: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    expected = tmp_path / "expected.txt"
    plain = json.loads(run(*COMMON, "--json", "--raw", "--temperature", "0", "--k", "0", "hello")[1])
    expected.write_text(plain["text"], encoding="utf-8")
    prediction = ("--draft", "prediction", "--prediction", str(expected))
    for draft in (prediction, ("--draft", tiny)):
        report = json.loads(run(*COMMON, "--json", "--raw", "--temperature", "0", "--k", "4", *draft, "hello")[1])
        assert report["text"] == plain["text"]
        assert report["proposed"] > 0
    assert report["alpha"] == 1  # the same model drafts


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--temperature", "-1", "x"), "temperature"),
        (("--temperature", "nan", "x"), "temperature"),
        (("--k", "-1", "x"), "k="),
        (("--top-p", "0", "x"), "top_p"),
        (("--top-p", "2", "x"), "top_p"),
        (("--stop", "", "x"), "stop"),
        (("--rule", "bogus", "x"), "rule='bogus'"),
        (("--rule", "lenience", "x"), "lenience"),
        (("--rule", "lenience:0.5", "x"), "above 1"),
        (("--draft", "ngram:4-2", "x"), "ngram:2-4"),
        (("--draft", "nowhere.gguf", "x"), "nowhere.gguf"),
        (("--precision", "int3", "x"), "precision"),
        (("--kv-precision", "u1", "x"), "kv_precision"),
        (("--context", "9999", "x"), "context"),
        (("--prediction", "f", "x"), "--draft prediction"),
        (("--repeats", "1", "x"), "--repeats"),
        ((" ",), "empty"),
        (("--raw", ""), "empty"),
        (("--trace", "/nowhere/trace", "x"), "/nowhere/trace"),
        (("hello " * 200,), "context"),
    ],
    ids=lambda v: " ".join(v)[:30] if isinstance(v, tuple) else None,
)
def test_wrong_input_is_one_line_and_status_2(run, args: tuple[str, ...], said: str) -> None:  # type: ignore[no-untyped-def]
    status, _, err = run(*args)
    assert status == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("draftproof: ")
    assert said in last
    assert "Traceback" not in err


def test_unknown_model_is_one_line(run) -> None:  # type: ignore[no-untyped-def]
    status, _, err = run("x", model="no-such-model")
    assert status == 2
    assert "no-such-model" in err.strip().splitlines()[-1]


def test_prompt_from_a_pipe_and_interrupt(tiny: str, home: Path) -> None:
    env = {**os.environ, "DRAFTPROOF_CACHE": str(home)}
    command = [sys.executable, "-m", "draftproof", "generate", "--model", tiny, "--kv-memory", "1", "--seed", "1"]
    done = subprocess.run(
        [*command, "--max-tokens", "5"], input="hello", env=env, capture_output=True, text=True, check=True
    )
    assert "tokens per step" in done.stderr
    forever = subprocess.Popen(  # a test run in the background ignores SIGINT, and so would its children
        [
            "env",
            "--default-signal=INT",
            *command,
            "--max-tokens",
            "100",
            "--ignore-eos",
            "--compare",
            "--repeats",
            "100000",
            "hello",
        ],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert forever.stdout is not None
        forever.stdout.read(1)  # it has begun to answer
        forever.send_signal(signal.SIGINT)
        _, err = forever.communicate(timeout=60)
    finally:
        forever.kill()
    assert forever.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_reader_that_goes_away_is_no_error_message(tiny: str, home: Path) -> None:
    env = {**os.environ, "DRAFTPROOF_CACHE": str(home)}
    command = f"{sys.executable} -m draftproof generate --model {tiny} --kv-memory 1 --max-tokens 100 hello | head -c 1"
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, check=True)
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate", "fidelity"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
        assert f"example: draftproof {command}" in capsys.readouterr().out
