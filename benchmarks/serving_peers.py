"""Throughput over HTTP at sixteen streams: our server beside vLLM on the same CPU and model; prints one JSON object.

Both serve the default model with two threads and no prefix cache: ours with float32 and with int8 weights, each with
and without the promise that batching changes no bit (vLLM makes none by default); vLLM with float32 (see
--vllm-dtype). Each decodes plainly and with n-grams looked up. Every round sends the same prompts to all, in random
order, sixteen requests always under way. A throughput is tokens over wall-clock seconds; ratios to vLLM's of the same
kind come with a 95 % interval over rounds. All answers have the same length: nothing ends at a stop token.
Usage: draftproof audit --prepare vllm, then python benchmarks/serving_peers.py --rounds 6
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from draftproof.bench.answers import Lines, Reader
from draftproof.bench.environment import environment
from draftproof.bench.loadgen import closed
from draftproof.bench.server import Probe
from draftproof.bench.stats import paired_ratio
from draftproof.bench.workloads import read_prompts
from draftproof.model.export import hugging_face
from draftproof.model.fetch import cache_dir
from draftproof.verify.adapters import launch
from draftproof.verify.adapters.registry import Setup
from draftproof.verify.adapters.vllm import ADAPTER

STREAMS, CONTEXT = 16, 2048
BARS = {"f32": 1.1, "f32, not bitwise": 1.1, "int8": 1.4, "int8, not bitwise": 1.4}


class Way:
    """A server and what it is told beside a prompt."""

    def __init__(self, url: str, more: Mapping[str, Any]) -> None:
        with Probe(url, timeout=60.0) as probe:
            self.server = probe.server()
        self.body = {"model": self.server.model, "temperature": 0.0, "ignore_eos": True, "stream": True, **more}

    async def throughput(self, prompts: list[list[int]], tokens: int) -> float:
        """Tokens a second."""
        async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
            began = perf_counter()
            counts = await closed(
                len(prompts), STREAMS, lambda n, _: self._ask(client, prompts[n], tokens), perf_counter
            )
            seconds = perf_counter() - began
        if set(counts) != {tokens}:
            raise SystemExit(f"{self.server.url} gave {sorted(set(counts))} tokens instead of {tokens}")
        return sum(counts) / seconds

    async def _ask(self, client: httpx.AsyncClient, prompt: list[int], tokens: int) -> int:
        body = {**self.body, "prompt": prompt, "max_tokens": tokens, "stream_options": {"include_usage": True}}
        reader, lines = Reader(), Lines()
        async with client.stream("POST", f"{self.server.url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for piece in response.aiter_bytes():
                for data in lines.feed(piece):
                    reader.take(data, perf_counter())
        return reader.answer().tokens


def ours(name: str, args: argparse.Namespace, home: Path) -> launch.Server:
    precision, _, loose = name.partition(", ")
    options = ["--precision", precision, "--draft", "ngram", "--max-num-seqs", str(STREAMS), "--no-prefix-cache"]
    options += ["--threads", str(args.threads), *(["--no-bitwise"] if loose else [])]
    front = [sys.executable, "-m", "draftproof", "serve", "smollm2", *options]
    log = home / f"draftproof-{precision}.log"
    return launch.start(launch.Command("draftproof", lambda port: [*front, "--port", str(port)], log))


def vllm(mode: str, args: argparse.Namespace, home: Path) -> tuple[str, Any]:
    words = {"python": args.vllm_python} if args.vllm_python else {}
    options = {
        **words,
        "threads": str(args.threads),
        "slots": str(STREAMS),
        "context": str(CONTEXT),
        "dtype": args.vllm_dtype,
        "args": "--no-enable-prefix-caching",
    }
    setup = Setup(mode, str(hugging_face("smollm2")), "", home, args.k, options=options)
    if missing := ADAPTER.missing(setup):
        raise SystemExit(missing)
    return ADAPTER.serve(setup)


def ways(args: argparse.Namespace, stack: ExitStack) -> dict[tuple[str, str], Way]:
    """By server and kind of decoding."""
    home, found = cache_dir() / "engines", dict[tuple[str, str], Way]()
    for mode in ("plain", "ngram"):
        url, stop = vllm(mode, args, home)
        stack.callback(stop)
        found["vllm", mode] = Way(url, {})
    for name in BARS:
        server = ours(name, args, home)
        stack.callback(server.stop)
        for mode, k in (("plain", 0), ("ngram", args.our_k)):
            found[name, mode] = Way(server.url, {"speculative": {"num_speculative_tokens": k}})
    return found


def rounds(args: argparse.Namespace, found: Mapping[tuple[str, str], Way]) -> dict[tuple[str, str], list[float]]:
    """Throughputs round by round. The first round warms up and is not counted."""
    url, model = found["vllm", "plain"].server.url, found["vllm", "plain"].server.model
    with Probe(url, timeout=60.0) as probe:
        chosen = random.Random(args.seed).sample(read_prompts(), args.requests)
        prompts = [list(probe.encode(model, p.text)) for p in chosen]
    told: dict[tuple[str, str], list[float]] = {way: [] for way in found}
    for number in range(args.rounds + 1):
        for way in random.Random(f"{args.seed} {number}").sample(sorted(found), len(found)):
            mine = prompts if number else prompts[:STREAMS]
            reached = asyncio.run(found[way].throughput(mine, args.tokens if number else 8))
            print(number, *way, f"{reached:.1f} tokens/s", file=sys.stderr, flush=True)
            if number:
                told[way].append(reached)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=2 * STREAMS, help="of a round, prompts of our own")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--k", type=int, default=3, help="vLLM's draft length")
    parser.add_argument("--our-k", type=lambda word: word if word == "auto" else int(word), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-dtype", default="float32")
    parser.add_argument("--vllm-python", default="", help="of its environment, if it is not the one prepared")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with launch.ending_with_us(), ExitStack() as stack:
        found = ways(args, stack)
        told = rounds(args, found)
    ratios = {
        f"{name}, {mode}": {"bar": bar, **paired_ratio(told[name, mode], told["vllm", mode])._asdict()}
        for name, bar in BARS.items()
        for mode in ("plain", "ngram")
    }
    result = {
        "settings": vars(args),
        "environment": environment(args.threads),
        "vllm": found["vllm", "plain"].server.version,
        "tokens a second": {", ".join(way): [round(x, 1) for x in reached] for way, reached in told.items()},
        "ratio of throughputs, ours to vLLM's": ratios,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
