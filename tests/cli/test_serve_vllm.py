"""`draftproof serve --engine vllm` with a vLLM that only writes down how it was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import verify.launched

from draftproof.cli import serve_vllm
from draftproof.cli.main import main


def interpreter(folder: Path, way: str = "fine") -> str:
    """What stands for the interpreter of vLLM's environment."""
    path = folder / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {verify.launched.__file__} {folder / "note"} {way} "$@"\n')
    path.chmod(0o755)
    return str(path)


def words_of(folder: Path) -> list[str]:
    told: list[str] = json.loads((folder / "note").read_text())
    return told


def ended_when_well(folder: Path) -> threading.Thread:
    """Ends our server as a user of `kill` would, once it runs."""

    def end() -> None:
        while not (folder / "serve.log").exists() or not (folder / "note").exists():
            time.sleep(0.05)
        time.sleep(1.0)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and str(folder / "note").encode() in _line(entry):
                os.kill(int(entry.name), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def _line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def served(folder: Path, *more: str) -> tuple[int, list[str]]:
    thread = ended_when_well(folder)
    told = ["--python", interpreter(folder), "--port", "0", "--log", str(folder / "serve.log")]
    status = main(["serve", "a/model", "--engine", "vllm", *told, *more])
    thread.join()
    return status, words_of(folder)


def test_words_of_vllm_are_passed_unchanged(tmp_path: Path, capsys: Any) -> None:
    theirs = ["--tensor-parallel-size", "2", "--max-num-seqs=8", "--no-enable-prefix-caching", "--model-len", "9"]
    status, words = served(tmp_path, *theirs)
    assert words[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "a/model"]
    assert words[-len(theirs) :] == theirs
    assert status == 128 + signal.SIGTERM
    out = capsys.readouterr().out
    assert "listening on http://127.0.0.1:" in out
    assert "to scale: --tensor-parallel-size" in out


def test_tunes_advice_becomes_the_speculative_configuration(tmp_path: Path) -> None:
    config = {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 3}
    line = f"vllm serve smollm2 --speculative-config '{json.dumps(config)}'"
    (tmp_path / "advice.json").write_text(json.dumps({"configurations": {"vLLM": [line]}}))
    _, words = served(tmp_path, "--advice", str(tmp_path / "advice.json"))
    assert json.loads(words[words.index("--speculative-config") + 1]) == config


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--advice", "nowhere.json"], "holds no advice for vLLM"),
        (["--advice", "x.json", "--speculative-config", "{}"], "say one thing twice"),
        (["--python", "nowhere/python"], "is no file"),
        ([], "draftproof audit --prepare vllm"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, more: list[str], said: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    python = [] if "--python" in more or not more else ["--python", interpreter(tmp_path)]
    assert main(["serve", "m", "--engine", "vllm", *python, *more]) == 2
    assert said in capsys.readouterr().err


def test_advice_of_a_head_of_ours_is_not_for_vllm(tmp_path: Path, capsys: Any) -> None:
    line = """vllm serve m --speculative-config '{"method": "eagle3", "model": "DRAFT"}'"""
    (tmp_path / "a.json").write_text(json.dumps({"configurations": {"vLLM": [line]}}))
    told = ["--python", interpreter(tmp_path), "--advice", str(tmp_path / "a.json")]
    assert main(["serve", "m", "--engine", "vllm", *told]) == 2
    assert "in vLLM's format" in capsys.readouterr().err


def test_a_crash_is_told_with_its_last_words(tmp_path: Path, capsys: Any) -> None:
    told = ["--python", interpreter(tmp_path, "crash"), "--port", "0", "--log", str(tmp_path / "log")]
    assert main(["serve", "m", "--engine", "vllm", *told]) == 2
    assert "weights are of another planet" in capsys.readouterr().err


def test_whose_words_they_are() -> None:
    assert serve_vllm.asked(["serve", "m", "--engine", "vllm"])
    assert serve_vllm.asked(["serve", "--engine=vllm", "m"])
    assert not serve_vllm.asked(["serve", "m", "--engine", "draftproof"])
    assert not serve_vllm.asked(["verify", "--engine", "vllm"])
    kept = serve_vllm.without(["-a", "--speculative-config", "{}", "--b=1", "-sc", "x", "--speculative-config={}", "c"])
    assert kept == ["-a", "--b=1", "c"]


def test_ending_us_ends_vllm(tmp_path: Path) -> None:
    told = ["--python", interpreter(tmp_path), "--port", "0", "--log", str(tmp_path / "serve.log")]
    command = [sys.executable, "-m", "draftproof", "serve", "m", "--engine", "vllm", *told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline().startswith("listening")
        theirs = [e.name for e in Path("/proc").iterdir() if e.name.isdecimal() and str(tmp_path / "note") in _words(e)]
        ours.terminate()
        assert ours.wait(30) == 128 + signal.SIGTERM
    assert theirs
    assert not any(str(tmp_path / "note") in _words(Path("/proc") / pid) for pid in theirs)


def _words(entry: Path) -> str:
    return _line(entry).decode(errors="replace")
