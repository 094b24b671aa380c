"""Servers of the standard library that sample from a world, in the words of vLLM, llama-server, SGLang and OpenAI.

`fault` makes them bad: "greedy" ignores the temperature where it drafts, "short" returns a token too few, "closes"
leaves in the middle of an answer, "garbage" answers what is no JSON, "silent" drafts nothing, "refuses" says 400.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from draftproof.verify import oracle
from draftproof.verify.contract import Params, World


@dataclass
class Fake:
    world: World
    speaks: str  # vllm, llama, sglang, openai
    k: int = 3
    fault: str = ""
    counters: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    drafted: int = 0
    url: str = ""

    def tokens(self, prompt: tuple[int, ...], p: Params, seed: int) -> tuple[int, ...]:
        if self.fault == "greedy" and self.k:
            p = Params(temperature=0.0, max_tokens=p.max_tokens)
        rng = np.random.default_rng(seed)
        out: tuple[int, ...] = ()
        for _ in range(p.max_tokens - (self.fault == "short")):
            out += (int(rng.choice(self.world.vocab, p=oracle.law_at(self.world, prompt, out, p))),)
        return out

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(body)
        prompt, p, seed = self.read(body)
        out = self.tokens(prompt, p, seed)
        proposed = 0 if self.fault == "silent" or not self.k else min(self.k, len(out) - 1)
        self.drafted += proposed
        return getattr(self, self.speaks)(body, p, out, proposed)

    def read(self, body: dict[str, Any]) -> tuple[tuple[int, ...], Params, int]:
        told = body.get("sampling_params", body)
        names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
        known = {name: told[name] for name in names if name in told}
        bias = tuple((int(t), b) for t, b in told.get("logit_bias", {}).items())
        params = Params(
            max_tokens=told.get("max_tokens") or told.get("n_predict") or told.get("max_new_tokens"),
            top_k=max(told.get("top_k", 0), 0),
            logit_bias=bias,
            **known,
        )
        seed = told.get("seed", told.get("sampling_seed", 0))
        return tuple(body.get("prompt") or body["input_ids"]), params, seed

    def vllm(self, body: dict[str, Any], p: Params, out: tuple[int, ...], proposed: int) -> Any:
        told = {
            "num_draft_tokens": proposed,
            "num_accepted_draft_tokens": proposed,
            "per_step_drafted": [proposed],
            "per_step_accepted": [proposed],
        }
        stop = next((t for t in out if t in body["stop_token_ids"]), None)
        ids = out if stop is None else out[: out.index(stop) + 1]
        choice: dict[str, Any] = {"token_ids": list(ids), "text": "", "finish_reason": "length", "stop_reason": stop}
        if stop is not None:
            choice["finish_reason"] = "stop"
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-1.0] * len(ids)}
        metrics = {"speculative_decoding": told if self.k and not self.counters else None}
        return {"choices": [choice], "usage": {"completion_tokens": len(ids)}, "metrics": metrics}

    def llama(self, body: dict[str, Any], p: Params, out: tuple[int, ...], proposed: int) -> Any:
        drafts = {"draft_n": proposed, "draft_n_accepted": proposed} if proposed else {}
        return {
            "tokens": list(out),
            "content": "",
            "stop_type": "limit",
            "tokens_predicted": len(out),
            "timings": {"predicted_n": len(out), **drafts},
        }

    def sglang(self, body: dict[str, Any], p: Params, out: tuple[int, ...], proposed: int) -> Any:
        drafts = {"spec_num_proposed_drafts": proposed, "spec_num_correct_drafts": proposed, "spec_verify_ct": 1}
        meta = {"finish_reason": {"type": "length", "length": len(out)}, "completion_tokens": len(out)}
        return {"text": "", "output_ids": list(out), "meta_info": {**meta, **(drafts if self.k else {})}}

    def openai(self, body: dict[str, Any], p: Params, out: tuple[int, ...], proposed: int) -> Any:
        words = [self.world.words[t] for t in out]
        choice = {"text": "".join(words), "finish_reason": "length", "logprobs": {"tokens": words}}
        return {"choices": [choice], "usage": {"completion_tokens": len(out)}}

    def shown(self, path: str) -> Any:
        """What is told without a body. None: no such path."""
        return {
            "/health": {},
            "/v1/models": {"data": [{"id": "toy"}]} if self.speaks in ("vllm", "openai") else None,
            "/props": {"model_path": "toy.gguf", "build_info": "b7"} if self.speaks == "llama" else None,
            "/version": {"version": "0.7"} if self.speaks == "vllm" else None,
            "/get_model_info": {"model_path": "toy"} if self.speaks == "sglang" else None,
        }.get(path)


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            if self.path == "/metrics" and fake.counters:
                counted = f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {fake.drafted}.0\n'
                return self.say(200, (counted + counted.replace("draft", "accepted")).encode())
            told = fake.shown(self.path)
            return self.say(404 if told is None else 200, json.dumps(told).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if fake.fault == "refuses":
                return self.say(400, b'{"error": "no such field"}')
            if fake.fault == "garbage":
                return self.say(200, b"<html>")
            return self.say(200, json.dumps(fake.answer(self.path, body)).encode())

        def say(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if fake.fault == "closes" and self.command == "POST":
                content, self.close_connection = content[: len(content) // 2], True
            self.wfile.write(content)

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # all of an adapter's connections may come at once

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
