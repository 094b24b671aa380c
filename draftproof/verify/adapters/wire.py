"""JSON over HTTP, many small requests at a time over connections that are kept, of the standard library.

A toy model answers in a few milliseconds, and tens of thousands of answers are asked for: what a richer client does for
each of them would take longer than the engine. Knows no engine and no path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from draftproof.verify.contract import EngineError
from draftproof.verify.plan import VerifyError

_SECONDS = 300.0  # the longest wait for an answer
_LONG = 300  # characters of what an error says


class Refused(EngineError):
    """The server answered with an error. `status` is HTTP's."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


@dataclass(slots=True)
class Wire:
    """Asks one server. Threads may share it.

    Raises:
        VerifyError: `url` is none.
        EngineError: from every method: the server is not there, breaks off, or answers with what is no JSON.
    """

    url: str
    seconds: float = _SECONDS
    _idle: list[HTTPConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise VerifyError(f"{self.url}: give a URL such as http://127.0.0.1:8000")
        self.url = self.url.rstrip("/").removesuffix("/v1")

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a POST of `body`, or to a GET where there is none."""
        text = self.text(path, body)
        try:
            return json.loads(text)
        except ValueError:
            raise EngineError(f"{self.url}{path} answered what is no JSON: {text[:_LONG]!r}") from None

    def text(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """
        Raises:
            Refused: the status is not 2xx.
        """
        status, content = self._answer(path, None if body is None else json.dumps(body).encode())
        text = content.decode(errors="replace")
        if not 200 <= status < 300:
            raise Refused(f"{self.url}{path} answered {status}: {' '.join(text.split())[:_LONG]}", status)
        return text

    def close(self) -> None:
        """Let the kept connections go."""
        while self._idle:
            self._idle.pop().close()

    def _answer(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        """A kept connection that the server closed meanwhile is opened again; a fresh one that breaks is a failure."""
        kept = self._idle.pop() if self._idle else None
        connection = kept or self._fresh()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request("GET" if body is None else "POST", urlsplit(self.url).path + path, body, headers)
            response = connection.getresponse()
        except (HTTPException, OSError) as error:
            connection.close()
            if kept is None or isinstance(error, TimeoutError):
                raise self._gone(error) from error
            return self._answer(path, body)
        try:
            content = response.read()
        except (HTTPException, OSError) as error:
            connection.close()
            raise EngineError(f"{self.url} broke an answer off in the middle ({_why(error)})") from error
        self._idle.append(connection)
        return response.status, content

    def _fresh(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.seconds)

    def _gone(self, error: Exception) -> EngineError:
        if isinstance(error, TimeoutError):
            return EngineError(f"{self.url} gave no answer within {self.seconds:g} s")
        return EngineError(f"the server at {self.url} is not there ({_why(error)})")


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
