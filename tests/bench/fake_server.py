"""OpenAI-compatible servers of the standard library that make their answers up: letters, of a steady number a chunk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fake:
    """Accepts all of its drafts: a step brings k + 1 tokens, the first step one. `k` is that of requests without one.

    `heeds` a request's draft length; `ids`, `usage` ("each", "end", ""), `tokenizes` ("vllm", "llama", ""), `metrics`
    and `counts` are what it tells; it goes away in the middle of completion number `dies_at`.
    """

    k: int = 0
    heeds: bool = True
    ids: bool = True
    usage: str = "end"
    tokenizes: str = "vllm"
    metrics: bool = True
    counts: bool = False
    model: str = "toy"
    text: str = "a"
    dies_at: int = 0
    refuses_at: int = 0
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    resets: int = 0
    drafts: int = 0
    drafted: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def streamed(self) -> list[dict[str, Any]]:
        return [body for body in self.asked if body.get("stream")]

    def length(self, body: dict[str, Any]) -> int:
        asked = body.get("speculative", {}).get("num_speculative_tokens", self.k) if self.heeds else self.k
        return 3 if asked == "auto" else int(asked)

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        k, most, done, drafts = self.length(body), int(body["max_tokens"]), 0, 0
        while done < most:
            n = min(1 if done == 0 else k + 1, most - done)
            drafts += done > 0 and k > 0
            done += n
            choice = {"index": 0, "text": self.text * n, "finish_reason": "length" if done == most else None}
            if self.ids:
                choice["token_ids"] = [7] * n
            told = {"usage": {"completion_tokens": done}} if self.usage == "each" else {}
            yield {"choices": [choice], **told}
        with self.lock:
            self.drafts += drafts
            for i in range(k):
                self.drafted[i] = self.drafted.get(i, 0) + drafts
        if self.usage:
            yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": most}, **self._metrics(k, drafts)}

    def _metrics(self, k: int, drafts: int) -> dict[str, Any]:
        if not self.metrics:
            return {}
        told = {
            "num_spec_steps": drafts,
            "num_draft_tokens": k * drafts,
            "num_accepted_draft_tokens": k * drafts,
            "num_spec_tokens": k,
            "acceptance_histogram": [0] * k + [drafts],
        }
        return {"metrics": {"speculative_decoding": told}}

    def prometheus(self) -> str:
        if not self.counts:
            return "# nothing\n"
        name, engine = "vllm:spec_decode_num_", 'engine="0"'
        lines = [f"# TYPE {name}drafts counter", f"{name}drafts_total{{{engine}}} {float(self.drafts)}"]
        for what in ("draft_tokens", "accepted_tokens"):
            lines.append(f"{name}{what}_total{{{engine}}} {float(sum(self.drafted.values()))}")
        for i, n in self.drafted.items():
            lines.append(f'{name}accepted_tokens_per_pos_total{{{engine},position="{i}"}} {float(n)}')
            lines.append(f'{name}accepted_tokens_per_pos_created{{{engine},position="{i}"}} 1.7e+09')
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.server.fake
        match self.path:
            case "/v1/models":
                self._json(200, {"data": [{"id": fake.model, "owned_by": "nobody", "max_model_len": 4000}]})
            case "/version":
                self._json(200, {"version": "1.2.3"})
            case "/metrics":
                self._send(200, "text/plain", fake.prometheus().encode())
            case _:
                self._json(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        fake = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        match self.path, fake.tokenizes:
            case "/v1/completions", _:
                self._complete(fake, body)
            case "/tokenize", "vllm":
                self._json(200, {"tokens": [ord(c) for c in body["messages"][0]["content"]]})
            case "/tokenize", "llama":
                self._json(200, {"tokens": [ord(c) for c in body.get("content", "")]})
            case "/apply-template", "llama":
                self._json(200, {"prompt": f"<{body['messages'][0]['content']}>"})
            case "/reset_prefix_cache", "vllm":
                fake.resets += 1
                self._json(200, {})
            case _:
                self._json(404, {"detail": "Not Found"})

    def _complete(self, fake: Fake, body: dict[str, Any]) -> None:
        k = body.get("speculative", {}).get("num_speculative_tokens", 0)
        if fake.heeds and k != "auto" and not 0 <= k <= 64:
            return self._json(400, {"error": {"message": "num_speculative_tokens: 0 to 64"}})
        with fake.lock:
            fake.asked.append(body)
            number = len(fake.streamed)
        if body.get("stream") and number == fake.refuses_at:
            return self._json(429, {"error": {"message": "too many\nrequests"}})
        if not body.get("stream"):
            return self._json(200, {"choices": [{"text": "a"}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for n, event in enumerate(fake.events(body)):
            if fake.dies_at and number >= fake.dies_at and n == 1:
                self.close_connection = True
                threading.Thread(target=self.server.shutdown).start()
                return None
            self._chunk(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return None

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, told: Any) -> None:
        self._send(status, "application/json", json.dumps(told).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    fake: Fake

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are expected."""


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """On a port of its own, or on that of before."""
    server = _Server(("127.0.0.1", fake.port), _Handler)
    server.fake, fake.port = fake, server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
