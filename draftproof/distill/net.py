"""The head as a PyTorch module, for training: one decoder layer on the target's states, unrolled on its own outputs.

Parameters carry the names that the `speculators` convention gives them (EAGLE-3: Li et al. 2025). Row j takes the state
after token j and the embedding of token j + 1, and says what token j + 2 will be. In unrolled step s it takes its own
output of step s - 1 in place of the state, and looks at the rows of step 1 up to j and at its own earlier steps, which
is what it will see when it drafts. Knows no data, no optimiser and no file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftproof.model.headfile import HeadSizes


@dataclass(slots=True)
class Cache:
    """Rotated keys and values of the steps so far: each [batch, heads, rows, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]


class _Attention(nn.Module):
    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.heads, self.head_dim = s.heads, s.head_dim
        inner = s.heads * s.head_dim
        self.q_proj = nn.Linear(2 * s.width, inner, bias=False)
        self.k_proj = nn.Linear(2 * s.width, inner, bias=False)
        self.v_proj = nn.Linear(2 * s.width, inner, bias=False)
        self.o_proj = nn.Linear(inner, s.width, bias=False)
        frequencies = 1.0 / s.rope_theta ** (torch.arange(0, s.head_dim, 2) / s.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """x: [batch, rows, 2 * width]. Adds this step's keys and values to the cache."""
        step = len(cache.keys)
        q, k = (self._rotated(self._split(p(x)), step) for p in (self.q_proj, self.k_proj))
        cache.keys.append(k)
        cache.values.append(self._split(self.v_proj(x)))
        scale = self.head_dim**-0.5
        scores = q @ cache.keys[0].transpose(-1, -2) * scale
        rows = x.shape[1]
        later = torch.ones(rows, rows, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        own = [(q * k).sum(-1, keepdim=True) * scale for k in cache.keys[1:]]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        mixed = weights[..., :rows] @ cache.values[0]
        for i, value in enumerate(cache.values[1:]):
            mixed = mixed + weights[..., rows + i : rows + i + 1] * value
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)

    def _rotated(self, x: Tensor, step: int) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[2], device=x.device) + step, self.frequencies)
        both = torch.cat([angles, angles], -1)
        low, high = x.chunk(2, -1)
        return x * both.cos() + torch.cat([-high, low], -1) * both.sin()


class _FeedForward(nn.Module):
    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.width, s.ffn, bias=False)
        self.up_proj = nn.Linear(s.width, s.ffn, bias=False)
        self.down_proj = nn.Linear(s.ffn, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.width, s.eps)
        self.hidden_norm = nn.RMSNorm(s.width, s.eps)
        self.self_attn = _Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.width, s.eps)
        self.mlp = _FeedForward(s)

    def forward(self, embedded: Tensor, state: Tensor, cache: Cache) -> Tensor:
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(state)], -1)
        state = state + self.self_attn(x, cache)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


class HeadNet(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.fc = nn.Linear(len(sizes.states) * sizes.width, sizes.width, bias=False)
        self.layers = nn.ModuleList([_Layer(sizes)])
        self.norm = nn.RMSNorm(sizes.width, sizes.eps)

    def forward(self, embedded: Tensor, state: Tensor, cache: Cache) -> Tensor:
        """One unrolled step. embedded, state: [batch, rows, width]; returns the outputs before the last norm."""
        out: Tensor = self.layers[0](embedded, state, cache)
        return out

    @torch.no_grad()
    def begin(self, scale: Tensor, seed: int) -> None:
        """Start as a copy of the target's last state. scale: [layers * width], the states' root mean squares.

        The last of the states must be that the state after the target's final norm.
        """
        rng = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, generator=rng)
        width = self.norm.weight.shape[0]
        attention, mlp = self.layers[0].self_attn, self.layers[0].mlp
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        for out in (attention.o_proj, mlp.down_proj):
            out.weight.mul_(0.3)
        self.fc.weight.mul_(0.05)
        self.fc.weight[:, -width:] += torch.eye(width)
        self.norm.weight.copy_(scale[-width:])
