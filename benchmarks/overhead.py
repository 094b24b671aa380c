"""What the engine costs beside the model passes, on the default model; prints one JSON object.

Everything that is compared is run in turn in this process, so that a noisy machine hits both sides; ratios come with a
95 % bootstrap interval over pairs. Bars are those of the engine's acceptance. Usage: python benchmarks/overhead.py
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from draftproof import Engine, SamplingParams, load, summary
from draftproof.bench.pair import seconds_a_token
from draftproof.bench.stats import paired_ratio
from draftproof.draft.base import Ask, Stateless, point_draft
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.skeleton import SkeletonProposer
from draftproof.types import Chunk, Draft

REPEAT = (
    "Repeat this text with one change: write Paris instead of London.\n\nThe train from London to the coast leaves at "
    "nine. In London it rains. I like London in the spring, when the parks of London are green, and the river runs "
    "through London to the sea.",
    "Rewrite this code with one change: rename width to w.\n\n```python\ndef area(width, height):\n    return width * "
    "height\n\ndef volume(width, height, depth):\n    return area(width, height) * depth\n\nprint(area(3, 4))\n"
    "print(volume(3, 4, 5))\n```",
)
TOKENS = 48


class Wrong(Stateless):
    """Always k tokens, never looked at: every step verifies k rows and rejects the first."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._random = vocab, random.Random(1)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [point_draft([self._random.randrange(self._vocab) for _ in range(a.k)], self._vocab) for a in asks]


class Fruitless(NgramProposer):
    """Does all the work of looking up, and proposes nothing."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        super().propose(asks)
        return [Draft() for _ in asks]


def engine_share(engine: Engine, rule: str, temperature: float) -> float:
    """Share of a step that is not spent in model passes, at batch 1 and k = 4."""
    vocab = engine.target.info.vocab
    proposer = Wrong(vocab) if temperature == 0 or rule == "token" else SkeletonProposer(vocab, 0.3)
    own = Engine(engine.target, engine.tokenizer, proposer)
    params = SamplingParams(temperature=temperature, rule=rule, k=4, seed=1, max_tokens=TOKENS, ignore_eos=True)
    stats = summary(own.generate(engine.tokenizer.encode("The history of the city begins"), params)[0].steps)
    return (stats.seconds.total - stats.seconds.verify) / stats.seconds.total


def bare_pass(engine: Engine, tokens: Sequence[int]) -> float:
    """Seconds of one pass of two rows behind `tokens`, with nothing around it."""
    pages = tuple(range(-(-len(tokens) // engine.target.info.page_size)))
    chunk = Chunk(tuple(tokens[-2:]), len(tokens) - 2, pages, 1)
    began = perf_counter()
    engine.target.forward([chunk])
    return perf_counter() - began


def plain_against_bare(engine: Engine, rounds: int) -> dict[str, float]:
    """Plain decoding, token by token, each step followed by a bare pass at the same place."""
    plain, bare = [], []
    prompt = engine.tokenizer.encode("The history of the city begins")
    for seed in range(rounds):
        params = SamplingParams(k=0, seed=seed, max_tokens=TOKENS, ignore_eos=True)
        tokens = list(prompt)
        events = engine.stream(prompt, params)
        while True:
            began = perf_counter()
            event = next(events)
            took = perf_counter() - began
            tokens += event.tokens
            if len(tokens) > len(prompt) + 1:  # not the prompt's own pass
                plain.append(took)
                bare.append(bare_pass(engine, tokens))
            if event.output is not None:
                break
    return paired_ratio(plain, bare)._asdict()


def nothing_proposed(engine: Engine, repeats: int) -> dict[str, float]:
    """Plain seconds a token over those with n-gram look-ups that find nothing."""
    own = Engine(engine.target, engine.tokenizer, Fruitless(engine.target.info.vocab))
    prompt = [random.Random(3).randrange(engine.target.info.vocab) for _ in range(40)]
    hot = SamplingParams(temperature=2.0, k=4, seed=3, max_tokens=2 * TOKENS, ignore_eos=True)
    assert summary(own.generate([prompt], hot)[0].steps).proposed == 0
    return ratio(own, prompt, hot, repeats)


def ratio(engine: Engine, prompt: Sequence[int], params: SamplingParams, repeats: int) -> dict[str, float]:
    """Plain seconds a token over those of `params`."""
    plain = replace(params, k=0)
    pairs = [(seconds_a_token(engine, prompt, plain), seconds_a_token(engine, prompt, params)) for _ in range(repeats)]
    return paired_ratio(*zip(*pairs[1:], strict=True))._asdict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--precision", default="auto")
    args = parser.parse_args()
    from draftproof import ModelOptions

    engine = load("smollm2", "ngram", k=8, options=ModelOptions(precision=args.precision))
    chat = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in REPEAT]
    greedy = SamplingParams(temperature=0, k=8, max_tokens=160)
    shares = {
        f"{rule}, temperature {t}": [engine_share(engine, rule, t) for _ in range(3)]
        for rule, t in (("block", 0), ("token", 1.0), ("block", 1.0), ("coupled", 1.0), ("sampled", 1.0))
    }
    result = {
        "settings": engine.target.info.settings,
        "engine_share_of_step": {"bar": 0.08, **{name: sorted(v)[1] for name, v in shares.items()}},
        "plain_over_bare_passes": {"bar": 1.05, **plain_against_bare(engine, args.repeats)},
        "speedup_nothing_proposed": {"bar": 0.98, **nothing_proposed(engine, 2 * args.repeats)},
        "speedup_repeat": {
            "bar": 1.8,
            **{f"prompt {i}": ratio(engine, c, greedy, args.repeats) for i, c in enumerate(chat)},
        },
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
