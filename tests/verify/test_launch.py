"""Servers that we start: well, ended, crashed, never well, and their ports."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftproof.verify.adapters import launch
from draftproof.verify.adapters.launch import Command
from draftproof.verify.adapters.wire import Wire
from draftproof.verify.contract import EngineError
from draftproof.verify.plan import VerifyError

SCRIPT = Path(__file__).parent / "launched.py"


def command(folder: Path, way: str, patience: float = 30.0) -> Command:
    def words(port: int) -> list[str]:
        return [sys.executable, str(SCRIPT), str(folder / "note"), way, "--port", str(port)]

    return Command("toy server", words, folder / "logs" / "toy.log", patience=patience)


def alive(pid: int) -> bool:
    """Zombies do not count: they have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def _brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "_FAREWELL", 0.5)
    return


def test_a_server_is_well_and_ends_when_it_is_stopped(tmp_path: Path) -> None:
    server = launch.start(command(tmp_path, "fine"))
    wire = Wire(server.url)
    assert wire.json("/v1/models")["data"][0]["id"] == "toy"
    wire.close()
    assert not server.ended()
    server.stop()
    server.stop()
    assert not alive(server.pid)
    assert "toy server ended" in server.ended()
    assert server.url.rpartition(":")[2] in json.loads((tmp_path / "note").read_text())


@pytest.mark.usefixtures("_brief")
def test_a_server_that_ignores_us_ends_with_all_that_it_started(tmp_path: Path) -> None:
    server = launch.start(command(tmp_path, "stubborn"))
    child = int(json.loads((tmp_path / "note").read_text())[-1])
    assert alive(child)
    server.stop()
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)
    assert not alive(server.pid)


def test_a_crash_at_load_shows_the_last_lines_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"ended with status 7: loading \| the weights are of another planet \(log: .*toy.log\)"
    ):
        launch.start(command(tmp_path, "crash"))
    assert (tmp_path / "logs" / "toy.log").read_text().startswith("$ ")


def test_a_server_that_is_never_well_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"not well within 3 s"):
        launch.start(command(tmp_path, "sick", patience=3.0))
    note = json.loads((tmp_path / "note").read_text())
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(note[note.index("--port") + 1])), 1):
        pass


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot be started: .*nowhere"):
        launch.start(Command("toy server", lambda _: ["/nowhere/toy"], tmp_path / "log"))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(VerifyError, match=rf"port {port} on 127.0.0.1 cannot be had .*give another, or 0"):
            launch.start(command(tmp_path, "fine"), port)
    assert not (tmp_path / "note").exists()


def test_what_the_log_tells_is_short(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\n\nb\nc\n  d  \n$ the command\n\n")
    assert launch.tail(tmp_path / "log") == "b | c | d"
    assert launch.tail(tmp_path / "none") == "(no log)"
    (tmp_path / "log").write_text("x" * 1000 + "end")
    assert len(launch.tail(tmp_path / "log")) < 200
    assert launch.tail(tmp_path / "log").endswith("end")
