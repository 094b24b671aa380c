"""How prompts are dealt into groups, and when the requests of a group begin. Knows no model, no clock and no file.

The same seed gives the same groups, orders and arrivals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from draftproof.types import RequestError

LEAST_GROUPS = 6  # 2 * 0.5 ** 6 is below 0.05: fewer may all fall on one side by chance
_TURNS = 4  # requests of a closed loop for each that is under way: its tail, in which fewer are, stays short
_OPEN = 32  # requests of a group in an open loop
_MICROSECONDS = 6


class Way(StrEnum):
    TOGETHER = "together"
    CLOSED = "closed loop"
    OPEN = "open loop"


@dataclass(frozen=True, slots=True)
class Load:
    """When the requests of a group begin: all at once, the next one when one ends, or at times planned for them.

    A plan's batch sizes say how many are under way; in an open loop they number `rates`, in requests a second, from 1.
    """

    way: Way = Way.TOGETHER
    rates: tuple[float, ...] = ()

    def called(self, batch: int) -> str:
        match self.way:
            case Way.CLOSED:
                return f"{batch} at a time"
            case Way.OPEN:
                return f"{self.rates[batch - 1]:g} a second"
        return f"batch {batch}"

    def size(self, batch: int, count: int) -> int:
        """Prompts of a group, of `count` that there are.

        Raises:
            RequestError: there are too few.
        """
        if self.way != Way.OPEN and batch > count:
            option = "--concurrency" if self.way == Way.CLOSED else "--batches"
            raise RequestError(f"{option} {batch}: there are only {count} prompts; give more, or a smaller number")
        match self.way:
            case Way.CLOSED:
                return 1 if batch == 1 else min(_TURNS * batch, count)
            case Way.OPEN:
                return min(_OPEN, count)
        return batch


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts that run together, by their place in the plan, once under every configuration in this order.

    `arrivals` are the seconds from the group's start at which its requests are due; empty where they are not planned.
    """

    batch: int
    prompts: tuple[int, ...]
    seed: int
    order: tuple[str, ...]
    arrivals: tuple[float, ...] = ()


def groups(
    count: int,
    batches: Sequence[int],
    names: Sequence[str],
    seed: int,
    load: Load = Load(),
) -> tuple[Group, ...]:
    """Deal `count` prompts into groups for each batch size until there are LEAST_GROUPS; shuffle groups and orders.

    Where the last group of a deal would be smaller, prompts of the same deal fill it up.
    """
    rng, dealt = random.Random(f"groups {seed}"), list[tuple[int, list[int]]]()
    for batch in batches:
        size = load.size(batch, count)
        for _ in range(-(-LEAST_GROUPS // -(-count // size))):
            cards = rng.sample(range(count), count)
            cards += cards[: -count % size]
            dealt += [(batch, cards[i : i + size]) for i in range(0, len(cards), size)]
    rng.shuffle(dealt)
    times = random.Random(f"arrivals {seed}")
    return tuple(
        Group(
            batch,
            tuple(cards),
            rng.getrandbits(32),
            tuple(rng.sample(list(names), len(names))),
            arrivals(times, load.rates[batch - 1], len(cards)) if load.way == Way.OPEN else (),
        )
        for batch, cards in dealt
    )


def arrivals(rng: random.Random, rate: float, count: int) -> tuple[float, ...]:
    """`count` times of a Poisson process of `rate` a second: gaps are -ln(1 - u) / rate."""
    found, at = [], 0.0
    for _ in range(count):
        at += -math.log(1.0 - rng.random()) / rate
        found.append(round(at, _MICROSECONDS))
    return tuple(found)


def load_from_json(told: Mapping[str, Any]) -> Load:
    return Load(Way(told["way"]), tuple(told["rates"]))


def group_from_json(
    batch: int, prompts: Sequence[int], seed: int, order: Sequence[str], arrivals: Sequence[float] = ()
) -> Group:
    return Group(batch, tuple(prompts), seed, tuple(order), tuple(arrivals))
