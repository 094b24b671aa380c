"""Ours on PyTorch against transformers' own generate and assisted generation, batch 1, CPU; prints one JSON object.

The pair is made here: a draft of two layers, and a target that begins with the same layers and adds more whose outputs
are scaled down, so that the draft is often right and every layer costs what it costs. Both sides run the same weights,
greedily, with the same draft length; texts must be equal. Each prompt runs every way in random order in this process;
ratios come with a 95 % interval over prompts, of wall-clock seconds and, for a machine that others use too, of seconds
of the processor. Usage: python benchmarks/torch_peers.py
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof import Engine, SamplingParams
from draftproof.bench.stats import paired_ratio
from draftproof.draft.model import ModelProposer
from draftproof.model.base import ModelInfo
from draftproof.model.torch import TorchModel, TorchOptions

VOCAB, DRAFT_LAYERS, CONTEXT = 16384, 2, 512


class NoText:
    """Stands for a tokenizer: prompts are ids, and nobody reads the text."""

    strips_space = False

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:  # noqa: ARG002
        return b""


def pair(layers: int, damping: float) -> tuple[Any, Any]:
    """Target and draft, float32."""
    torch.manual_seed(1)
    sizes = {"vocab_size": VOCAB, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}
    config = AutoConfig.for_model(
        "llama", **sizes, num_key_value_heads=3, num_hidden_layers=layers, max_position_embeddings=CONTEXT,
        initializer_range=0.06, eos_token_id=None, bos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    target = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for layer in target.model.layers[DRAFT_LAYERS:]:
            layer.self_attn.o_proj.weight *= damping
            layer.mlp.down_proj.weight *= damping
    config = copy.deepcopy(config)
    config.num_hidden_layers = DRAFT_LAYERS
    draft = AutoModelForCausalLM.from_config(config).eval()
    draft.load_state_dict(target.state_dict(), strict=False)
    return target, draft


def engines(target: Any, draft: Any) -> tuple[Engine, Engine]:
    """Ours, plain and with the draft. The models are taken over."""
    info = ModelInfo("pair", 0, CONTEXT, 0, 0)
    ours, small = (TorchModel(m, info, TorchOptions(kv_pages=64)) for m in (target, draft))
    return Engine(ours, NoText()), Engine(ours, NoText(), ModelProposer(small, VOCAB))


def ways(layers: int, damping: float, tokens: int, k: int) -> dict[str, Callable[[list[int]], list[int]]]:
    target, draft = pair(layers, damping)
    plain, drafting = engines(copy.deepcopy(target), copy.deepcopy(draft))
    fixed = {
        "num_assistant_tokens": k,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0,
    }

    def theirs(**more: Any) -> Callable[[list[int]], list[int]]:
        def run(prompt: list[int]) -> list[int]:
            ids, few = torch.tensor([prompt]), {"do_sample": False, "max_new_tokens": tokens}
            with torch.inference_mode():
                out = target.generate(ids, attention_mask=torch.ones_like(ids), **few, **more)
            return list(out[0, len(prompt) :].tolist())

        return run

    def assisted(prompt: list[int]) -> list[int]:
        for name, value in fixed.items():
            setattr(draft.generation_config, name, value)
        return theirs(assistant_model=draft)(prompt)

    def ours(engine: Engine, length: int) -> Callable[[list[int]], list[int]]:
        params = SamplingParams(temperature=0, max_tokens=tokens, k=length, ignore_eos=True)
        return lambda prompt: list(engine.generate([prompt], params)[0].tokens)

    return {"generate": theirs(), "assisted": assisted, "plain": ours(plain, 0), "drafting": ours(drafting, k)}


def measure(
    run: dict[str, Callable[[list[int]], list[int]]], prompts: Sequence[list[int]]
) -> dict[str, list[tuple[float, float]]]:
    """Wall-clock and processor seconds by way, prompt by prompt."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in run}
    for place, prompt in enumerate([prompts[0], *prompts]):  # the first one warms up and is not counted
        texts = set()
        for name in random.Random(place).sample(sorted(run), len(run)):
            wall, cpu = perf_counter(), process_time()
            texts.add(tuple(run[name](prompt)))
            if place:
                seconds[name].append((perf_counter() - wall, process_time() - cpu))
        if len(texts) > 1:
            raise SystemExit("texts differ: rounding tipped an argmax, or something is wrong; take another seed")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--damping", type=float, default=0.05, help="smaller: the draft is right more often")
    args = parser.parse_args()
    rng = random.Random(7)
    prompts = [[rng.randrange(VOCAB) for _ in range(24)] for _ in range(args.prompts)]
    seconds = measure(ways(args.layers, args.damping, args.tokens, args.k), prompts)
    ratios = {
        "drafting over assisted": ("assisted", "drafting", 1.3),
        "plain over generate": ("generate", "plain", 1.0),
        "drafting over plain": ("plain", "drafting", None),
        "assisted over generate": ("generate", "assisted", None),
    }
    result: dict[str, Any] = {"settings": vars(args), "load": os.getloadavg()[0], "torch": torch.__version__}
    for name, (base, other, bar) in ratios.items():
        result[name] = {"bar": bar}
        for clock, kind in enumerate(("wall", "processor")):
            sides = ([s[clock] for s in seconds[way]] for way in (base, other))
            result[name][kind] = [round(x, 3) for x in paired_ratio(*sides)]
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
