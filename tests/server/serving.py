"""A server on a toy engine, in a thread of this process, on a free loopback port."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import openai
from toys import Table, drafting, random_table

from draftproof.draft.base import Proposer
from draftproof.engine import Engine
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.server.metrics import Metrics
from draftproof.server.run import Server, bound
from draftproof.server.service import Service, Settings

PATIENCE = 60.0  # seconds after which a test gives up; nothing is measured


class Bytes:
    """A tokenizer of single bytes, of characters in pieces, and an end token without text (id 0)."""

    strips_space = False
    WORDS = (b"", b"a", b"b", b" ", b"\xf0\x9f", b"\x98\x80", b"\xe6\x97", b"\xa5", b"hello", b"X", b"\n", b"c")

    @property
    def vocab(self) -> int:
        return len(self.WORDS)

    def token_bytes(self, token: int) -> bytes:
        return self.WORDS[token]

    def encode(self, text: str, special: bool = True) -> list[int]:
        found, data = [], text.encode()
        while data:
            token = max(range(1, self.vocab), key=lambda t: len(self.WORDS[t]) if data.startswith(self.WORDS[t]) else 0)
            if not data.startswith(self.WORDS[token]):
                raise ValueError(f"no token for {data[:1]!r}")
            found.append(token)
            data = data[len(self.WORDS[token]) :]
        return found

    def chat(self, messages: Sequence[Any]) -> list[int]:
        return [t for m in messages for t in (9, *self.encode(m["content"]), 10)]

    def info(self) -> dict[str, object]:
        return {"tokenizer_class": "Bytes", "eos_token": "", "vocab_size": self.vocab}


TOKENIZER = Bytes()
VOCAB = TOKENIZER.vocab


def table(seed: int = 1) -> Table:
    return random_table(VOCAB, seed)


def toy(proposer: Proposer | None = None, eos: tuple[int, ...] = (0,), **info: Any) -> Engine:
    running, settings = info.pop("max_running", 4), info.pop("settings", {"draft": "toy-draft"})
    reuse = info.pop("prefix_cache", False)
    made = TabularModel(info.pop("table", table()), tabular_info(VOCAB, eos_ids=eos, **info))
    settings = settings if proposer is not None else {}
    return Engine(made, TOKENIZER, proposer, max_running=running, settings=settings, prefix_cache=reuse)


def drafted(**info: Any) -> Engine:
    """With a draft model whose law is another one."""
    return toy(drafting(table(2), VOCAB), **info)


class Gate:
    """Lets a model's passes through one by one; `closed` says whether the engine waits at it."""

    def __init__(self, engine: Engine) -> None:
        self._free, self._model = threading.Semaphore(0), engine.target.forward
        self._allowed = self._begun = 0
        engine.target.forward = self._forward  # type: ignore[method-assign]

    @property
    def closed(self) -> bool:
        return self._begun > self._allowed

    def _forward(self, chunks: Any) -> Any:
        self._begun += 1
        assert self._free.acquire(timeout=PATIENCE)
        return self._model(chunks)

    def open(self, passes: int = 1_000_000) -> None:
        self._allowed += passes
        self._free.release(passes)


@dataclass
class Running:
    url: str
    engine: Engine
    service: Service
    server: Server
    thread: threading.Thread
    clients: list[openai.OpenAI]

    @property
    def client(self) -> openai.OpenAI:
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE)
        self.clients.append(made)
        return made

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE)

    def send(self, method: str, path: str, body: object = None, raw: bytes = b"", **headers: str) -> Reply:
        """A request as it is, without a client's help."""
        data = raw if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            return Reply(reply.status, reply.read(), dict(reply.headers))
        finally:
            connection.close()

    @property
    def quiet(self) -> bool:
        return not (self.engine.busy or self.service.worker.outstanding or self.service.unsent)

    def idle(self) -> None:
        """Wait until nothing runs, and look at the books."""
        eventually(lambda: self.quiet)
        self.engine.audit()
        assert self.engine.pool.held == 0


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """In OpenAI's shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return dict(error)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


@contextmanager
def serving(engine: Engine, **settings: Any) -> Iterator[Running]:
    chosen = Settings(name="toy", root="toy-root", **{"grace": 5.0, **settings})
    service = Service(engine, chosen, Metrics(engine, chosen.name, chosen.metrics_prefix))
    at: list[str] = []
    server = Server(service, at.append, "warning")
    place = bound("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[place])), daemon=True)
    thread.start()
    eventually(lambda: bool(at) or not thread.is_alive())
    running = Running(at[0], engine, service, server, thread, [])
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        if thread.is_alive():
            server._loop.call_soon_threadsafe(server.end)
            thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not service.worker.alive
