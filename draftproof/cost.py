"""The analytical cost model of speculative decoding: a scenario, never a claim about hardware.

Leviathan et al. 2022 (theorem 3.8): with each draft token accepted with probability alpha on its own, a step of draft
length k emits (1 - alpha^(k+1)) / (1 - alpha) tokens on average and costs 1 + k c plain steps, c being the time of one
draft token in plain steps. `Measured` puts measured times in the place of 1 + k c. No array library, no clock, no file.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

LONGEST = 64
_HALVINGS = 60
_STEP = ("batch", "k", "draft", "verify", "other")
_VERSION = 1
_DAY = 86400.0

Share = Callable[[int], float]  # k -> the draft's share of operations; `Costs.draft` takes it to be its share of time


class Best(NamedTuple):
    k: int
    speedup: float


class Point(NamedTuple):
    """One acceptance and one draft length. Times are in plain steps; infinity where no number is large enough."""

    alpha: float
    k: int
    expected_tokens: float
    step_cost: float
    speedup: float
    operations_factor: float
    break_even_alpha: float
    break_even_draft_cost: float


class Costs(Protocol):
    """What a step costs by its draft length, in plain steps."""

    @property
    def lengths(self) -> Sequence[int]:
        """Draft lengths in ascending order, 0 first."""
        ...

    def step(self, k: int) -> float:
        """The whole step; 1 for k = 0."""
        ...

    def draft(self, k: int) -> float:
        """One of its k draft tokens; says nothing for k = 0."""
        ...


def expected_tokens(alpha: float, k: int) -> float:
    """1 + alpha + ... + alpha^k: emitted tokens per step, the residual or bonus token included."""
    if not 0.0 <= alpha <= 1.0 or k < 0:
        raise ValueError(f"alpha must lie in [0, 1] and k be at least 0, got alpha={alpha} and k={k}")
    return sum(alpha**i for i in range(k + 1))


def expected_by_position(chances: Iterable[float]) -> float:
    """As `expected_tokens`, where position i stands with a chance of its own, given that those before it did."""
    total, standing = 1.0, 1.0
    for chance in chances:
        standing *= chance
        total += standing
    return total


def step_cost(k: int, c: float) -> float:
    """Time of a step in plain steps, verification of k + 1 rows taken to cost one."""
    if k < 0 or not 0.0 <= c < math.inf:
        raise ValueError(f"k and the cost of a draft token must not be negative, got k={k} and {c}")
    return 1.0 + k * c


def speedup(alpha: float, k: int, c: float) -> float:
    """Plain steps saved: below 1 where speculation is slower."""
    return expected_tokens(alpha, k) / step_cost(k, c)


def best_k(alpha: float, c: float, most: int = LONGEST) -> Best:
    """The draft length with the largest speed-up, 0 (do not speculate) among the candidates; the shortest of equals."""
    return best(alpha, Modelled(c, most))


def operations_factor(alpha: float, k: int, share: float) -> float:
    """Expected arithmetic operations a token, in those of plain decoding (Leviathan et al. 2022, theorem 3.11).

    Args:
        share: operations of the draft for one token, in those of the target for one token.
    """
    if not 0.0 <= share < math.inf:
        raise ValueError(f"the draft's share of operations must not be negative, got {share}")
    return (k + 1 + k * share) / expected_tokens(alpha, k)


def break_even_alpha(k: int, cost: float) -> float:
    """The smallest alpha at which a step of `cost` plain steps is no slower than plain decoding; else infinity."""
    if cost > expected_tokens(1.0, k):
        return math.inf
    low, high = 0.0, 1.0
    if cost <= expected_tokens(low, k):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, k) >= cost else (middle, high)
    return high


def break_even_draft_cost(alpha: float, k: int, rest: float = 1.0) -> float:
    """The largest time of a draft token, in plain steps, at which the step is no slower than plain decoding.

    Args:
        rest: the step without its draft, in plain steps.
    Returns:
        A negative number if not even a draft for nothing pays; infinity for k = 0, where there is nothing to pay for.
    """
    return (expected_tokens(alpha, k) - rest) / k if k else math.inf


def general_speedup(plain: float, tokens: float, draft: float, verify: float, other: float) -> float:
    """S = T_plain E / (T_draft + T_verify + T_other): seconds of a whole plain step and of one step's parts, for the
    same batch; `tokens` is E, the expected tokens of a step and sequence, modelled or measured."""
    return plain * tokens / (draft + verify + other)


@dataclass(frozen=True, slots=True)
class Modelled:
    """`c` plain steps a draft token, and verification of any number of rows in one."""

    c: float
    longest: int = LONGEST

    @property
    def lengths(self) -> Sequence[int]:
        return range(self.longest + 1)

    def step(self, k: int) -> float:
        return step_cost(k, self.c)

    def draft(self, k: int) -> float:
        del k
        return self.c


class Parts(NamedTuple):
    """Seconds of one step of a whole batch. `draft` is that of all its draft tokens."""

    draft: float
    verify: float
    other: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of one batch size by draft length, as `measured` makes them: 0 is among them and no step takes no time."""

    steps: Mapping[int, Parts]

    @property
    def lengths(self) -> Sequence[int]:
        return sorted(self.steps)

    @property
    def plain(self) -> float:
        """Seconds of a plain step."""
        return sum(self.steps[0])

    def step(self, k: int) -> float:
        return 1.0 / general_speedup(self.plain, 1.0, *self.steps[k])

    def draft(self, k: int) -> float:
        return self.steps[k].draft / k / self.plain if k else 0.0


