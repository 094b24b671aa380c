"""Muon (Jordan et al. 2024): momentum whose singular values are all made one, for weight matrices.

PyTorch's own runs its iteration in bfloat16, which CPUs without such units compute a hundred times slower than float32;
this one stays in the weights' precision. The step is scaled so that AdamW's rates fit (Liu et al. 2025, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic that pushes singular values towards one
_ROUNDS, _EPS = 5, 1e-7


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U V' of the matrix's singular value decomposition U S V'."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + _EPS)
    for _ in range(_ROUNDS):
        square = x @ x.T
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """For parameters of two dimensions."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(mean, group["momentum"])  # Nesterov
                size = 0.2 * max(weight.shape) ** 0.5
                weight.add_(orthogonalised(ahead), alpha=-group["lr"] * size)
        return loss
