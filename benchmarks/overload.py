"""Do admitted requests keep their latency when four times as many come as fit? Prints one JSON object.

A server on the default model runs so many requests and lets as many wait. Clients come back as soon as they have their
answer, or after the time that a 429 tells them: at first as many as fit, then four times as many, in turn. The time of
a request is that of the try that was admitted, waiting included; its mean is compared round by round. Every request
must be answered in full in the end. Usage: python benchmarks/overload.py --rounds 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from statistics import fmean
from time import perf_counter

import httpx

from draftproof.bench.environment import environment
from draftproof.bench.stats import paired_ratio, spread
from draftproof.model.fetch import cache_dir
from draftproof.verify.adapters import launch

RUNNING, TIMES, BAR = 4, 4, 1.1
FITS = 2 * RUNNING
TOPICS = ("a river", "bread", "the moon", "trains", "a clock", "glass", "winter", "salt")


class Load:
    """What clients saw: seconds of admitted requests, and how many tries were refused."""

    def __init__(self, url: str, tokens: int) -> None:
        self._url, self._tokens = url, tokens
        self.seconds: list[float] = []
        self.refused = 0

    async def run(self, clients: int, each: int) -> None:
        async with httpx.AsyncClient(timeout=600.0, trust_env=False, limits=httpx.Limits(max_connections=None)) as http:
            await asyncio.gather(*(self._client(http, n, each) for n in range(clients)))

    async def _client(self, http: httpx.AsyncClient, number: int, each: int) -> None:
        for turn in range(each):
            topic = TOPICS[(number + turn) % len(TOPICS)]
            while not await self._admitted(http, f"Tell me about {topic}."):
                self.refused += 1

    async def _admitted(self, http: httpx.AsyncClient, prompt: str) -> bool:
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": self._tokens, "temperature": 0, "ignore_eos": True}
        began = perf_counter()
        response = await http.post(f"{self._url}/v1/completions", json=body)
        if response.status_code == 429:
            await asyncio.sleep(float(response.headers["Retry-After"]))
            return False
        response.raise_for_status()
        if response.json()["usage"]["completion_tokens"] != self._tokens:
            raise SystemExit("an answer is not whole")
        self.seconds.append(perf_counter() - began)
        return True


def served() -> launch.Server:
    sizes = ["--max-num-seqs", str(RUNNING), "--max-queue", str(FITS - RUNNING), "--draft", "none"]
    front = [sys.executable, "-m", "draftproof", "serve", "smollm2", *sizes]
    log = cache_dir() / "engines" / "draftproof-overload.log"
    return launch.start(launch.Command("draftproof", lambda port: [*front, "--port", str(port)], log))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--each", type=int, default=2, help="requests of a client and round, at the least load")
    args = parser.parse_args()
    loads: dict[int, list[Load]] = {1: [], TIMES: []}
    with launch.ending_with_us():
        server = served()
        for number in range(args.rounds + 1):
            for times, runs in loads.items():
                load = Load(server.url, args.tokens)
                asyncio.run(load.run(times * FITS, args.each))
                if number:  # the first round warms up
                    runs.append(load)
        server.stop()
    told = {
        f"{times} x what fits": {
            "admitted": sum(len(load.seconds) for load in runs),
            "refused": sum(load.refused for load in runs),
            "seconds": spread([s for load in runs for s in load.seconds])._asdict(),
        }
        for times, runs in loads.items()
    }
    means = {times: [fmean(load.seconds) for load in runs] for times, runs in loads.items()}
    ratio = paired_ratio(means[TIMES], means[1])._asdict()
    result = {
        "settings": vars(args),
        "environment": environment(0),
        **told,
        "latency, overload to not": ratio,
        "bar": BAR,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
