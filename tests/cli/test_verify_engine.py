"""`draftproof verify --engine` over fake servers: verdicts as exit statuses, reports, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from verify import launched
from verify.fake_engine import Fake, serving

from draftproof.cli.main import main
from draftproof.verify import toy

FEW = ("--quick", "--tv", "0.04", "--checks", "law/block")


@pytest.mark.parametrize(("fault", "status"), [("", 0), ("greedy", 1), ("silent", 3), ("garbage", 3)])
def test_verdicts_are_exit_statuses(
    fault: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    world = toy.world(toy.pair())
    with serving(Fake(world, "vllm", fault=fault)) as fake, serving(Fake(world, "vllm", k=0)) as plain:
        where = ("--engine", "vllm", "--mode", "draft", "--url", fake.url, "--plain-url", plain.url)
        assert main(["verify", *where, *FEW, "--json", str(tmp_path / "r.json")]) == status
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["settings"]["engine"] == "vllm"
    assert told["settings"]["modes"] == "draft"
    again = f"--engine vllm --url {fake.url} --plain-url {plain.url} --mode draft"
    assert (again in json.dumps(told)) is (status == 1)  # how to see it once more


def test_an_engine_that_crashes_at_load_could_not_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    binary = tmp_path / "llama-server"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} {launched.__file__} {tmp_path / "note"} crash "$@"\n')
    binary.chmod(0o755)
    option = ("--engine-option", f"binary={binary}")
    assert main(["verify", "--engine", "llama-server", "--mode", "draft", "--launch", *option, *FEW]) == 3
    assert "weights are of another planet" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://127.0.0.1:1"], "no effect on our own engine"),
        (["--engine", "vllm"], "say either --launch"),
        (["--engine", "vllm", "--launch", "--url", "http://127.0.0.1:1"], "say either --launch"),
        (["--engine", "vllm", "--launch", "--plain-url", "http://127.0.0.1:1"], "control of --url"),
        (["--engine", "vllm", "--launch", "--rule", "block"], "chosen by --mode"),
        (["--engine", "vllm", "--launch", "--draft", "a", "--draft", "b"], "name one"),
        (["--engine", "vllm", "--launch", "--k", "0"], "at least 1"),
        (["--engine", "vllm", "--launch", "--engine-option", "x"], "NAME=VALUE"),
        (["--engine", "vllm", "--url", "here", "--mode", "draft"], "give a URL"),
        (["--engine", "no.such", "--launch"], "no ADAPTER that could be loaded"),
        (["--engine", "vllm", "--launch"], "draftproof audit --prepare vllm"),
    ],
)
def test_what_cannot_be_asked(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    assert main(["verify", *words]) in (2, 3)
    told = capsys.readouterr()
    assert said in " ".join((told.err + told.out).split())
