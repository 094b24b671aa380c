"""The analytical cost model of speculative decoding: a scenario, never a claim about hardware.

Leviathan et al. 2022 (theorem 3.8): with each draft token accepted with probability alpha on its own, a step of draft
length k emits (1 - alpha^(k+1)) / (1 - alpha) tokens on average and costs 1 + k c plain steps, c being the time of one
draft step in plain steps. No array library, no clock.
"""

from __future__ import annotations

from typing import NamedTuple

_MOST = 64


class Best(NamedTuple):
    k: int
    speedup: float


def expected_tokens(alpha: float, k: int) -> float:
    """1 + alpha + ... + alpha^k: emitted tokens per step, the residual or bonus token included."""
    if not 0.0 <= alpha <= 1.0 or k < 0:
        raise ValueError(f"alpha must lie in [0, 1] and k be at least 0, got alpha={alpha} and k={k}")
    return sum(alpha**i for i in range(k + 1))


def step_cost(k: int, c: float) -> float:
    """Time of a step in plain steps, verification of k + 1 rows taken to cost one."""
    if c < 0.0:
        raise ValueError(f"the cost of a draft step must not be negative, got {c}")
    return 1.0 + k * c


def speedup(alpha: float, k: int, c: float) -> float:
    """Plain steps saved: below 1 where speculation is slower."""
    return expected_tokens(alpha, k) / step_cost(k, c)


def best_k(alpha: float, c: float, most: int = _MOST) -> Best:
    """The draft length with the largest speed-up, 0 (do not speculate) among the candidates; the shortest of equals."""
    return max((Best(k, speedup(alpha, k, c)) for k in range(most + 1)), key=lambda best: best.speedup)
