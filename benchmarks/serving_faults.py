"""Many requests with random faults against a server on a toy model in a process of its own; prints one JSON object.

Clients leave at random chunks or within their bodies, read slowly, send bodies that are malformed, have bad fields or
are too large; the page pool is small, so that requests are preempted. Every whole answer (greedy or under
the coupled rule) is compared with what an engine says to the same request alone and without a draft; of one that was
left, the part that came. In the end no page may be held. Rounds of a thousand requests are compared by the server's CPU
seconds a token and by its memory. The exit status is 0 if nothing is wrong; times and memory are told, not judged.
Usage: python benchmarks/serving_faults.py --requests 20000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.server.metrics import Metrics
from draftproof.server.run import bound, serve
from draftproof.server.service import Service, Settings
from draftproof.types import SamplingParams

WORDS = (b"", b"a", b"b", b" ", b"\xf0\x9f", b"\x98\x80", b"\xe6\x97", b"\xa5", b"hello", b"X", b"\n", b"c")
ROUND, DIFFERENT, PATIENCE, LARGE = 1000, 300, 300.0, 1 << 16
FAULTS = ("none", "none", "stream", "stream", "leave", "slow", "malformed", "field", "large", "leave body")
BAD_FIELDS = ({"top_p": 2}, {"stop": ""}, {"what": 1}, {"prompt": [99]}, {"n": 0}, {"seed": "x"}, {"max_tokens": 1.5})
Asked = dict[str, Any]


class Bytes:
    """A tokenizer of few words, some of which are parts of characters."""

    strips_space = False

    def token_bytes(self, token: int) -> bytes:
        return WORDS[token]

    def encode(self, text: str, special: bool = True) -> list[int]:  # noqa: ARG002
        return [WORDS.index(c.encode()) for c in text]

    def chat(self, messages: Sequence[Any]) -> list[int]:
        return [t for m in messages for t in self.encode(m["content"])]


def model(seed: int, **info: int) -> TabularModel:
    """Every prefix has one of 4,096 laws, by a hash of all its tokens."""
    laws = np.random.default_rng(seed).dirichlet(np.full(len(WORDS), 0.7), 4096) * 0.99 + 0.01 / len(WORDS)

    def table(prefix: tuple[int, ...]) -> Any:
        at = 0
        for token in prefix:
            at = (at * 31 + token + 2) % 4096
        return laws[at]

    return TabularModel(table, tabular_info(len(WORDS), eos_ids=(0,), **info))


def child() -> None:
    """The server. Says its address, and once it has ended whether the books are right."""
    settings = {"draft": "toy"}
    proposer = ModelProposer(model(2), len(WORDS))
    engine = Engine(model(1, pages=40), Bytes(), proposer, max_running=8, settings=settings)
    service = Service(engine, Settings(max_queue=256, max_body=LARGE), Metrics(engine, "toy"))
    serve(service, bound("127.0.0.1", 0), lambda url: print(url, flush=True), "error")
    engine.audit()
    print(json.dumps({"held": engine.pool.held, "free": engine.pool.free, "total": engine.pool.total}), flush=True)


def asked(rng: random.Random) -> Asked:
    """A request whose text the seed decides."""
    rule, temperature = rng.choice([("coupled", 1.0), ("coupled", 0.7), ("block", 0.0)])
    return {
        "prompt": [rng.randrange(1, len(WORDS)) for _ in range(rng.randint(1, 9))],
        "max_tokens": rng.randint(1, 40),
        "seed": rng.randrange(1000),
        "temperature": temperature,
        "top_p": rng.choice([0.8, 1.0]),
        "presence_penalty": rng.choice([0.0, 1.0]),
        "stop": rng.choice([[], ["hello"], ["X", " b"]]),
        "speculative": {"rule": rule, "num_speculative_tokens": rng.randint(0, 5)},
    }


def alone(one: Asked) -> str:
    """What an engine says without a draft and without anybody else."""
    names = ("max_tokens", "seed", "temperature", "top_p", "presence_penalty")
    rule = one["speculative"]["rule"]
    params = SamplingParams(**{n: one[n] for n in names}, stop=tuple(one["stop"]), k=0, rule=rule)
    return Engine(model(1), Bytes()).generate([one["prompt"]], params)[0].text


class Client:
    """Raw HTTP, since faults are what no client library makes."""

    def __init__(self, port: int, seen: Counter[str]) -> None:
        self._port, self.seen, self.wrong = port, seen, list[str]()

    async def one(self, request: Asked, want: str, fault: str, rng: random.Random) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ask(request, want, fault, rng)
            self.seen[fault] += 1
        except (TimeoutError, OSError, AssertionError, ValueError, asyncio.IncompleteReadError) as error:
            self.wrong.append(f"{fault}: {type(error).__name__}: {str(error)[:200]}")

    async def _ask(self, request: Asked, want: str, fault: str, rng: random.Random) -> None:
        stream = fault in {"stream", "leave", "slow"}
        body = json.dumps({**request, "stream": stream}).encode()
        if fault == "malformed":
            body = rng.choice([body[: rng.randrange(len(body))], b"[1]", b"\xff", b"", b"null"])
        elif fault == "field":
            body = json.dumps({**request, **rng.choice(BAD_FIELDS)}).encode()
        elif fault == "large":
            body = b"x" * (2 * LARGE)
        reader, writer = await self._open(slow=fault == "slow")
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + (body[: len(body) // 2] if fault == "leave body" else body))
            await writer.drain()
            if fault != "leave body":
                await self._answer(reader, want, fault, rng)
        finally:
            writer.close()

    async def _open(self, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = socket.socket()
        if slow:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        place.setblocking(False)
        await asyncio.get_running_loop().sock_connect(place, ("127.0.0.1", self._port))
        return await asyncio.open_connection(sock=place, limit=1024 if slow else 1 << 20)

    async def _answer(self, reader: asyncio.StreamReader, want: str, fault: str, rng: random.Random) -> None:
        status = int((await reader.readline()).split()[1])
        expected = {"malformed": 400, "field": 400, "large": 413}.get(fault, 200)
        assert status == expected, f"status {status}"
        if fault == "slow":
            await asyncio.sleep(rng.uniform(0.0, 0.5))
        most = rng.randint(1, 6) if fault == "leave" else sys.maxsize
        text, whole = await (_streamed(reader, most) if fault in {"stream", "leave", "slow"} else _whole(reader))
        if expected == 200:
            assert text == want if whole else want.startswith(text), f"{text!r} is not {want!r}"


async def _whole(reader: asyncio.StreamReader) -> tuple[str, bool]:
    told = json.loads((await reader.read(-1)).partition(b"\r\n\r\n")[2])
    assert "error" in told or len(told["choices"]) == 1
    return ("", True) if "error" in told else (str(told["choices"][0]["text"]), True)


async def _streamed(reader: asyncio.StreamReader, most: int) -> tuple[str, bool]:
    """The text of the first `most` chunks, and whether that is all of it."""
    text, seen = "", 0
    while seen < most:
        line = await reader.readline()
        if line.startswith(b"data: [DONE]"):
            return text, True
        if line.startswith(b"data: "):
            text, seen = text + json.loads(line[6:])["choices"][0]["text"], seen + 1
        assert line, "the stream broke off"
    return text, False


async def figures(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = (await reader.read(-1)).decode()
    writer.close()
    return {name: float(value) for name, value in re.findall(r"^draftproof:(\w+)\{[^}]*\} (\S+)$", page, re.M)}


async def idle(port: int) -> dict[str, float]:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await figures(port)
            if not (found["num_requests_running"] or found["num_requests_waiting"]):
                return found
            await asyncio.sleep(0.05)


def spent(pid: int) -> tuple[float, float]:
    """CPU seconds and MiB of memory of a process."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def rounds(client: Client, port: int, pid: int, args: argparse.Namespace) -> list[dict[str, float]]:
    rng = random.Random(args.seed)
    requests = [(one, alone(one)) for one in (asked(rng) for _ in range(DIFFERENT))]
    room, told, sent = asyncio.Semaphore(args.concurrency), list[dict[str, float]](), 0

    async def go(fault: str) -> None:
        async with room:
            await client.one(*rng.choice(requests), fault, rng)

    while sent < args.requests:
        count = min(ROUND, args.requests - sent)
        tokens, (cpu, _) = (await idle(port))["generation_tokens_total"], spent(pid)
        await asyncio.gather(*(go(rng.choice(FAULTS)) for _ in range(count)))
        found, (after, memory) = await idle(port), spent(pid)
        sent += count
        made = found["generation_tokens_total"] - tokens
        told.append({"requests": sent, "cpu_ms_a_token": 1000 * (after - cpu) / made, "memory_mib": memory})
        print(json.dumps({**told[-1], "held": found["kv_pages_held"], "wrong": len(client.wrong)}), file=sys.stderr)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        child()
        return 0
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline().strip().rpartition(":")[2])
        client = Client(port, Counter())
        told = asyncio.run(rounds(client, port, server.pid, args))
        server.send_signal(signal.SIGTERM)
        books = json.loads(server.communicate(timeout=PATIENCE)[0])
    finally:
        server.kill()
    result = {
        "requests": args.requests,
        "as_expected": dict(client.seen),
        "wrong": {"count": len(client.wrong), "first": client.wrong[:5]},
        "pages_at_the_end": books,
        "exit_status": server.returncode,
        "cpu_a_token_last_over_first_round": told[-1]["cpu_ms_a_token"] / told[0]["cpu_ms_a_token"],
        "memory_growth_after_first_round": told[-1]["memory_mib"] / told[0]["memory_mib"] - 1,
        "rounds": told,
    }
    print(json.dumps(result, indent=1))
    return int(bool(client.wrong or books["held"] or server.returncode))


if __name__ == "__main__":
    sys.exit(main())
