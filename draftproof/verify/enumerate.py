"""Exact laws of black-box rules, by following every way that their noise can fall out.

A rule is run with *symbolic* uniforms. Each comparison of one with a number splits its interval in two, and the run is
repeated until every branch has been taken (depth-first replay). A path's probability is the product of the widths of
the intervals that are left, so a uniform that is used twice is followed exactly. A race is branched by the law of its
winner, and its second winner by the joint law of both.

Knows no rule, no model and nothing of the engine: what is enumerated needs only the methods of `PathNoise`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Protocol, SupportsFloat, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
Tokens = tuple[int, ...]
Step = Callable[[Tokens, int, "PathNoise"], Tokens]  # (prefix, origin, noise) -> the tokens that the step emits

_DUST = 4e-16  # thresholds this close are one threshold, met twice with different rounding
_PATHS = 2_000_000


class EnumerationError(RuntimeError):
    """The function cannot be enumerated: it hides randomness, keeps state, or does not end."""


class AnyLaw(Protocol):
    def dense(self) -> NDArray[np.float64]: ...


class Tape:
    """One run's branch decisions. Replayed with the last decision advanced until none is left."""

    def __init__(self) -> None:
        self._labels: list[Hashable] = []
        self._options: list[list[Any]] = []  # per branch point: what is still to be taken; the first is taken now
        self.rewind()

    def rewind(self) -> None:
        self._at, self._chance = 0, 1.0
        self._intervals: dict[Hashable, tuple[float, float]] = {}
        self._races: dict[Hashable, PathRace] = {}

    def advance(self) -> bool:
        """Move to the next path. False if there is none."""
        while self._options:
            self._options[-1].pop(0)
            if self._options[-1]:
                return True
            self._options.pop()
            self._labels.pop()
        return False

    def probability(self) -> float:
        self._known(self._at == len(self._options))
        return self._chance * math.prod(high - low for low, high in self._intervals.values())

    def _known(self, ok: bool) -> None:
        if not ok:
            raise EnumerationError("a replay with the same noise took another path: the function keeps state")

    def _choose(self, label: Hashable, options: list[Any]) -> Any:
        """The option of this path. Those without probability must have been left out."""
        if self._at == len(self._options):
            self._labels.append(label)
            self._options.append(options)
        self._known(self._labels[self._at] == label)
        self._at += 1
        return self._options[self._at - 1][0]

    def below(self, key: Hashable, threshold: float) -> bool:
        """Whether the uniform of `key` lies below `threshold` on this path."""
        if math.isnan(threshold):
            raise EnumerationError("a uniform was compared with NaN")
        low, high = self._intervals.setdefault(key, (0.0, 1.0))
        if threshold <= low + _DUST or threshold >= high - _DUST:
            return threshold > low + _DUST
        yes = bool(self._choose((key, threshold), [True, False]))
        self._intervals[key] = (low, threshold) if yes else (threshold, high)
        return yes

    def pick(self, label: Hashable, law: NDArray[np.float64]) -> int:
        """Branch over the tokens of a law."""
        token = int(self._choose(label, np.flatnonzero(law > 0).tolist()))
        self._chance *= float(law[token])
        return token

    def race(self, key: Hashable) -> PathRace:
        return self._races.setdefault(key, PathRace(self, key))


