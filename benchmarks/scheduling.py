"""What scheduling costs at sixteen streams on the default model, as a share of step time; prints one JSON object.

Scheduling is what a step spends beside drafting, the target's pass and accepting: planning, pages and their copies, and
the texts and outputs for readers. The engine's own clock says it, step by step; only steps of full batches count. A
share is that of one run of sixteen requests; low, middle and high are over runs, plain and drafting in turn. The bar is
6 %. Usage: python benchmarks/scheduling.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from draftproof import Engine, SamplingParams, load
from draftproof.types import Seconds

BAR, STREAMS = 0.06, 16
TOPICS = ("a river", "bread", "the moon", "trains", "a clock", "glass", "winter", "salt")


def parts(engine: Engine, k: int, seed: int, tokens: int) -> dict[str, float]:
    """Shares of the time of full steps, by part."""
    prompts = [engine.tokenizer.chat([{"role": "user", "content": f"Tell me about {t}."}]) for t in TOPICS]
    params = [SamplingParams(k=k, seed=STREAMS * seed + i, max_tokens=tokens, ignore_eos=True) for i in range(STREAMS)]
    outputs = engine.generate([prompts[i % len(prompts)] for i in range(STREAMS)], params)
    full = [step for output in outputs for step in output.steps if step.batch == STREAMS and step.emitted]
    steps = {id(step.seconds): step.seconds for step in full}.values()  # those of a step are one object
    sums = Seconds(*(sum(values) for values in zip(*steps, strict=True)))
    return {name: value / sums.total for name, value in sums._asdict().items()}


def spread(values: list[float]) -> dict[str, float]:
    return {"low": min(values), "middle": median(values), "high": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--k", type=int, default=4)
    args = parser.parse_args()
    engine = load("smollm2", args.draft, k=args.k, max_running=STREAMS)
    lengths = {"plain": 0, f"k = {args.k}": args.k}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in lengths}
    for seed in range(args.rounds + 1):
        for name, k in lengths.items():
            found[name].append(parts(engine, k, seed, args.tokens))
    told = {}
    for name, shares in found.items():
        kept = shares[1:]  # the first run warms up
        told[name] = {part: spread([s[part] for s in kept]) for part in Seconds._fields}
        told[name]["scheduling"] = spread([s["kv"] + s["schedule"] + s["other"] for s in kept])
    print(json.dumps({"settings": engine.settings, "bar": BAR, "share_of_step": told}, indent=1, default=str))


if __name__ == "__main__":
    main()
