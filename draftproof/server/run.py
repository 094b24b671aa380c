"""Runs the application with uvicorn until a signal, and ends in order. Knows sockets and signals; no engine."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from draftproof.server.app import application
from draftproof.server.service import Service
from draftproof.types import RequestError

_CLOSING = 1  # seconds for connections to close once nothing is answered any more
_BACKLOG = 4096


class Server(uvicorn.Server):
    """SIGTERM or Ctrl-C: refuse new requests, let running ones end within the grace time, exit with status 0.

    A second signal ends at once.
    """

    def __init__(self, service: Service, ready: Callable[[str], None], log_level: str) -> None:
        config = uvicorn.Config(
            application(service),
            log_level=log_level,
            access_log=log_level in {"debug", "trace"},
            timeout_graceful_shutdown=_CLOSING,
            backlog=_BACKLOG,
            ws="none",
            server_header=False,
        )
        super().__init__(config)
        self._service, self._ready = service, ready
        self._draining: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._ready(self.address)

    @property
    def address(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """uvicorn's hook for signals; what it would do is done once the requests are over."""
        if self._draining or not hasattr(self, "_loop"):
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """On the loop."""
        if not self._draining:
            self._draining.append(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        await self._service.drain()
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A place that is ours before a model is loaded; nobody is let in yet.

    Raises: RequestError: somebody else has it, or there is no such address.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise RequestError(f"--host {host} --port {port}: {error.strerror}; choose another") from error
    return made


def raise_file_limit() -> None:
    """As many open files, and so connections, as the system grants: what a shell sets is often a thousand."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(service: Service, place: socket.socket, ready: Callable[[str], None], log_level: str) -> bool:
    """Returns once the server has ended: whether it ever ran.

    `ready` gets its address when requests are taken.
    """
    raise_file_limit()
    server = Server(service, ready, log_level)
    try:
        server.run(sockets=[place])
    except SystemExit:  # uvicorn has said why it could not begin
        return False
    return server.started
