"""Plain against speculative decoding of one prompt, in one process, interleaved. Knows the engine and a progress bar.

The unit is the seconds of a step per emitted token, from the first decode step on: the two may emit different texts at
temperature above 0. Each pair runs both ways in an order that is drawn for it. The first run of each is not counted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import track

from draftproof.bench.pair import seconds_a_token
from draftproof.bench.stats import Ratio, paired_ratio
from draftproof.engine import Engine
from draftproof.types import SamplingParams


def compare(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    prediction: Sequence[int] | None,
    repeats: int,
    console: Console,
) -> Ratio:
    """How many times faster `params` is than the same with k = 0.

    Raises:
        RequestError: nothing was emitted, so that there is nothing to compare.
    """
    ways = (replace(params, k=0), params)
    order = random.Random(params.seed)
    for way in ways:
        seconds_a_token(engine, prompt, way, prediction)
    seconds: tuple[list[float], list[float]] = ([], [])
    hidden = not console.is_terminal
    for pair in track(range(repeats), "comparing with plain decoding", console=console, transient=True, disable=hidden):
        for i in order.sample((0, 1), 2):
            way = ways[i] if params.seed is None else replace(ways[i], seed=(params.seed + pair) % 2**64)
            seconds[i].append(seconds_a_token(engine, prompt, way, prediction))
    return paired_ratio(*seconds)
