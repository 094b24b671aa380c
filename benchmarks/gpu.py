"""What takes a GPU to be seen; prints one JSON object, exit status 1 if something fails. Minutes, nothing is fetched.

- passes: tiny models of several architectures with random weights load, which compares their paged passes, two
  sequences with a roll-back, with transformers' own;
- law: two tokens drawn with drafts, batched, by each rule, against their law worked out in float64 from plain passes
  (G-test; together the rules fail once in a million honest runs; the TV that is seen with power 0.99 is told);
- host: of a profiler's trace, the largest copy from the device to the host while rows of a vocabulary are judged: it
  must be smaller than one such row;
- step: milliseconds of a step of a small pair by part, and of the pass alone, launched kernel by kernel, with passes
  recorded as CUDA graphs (the default), and with --compile: what is left is launches and the host.

With --device cpu the script shows that it works; there are no copies to be seen there, and it says so.
Usage: python benchmarks/gpu.py [--device cuda] [--compile]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch_peers import NoText
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof import Engine, SamplingParams
from draftproof.accept import RULES
from draftproof.arrays import host
from draftproof.draft.model import ModelProposer
from draftproof.model.base import ModelInfo
from draftproof.model.torch import TorchModel, TorchOptions
from draftproof.types import Chunk
from draftproof.verify.fit import detectable_tv, goodness_of_fit

CONTEXT, VOCAB, TOP_K = 256, 32768, 6
ALPHA = 1e-6 / len(RULES)
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
SMALL = TINY | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
KINDS = ("llama", "qwen3", "gemma2", "phi3", "gpt_neox")


HOW = TorchOptions(kv_pages=128, laws_here=True)


def model(kind: str, args: argparse.Namespace, how: TorchOptions = HOW, seed: int = 0, **sizes: Any) -> TorchModel:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**TINY, "vocab_size": VOCAB, **sizes})
    options = replace(how, device=args.device)
    made = AutoModelForCausalLM.from_config(config).eval()
    return TorchModel(made, ModelInfo(kind, 0, CONTEXT, 0, 0), options)


def engine(args: argparse.Namespace, how: TorchOptions = HOW, **sizes: Any) -> Engine:
    target, draft = (model("llama", args, how, **{**sizes, "num_hidden_layers": n}) for n in (3, 1))
    return Engine(target, NoText(), ModelProposer(draft, VOCAB), k=3, max_running=64)


def passes(args: argparse.Namespace) -> list[str]:
    return [model(kind, args).info.name for kind in KINDS]


def law(args: argparse.Namespace) -> dict[str, Any]:
    made, prompt = engine(args), [5, 6, 7]
    exact = _law_of_two(made.target, prompt)
    n, cells = args.samples, len(exact)
    found: dict[str, Any] = {"cells": cells, "samples": n, "seen_tv": detectable_tv(n, cells, ALPHA, 0.99)}
    for rule in RULES:
        params = [SamplingParams(top_k=TOP_K, max_tokens=2, rule=rule, seed=s, ignore_eos=True) for s in range(n)]
        outputs = made.generate([prompt] * n, params)
        found[rule] = goodness_of_fit(exact, Counter(o.tokens for o in outputs)).p_value
    return found


def _law_of_two(target: TorchModel, prompt: list[int]) -> dict[tuple[int, ...], float]:
    def after(tokens: list[int]) -> dict[int, float]:
        z = host(target.forward([Chunk(tuple(tokens), 0, (0,), 1)]).logits)[0].astype(np.float64)
        top = sorted(range(VOCAB), key=lambda i: (-z[i], i))[:TOP_K]
        weights = np.exp(z[top] - z[top].max())
        return dict(zip(top, (weights / weights.sum()).tolist(), strict=True))

    return {(x, y): p * q for x, p in after(prompt).items() for y, q in after([*prompt, x]).items()}


def copies(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes of the largest copy to the host; a row has four times VOCAB."""
    if args.device == "cpu":
        return {"largest": None, "row": 4 * VOCAB, "why": "a CPU has nothing to copy from"}
    made = engine(args)
    params = [SamplingParams(rule=rule, seed=1, max_tokens=8, top_p=0.9, ignore_eos=True) for rule in RULES]
    made.generate([[3, 4]] * len(params), params)
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as trace:
        made.generate([[5, 6]] * len(params), params)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    sizes = [int(e["args"]["bytes"]) for e in events if "DtoH" in e.get("name", "") and "bytes" in e.get("args", {})]
    return {"largest": max(sizes), "row": 4 * VOCAB, "copies": len(sizes)}  # there are some: tokens come to the host


def step(args: argparse.Namespace) -> dict[str, Any]:
    ways = {"launched": replace(HOW, graphs=False), "recorded": replace(HOW, graphs=True)}
    ways |= {"compiled": replace(HOW, compile=True)} if args.compile else {}
    return {name: _step(args, how) for name, how in ways.items()}


def _step(args: argparse.Namespace, how: TorchOptions) -> dict[str, float]:
    made = engine(args, how, **SMALL)
    params = SamplingParams(temperature=1, seed=1, max_tokens=64, ignore_eos=True)
    made.generate([[1, 2, 3]], params)
    traces = made.generate([[3, 2, 1]], params)[0].steps[4:]
    seconds = np.median([t.seconds for t in traces], axis=0)
    parts = dict(zip(traces[0].seconds._fields, (1e3 * seconds).tolist(), strict=True))
    return {**parts, "pass of 4 rows": _pass(made.target)}


def _pass(target: TorchModel, repeats: int = 50) -> float:
    chunk, times = Chunk((1, 2, 3, 4), 0, (0,), 4), []
    for _ in range(repeats):
        began = perf_counter()
        float(target.forward([chunk]).logits[0, 0])  # waits for the device
        times.append(perf_counter() - began)
    return 1e3 * float(np.median(times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--samples", type=int, default=20_000)
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    found = {"device": name, "passes": passes(args), "law": law(args), "host": copies(args), "step": step(args)}
    failed = [rule for rule in RULES if found["law"][rule] < ALPHA]
    largest = found["host"]["largest"]
    failed += ["host"] if largest is not None and largest >= found["host"]["row"] else []
    print(json.dumps({**found, "failed": failed}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