class Affine:
    """scale * u + shift for a symbolic uniform u. Comparing it with a number decides something about u.

    Ends of intervals have no measure, so < and <= are one; test them with `Fixed`.
    """

    __slots__ = ("_key", "_scale", "_shift", "_tape")
    __array_ufunc__ = None  # arrays and NumPy's scalars leave the operation to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: Tape, key: Hashable, scale: float = 1.0, shift: float = 0.0) -> None:
        self._tape, self._key, self._scale, self._shift = tape, key, scale, shift

    def _new(self, scale: float, shift: float) -> Affine:
        return Affine(self._tape, self._key, scale, shift)

    def __mul__(self, factor: SupportsFloat) -> Affine:
        return self._new(self._scale * float(factor), self._shift * float(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: SupportsFloat) -> Affine:
        return self._new(self._scale / float(divisor), self._shift / float(divisor))

    def __neg__(self) -> Affine:
        return self * -1.0

    def __add__(self, term: SupportsFloat) -> Affine:
        return self._new(self._scale, self._shift + float(term))

    __radd__ = __add__

    def __sub__(self, term: SupportsFloat) -> Affine:
        return self + -float(term)

    def __rsub__(self, term: SupportsFloat) -> Affine:
        return -self + term

    def __float__(self) -> float:
        raise EnumerationError("a symbolic uniform has no value: only scale it, shift it and compare it with numbers")

    def __eq__(self, other: object) -> bool:
        raise EnumerationError("a uniform equals nothing with probability 0: compare with < or >")

    def _below(self, bound: Any) -> bool:
        if isinstance(bound, Affine):
            if bound._key != self._key:
                raise EnumerationError("two uniforms were compared with each other; only numbers can be followed")
            return self._new(self._scale - bound._scale, self._shift - bound._shift)._below(0.0)
        gap = float(bound) - self._shift
        if self._scale == 0.0:
            return gap > 0.0
        return (self._scale > 0.0) is self._tape.below(self._key, gap / self._scale)

    def __lt__(self, bound: Any) -> Any:
        if isinstance(bound, np.ndarray) and bound.ndim:
            return np.array([self._below(b) for b in bound])
        return self._below(bound)

    def __gt__(self, bound: Any) -> Any:
        return (-self) < (-bound)

    def __ge__(self, bound: Any) -> Any:
        return np.logical_not(self < bound)

    def __le__(self, bound: Any) -> Any:
        return np.logical_not(self > bound)


class PathRace:
    """An exponential race whose winners are branched. One race may be asked for two different laws."""

    def __init__(self, tape: Tape, key: Hashable) -> None:
        self._tape, self._key = tape, key
        self._seen: list[tuple[NDArray[np.float64], int]] = []

    def winner(self, law: AnyLaw) -> int:
        p = np.asarray(law.dense(), dtype=np.float64)
        for known, token in self._seen:
            if np.array_equal(known, p):
                return token
        if len(self._seen) == 2:
            raise EnumerationError("one race was asked for three different laws: their joint law is not worked out")
        odds = p
        for first, token in self._seen:
            odds = race_joint(first, p)[token] / first[token]
        self._seen.append((p, self._tape.pick((self._key, len(self._seen), odds.tobytes()), odds)))
        return self._seen[-1][1]


def race_joint(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(argmin E/p = x, argmin E/q = y) for independent unit exponentials E. Shape [vocab, vocab].

    With x's time E_x/p_x = a and y's time E_y/q_y = s a, both win iff p_y/q_y <= s <= p_x/q_x and every other E_z is
    beyond max(p_z, q_z s) a. Integrating a away leaves p_x q_y times the integral of G(s)**-2, with
    G(s) = sum_z max(p_z, q_z s), which is a straight line between the sorted p_z/q_z.
    """
    ratio = np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0)
    knots = np.unique(np.append(ratio[np.isfinite(ratio)], 0.0))
    slopes = np.array([np.maximum(p, q * s).sum() for s in knots])
    pieces = np.diff(knots) / (slopes[:-1] * slopes[1:])  # the integral over each straight piece
    upto = np.concatenate([[0.0], np.cumsum(pieces)])
    tail = upto[-1] + 1.0 / (q.sum() * slopes[-1])
    area = np.where(np.isinf(ratio), tail, upto[np.minimum(np.searchsorted(knots, ratio), len(knots) - 1)])
    joint: NDArray[np.float64] = np.outer(p, q) * np.maximum(area[:, None] - area[None, :], 0.0)  # 0 where q_y = 0
    for x in np.flatnonzero((p > 0) & (q > 0)):
        joint[x, x] = 1.0 / np.maximum(p / p[x], q / q[x]).sum()
    return joint


class PathNoise:
    """Noise of one path. The same arguments are the same uniform; `at` gives the view of a step at another origin.

    As in the engine, a uniform belongs to the step's origin, a sample and a race to the absolute position.
    """

    def __init__(self, tape: Tape, origin: int = 0) -> None:
        self._tape, self._origin = tape, origin

    def at(self, origin: int) -> PathNoise:
        return PathNoise(self._tape, origin)

    def uniform(self, *key: Hashable) -> Any:
        return Affine(self._tape, ("uniform", self._origin, *key))

    def sample(self, offset: int) -> Any:
        return Affine(self._tape, ("sample", self._origin + offset))

    def race(self, offset: int) -> PathRace:
        return self._tape.race(self._origin + offset)


def outcomes(function: Callable[[PathNoise], T]) -> Iterator[tuple[T, float]]:
    """Every path of `function` with its probability. Results may repeat; `law_of` adds them up."""
    tape = Tape()
    for _ in range(_PATHS):
        tape.rewind()
        result = function(PathNoise(tape))
        yield result, tape.probability()
        if not tape.advance():
            return
    raise EnumerationError(f"more than {_PATHS} paths: use a smaller vocabulary or a shorter draft")


def law_of(function: Callable[[PathNoise], H]) -> dict[H, float]:
    law: defaultdict[H, float] = defaultdict(float)
    for result, probability in outcomes(function):
        law[result] += probability
    return dict(law)


def mean_of(function: Callable[[PathNoise], float]) -> float:
    return math.fsum(value * probability for value, probability in outcomes(function))


def joint_law(step: Step, length: int, shared: bool = False) -> dict[Tokens, float]:
    """The law of the first `length` tokens that repeated steps emit; tokens behind them are cut off.

    Steps have noise of their own, which is quick. With `shared`, all steps of a path share one noise and each gets its
    view of it: the only way to see a step that uses the noise of another.
    """
    if shared:
        return law_of(lambda noise: _text(step, length, noise))
    waiting: list[defaultdict[Tokens, float]] = [defaultdict(float) for _ in range(length + 1)]
    waiting[0][()] = 1.0
    for n in range(length):
        for prefix, weight in waiting[n].items():
            for emitted, probability in law_of(partial(step, prefix, n)).items():
                text = _extended(prefix, emitted, length)
                waiting[len(text)][text] += weight * probability
    return dict(waiting[length])


def _text(step: Step, length: int, noise: PathNoise) -> Tokens:
    text: Tokens = ()
    while len(text) < length:
        text = _extended(text, step(text, len(text), noise.at(len(text))), length)
    return text


def _extended(prefix: Tokens, emitted: Tokens, length: int) -> Tokens:
    if not emitted:
        raise EnumerationError(f"the step after {prefix} emitted nothing")
    return (prefix + emitted)[:length]


class Fixed:
    """Scripted noise: the given numbers in the order asked for, the last one ever after. A key keeps its number."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)
        self._known: dict[Hashable, float] = {}

    def uniform(self, *key: Hashable) -> float:
        if key not in self._known:
            self._known[key] = self._values.pop(0) if len(self._values) > 1 else self._values[0]
        return self._known[key]

    def sample(self, offset: int) -> float:
        return self.uniform("sample", offset)