def point(alpha: float, k: int, costs: Costs, share: Share) -> Point:
    """Everything about one acceptance and draft length."""
    tokens, cost = expected_tokens(alpha, k), costs.step(k)
    operations = operations_factor(alpha, k, share(k))
    largest = break_even_draft_cost(alpha, k, cost - k * costs.draft(k))
    return Point(alpha, k, tokens, cost, tokens / cost, operations, break_even_alpha(k, cost), largest)


def over_k(alpha: float, lengths: Iterable[int], costs: Costs, share: Share) -> tuple[Point, ...]:
    return tuple(point(alpha, k, costs, share) for k in lengths)


def over_alpha(alphas: Iterable[float], k: int, costs: Costs, share: Share) -> tuple[Point, ...]:
    return tuple(point(alpha, k, costs, share) for alpha in alphas)


def best(alpha: float, costs: Costs) -> Best:
    """As `best_k`, among the lengths that `costs` knows."""
    choices = (Best(k, expected_tokens(alpha, k) / costs.step(k)) for k in costs.lengths)
    return max(choices, key=lambda choice: choice.speedup)


def measured(text: str) -> dict[int, Measured]:
    """Batch size -> its measured steps, from the JSON text that docs/cost.md describes and `to_json` writes.

    Raises:
        ValueError: it is something else. The message names the place and the fix.
    """
    told = _object(text)
    found: dict[int, dict[int, Parts]] = {}
    for i, entry in enumerate(told["steps"]):
        batch, k, parts = _step(entry, f"steps[{i}]")
        if k in found.setdefault(batch, {}):
            raise ValueError(f"steps[{i}]: k={k} at batch {batch} is there twice: keep one")
        found[batch][k] = parts
    for batch, steps in found.items():
        if 0 not in steps:
            raise ValueError(f"batch {batch} has no step with k 0, the plain step that the others are compared with")
    return {batch: Measured(steps) for batch, steps in sorted(found.items())}


def to_json(batches: Mapping[int, Measured]) -> str:
    """What `measured` reads, one line a step."""
    steps = [
        json.dumps({"batch": batch, "k": k, **known.steps[k]._asdict()})
        for batch, known in sorted(batches.items())
        for k in known.lengths
    ]
    return f'{{"version": {_VERSION}, "unit": "seconds", "steps": [\n  ' + ",\n  ".join(steps) + "\n]}\n"


def _object(text: str) -> dict[str, Any]:
    try:
        told = dict(json.loads(text))
        some = len(told["steps"]) > 0
    except KeyError as error:
        raise ValueError('there is no "steps": give a list of measured steps') from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f'this is not a JSON object with a list of "steps" ({error})') from error
    head = {name: told[name] for name in told if name != "steps"}
    if head != {"version": _VERSION, "unit": "seconds"}:
        raise ValueError(f'beside "steps" there must be "version": {_VERSION} and "unit": "seconds", nothing else')
    if not some:
        raise ValueError('"steps" is empty: give at least the plain step, k 0, of one batch size')
    return told


def _step(entry: Any, place: str) -> tuple[int, int, Parts]:
    try:
        if set(entry) != set(_STEP):
            raise ValueError(f"{place}: give {', '.join(_STEP)}, and nothing else")
        batch, k = operator.index(entry["batch"]), operator.index(entry["k"])
        parts = Parts(*(_seconds(entry[name], f"{place}: {name}") for name in Parts._fields))
    except TypeError as error:
        raise ValueError(f"{place}: batch and k are whole numbers, the parts are seconds ({error})") from error
    if batch < 1 or not 0 <= k <= LONGEST:
        raise ValueError(f"{place}: batch is at least 1 and k from 0 to {LONGEST}, got batch={batch} and k={k}")
    if not sum(parts) > 0.0:
        raise ValueError(f"{place}: a step that takes no time was not measured")
    return batch, k, parts


def _seconds(value: Any, place: str) -> float:
    if not 0.0 <= value <= _DAY:
        raise ValueError(f"{place} is {value}: give seconds from 0 to {_DAY:g}")
    return float(value)
