"""`draftproof serve` as a process on a model of a few kilobytes: it says what it is, answers, and ends in order."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from rich.console import Console
from server.serving import toy
from tiny_models import TINY, write_gguf

from draftproof.cli import serve
from draftproof.cli.main import main
from draftproof.types import RequestError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache")
    write_gguf(path / "tiny.gguf", replace(TINY, context=128))
    return path


@pytest.fixture
def served(home: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and the lines that it printed before."""
    command = [sys.executable, "-m", "draftproof", "serve", str(home / "tiny.gguf"), "--port", "0", "--threads", "1"]
    options = [
        "--kv-memory",
        "1",
        "--draft",
        "ngram:1-3",
        "--k",
        "3",
        "--api-key",
        "sesame",
        "--served-model-name",
        "t",
    ]
    env = {**os.environ, "DRAFTPROOF_CACHE": str(home)}
    process = subprocess.Popen(  # a test run in the background ignores SIGINT, and so would its children
        ["env", "--default-signal=INT", *command, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("listening on "):
                break
        else:
            raise AssertionError(process.stderr.read() if process.stderr else "")
        yield process, lines[-1].removeprefix("listening on "), lines
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_ends_with_status_0(served: Any, sent: signal.Signals) -> None:
    process, url, lines = served
    for told in ("served as: t", "k: 3", "rule: block", "draft: ngram:1-3", "api key: asked for"):
        assert told in lines
    assert not any("sesame" in line for line in lines)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        asked: dict[str, Any] = {"model": "t", "messages": messages, "max_tokens": 12, "seed": 1}
        whole = client.chat.completions.create(**asked)
        assert 0 < whole.usage.completion_tokens <= 12
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_wrong_use_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args, said in ((["--rule", "best"], "rule="), (["-sc", '{"method": "medusa"}'], "medusa")):
        assert main(["serve", *args]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_port_that_is_taken_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["serve", "no-such-model", "--port", str(other.getsockname()[1])]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("draftproof: --host 127.0.0.1 --port")
    assert "in use" in said


def test_decisions_are_written_as_they_come(tmp_path: Path) -> None:
    with ExitStack() as files:
        (heard,) = serve._decisions(str(tmp_path / "log"), files)
        heard({"a": 1})
    assert (tmp_path / "log").read_text() == '{"a": 1}\n'
    with ExitStack() as files, pytest.raises(RequestError, match="cannot be written"):
        serve._decisions(str(tmp_path / "no" / "log"), files)


@pytest.mark.parametrize(("host", "key", "warned"), [("127.0.0.1", "", 0), ("0.0.0.0", "", 1), ("0.0.0.0", "x", 0)])
def test_an_open_address_is_warned_of(host: str, key: str, warned: int, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    serve.register(parser.add_subparsers())
    args = parser.parse_args(["serve", "--host", host])
    args.api_key = key
    serve._state(Console(), args, toy())
    assert capsys.readouterr().out.count("anybody") == warned


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "example: draftproof serve" in capsys.readouterr().out
