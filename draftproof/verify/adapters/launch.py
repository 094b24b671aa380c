"""Starts a server on loopback, waits until it is well, and ends it by its process id. Its log is kept.

Knows no engine: a command line for a port, a path that says when it is well, and a log.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from draftproof.verify.adapters.wire import Wire
from draftproof.verify.contract import EngineError
from draftproof.verify.plan import VerifyError

_LOOK, _FAREWELL = 0.1, 10.0  # seconds between looks, and to end in before it is killed
_LINES, _LONG = 3, 160  # lines and characters of a log, where it tells why a server died


@dataclass(frozen=True, slots=True)
class Command:
    """How an engine is started. `words` gives the command line for a port, `patience` are the seconds until it is well.

    `environment` is laid over ours. `host` is where it listens.
    """

    name: str
    words: Callable[[int], Sequence[str]]
    log: Path
    health: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 600.0
    host: str = "127.0.0.1"


class Server:
    """A server that we started."""

    def __init__(self, command: Command, port: int) -> None:
        near = "127.0.0.1" if command.host == "0.0.0.0" else command.host
        self.url, self._command = f"http://{near}:{port}", command
        command.log.parent.mkdir(parents=True, exist_ok=True)
        words = list(command.words(port))
        with command.log.open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **command.environment},
                    start_new_session=True,  # its own group, so that what it starts ends with it
                )
            except OSError as error:
                raise EngineError(f"{command.name} cannot be started: {error}") from error
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Its exit status, when it has one."""
        return self._process.wait()

    def ended(self) -> str:
        """How it ended, with the last lines of its log; "" while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        log = self._command.log
        return f"{self._command.name} ended with status {status}: {tail(log)} (log: {log})"

    def until_well(self) -> None:
        """
        Raises:
            EngineError: it ended, or it is not well in time; then it is stopped.
        """
        over = time.monotonic() + self._command.patience
        while time.monotonic() < over:
            if told := self.ended():
                raise EngineError(told)
            if self._well():
                return
            time.sleep(_LOOK)
        self.stop()
        name, log = self._command.name, self._command.log
        raise EngineError(f"{name} was not well within {self._command.patience:g} s: {tail(log)} (log: {log})")

    def _well(self) -> bool:
        wire = Wire(self.url, seconds=5.0)
        try:
            wire.text(self._command.health)
        except EngineError:
            return False
        finally:
            wire.close()
        return True

    def stop(self) -> None:
        """End it and what it started, if it still runs."""
        atexit.unregister(self.stop)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, sign)
                try:
                    self._process.wait(_FAREWELL)
                except subprocess.TimeoutExpired:
                    continue


@contextmanager
def ending_with_us() -> Iterator[None]:
    """Within it a SIGTERM ends us in order, and so the servers that we started. For the main thread."""

    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start(command: Command, port: int = 0) -> Server:
    """The server, well. Port 0 takes a free one.

    Raises:
        VerifyError: the port is taken.
        EngineError: it does not start.
    """
    server = Server(command, free(port, command.host))
    try:
        server.until_well()
    except BaseException:
        server.stop()
        raise
    return server


def free(port: int, host: str = "127.0.0.1") -> int:
    """The port, or a free one for 0.

    Raises:
        VerifyError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise VerifyError(f"port {port} on {host} cannot be had ({error.strerror}): give another, or 0") from error
        return int(probe.getsockname()[1])


def tail(log: Path) -> str:
    """The last lines that say something, as one line that is not too long. Not the command itself."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return "(no log)"
    told = " | ".join([line for line in lines if line and not line.startswith("$ ")][-_LINES:])
    return told if len(told) <= _LONG else f"…{told[-_LONG:]}"
