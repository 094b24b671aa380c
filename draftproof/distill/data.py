"""Collected texts -> batches of tensors, in an order that depends on the seed alone; and what is learned from counts.

Knows the files of `collect` and PyTorch's tensors. Knows no head and no optimiser.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.distill.collect import Text, read

_SAMPLED_ROWS = 4000  # states that decide the draft vocabulary and the scale


@dataclass(frozen=True, slots=True)
class Target:
    """What training needs of the target. embed: [vocab, width] float32; head: the same of its output matrix."""

    embed: Tensor
    head: Tensor


class Batch(NamedTuple):
    """Texts of like length side by side. Behind a text's end tokens are 0 and states are 0."""

    tokens: Tensor  # [texts, rows] int64
    states: Tensor  # [texts, rows, layers * width] float32, as the target gave them
    sizes: Tensor  # [texts] int64
    prompts: Tensor  # [texts] int64: tokens that were given


def batches(paths: Sequence[Path], tokens: int, seed: int) -> Iterator[Batch]:
    """All texts of all files once, at most `tokens` places a batch, files and batches in an order of their own."""
    rng = random.Random(seed)
    for path in rng.sample(list(paths), len(paths)):
        texts = sorted((t for t in read(path) if len(t.tokens) > 2), key=lambda t: len(t.tokens))
        parts = list(_parts(texts, tokens))
        rng.shuffle(parts)
        yield from map(collate, parts)


def _parts(texts: Sequence[Text], tokens: int) -> Iterator[list[Text]]:
    """Neighbours together while the longest of them, times their number, stays within `tokens`."""
    part: list[Text] = []
    for text in texts:
        if part and len(text.tokens) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(text)
    if part:
        yield part


def collate(texts: Sequence[Text]) -> Batch:
    rows = max(len(t.tokens) for t in texts)
    _, layers, width = texts[0].states.shape
    tokens = np.zeros((len(texts), rows), dtype=np.int64)
    states = np.zeros((len(texts), rows, layers * width), dtype=np.float32)
    for i, text in enumerate(texts):
        n = len(text.tokens)
        tokens[i, :n] = text.tokens
        states[i, :n] = text.states.reshape(n, -1)
    sizes, prompts = torch.tensor([len(t.tokens) for t in texts]), torch.tensor([t.prompt for t in texts])
    return Batch(torch.from_numpy(tokens), torch.from_numpy(states), sizes, prompts)


def sampled_states(paths: Sequence[Path], seed: int) -> Tensor:
    """Some of all states: [rows, layers * width] float32."""
    rng = np.random.default_rng(seed)
    share = -(-_SAMPLED_ROWS // len(paths))
    parts = []
    for path in paths:
        states = np.concatenate([t.states for t in read(path)])
        parts.append(states[rng.integers(0, len(states), share)])
    rows = np.concatenate(parts).astype(np.float32)
    return torch.from_numpy(rows.reshape(len(rows), -1))


def scales(states: Tensor) -> Tensor:
    """Root mean square of each channel without its largest hundredth: a few tokens reach a thousand times the rest.

    states: [rows, layers * width]; returns [layers * width].
    """
    squares = states.square()
    return squares.minimum(squares.quantile(0.99, 0)).mean(0).sqrt().clamp_min(1e-6)


def likely_tokens(states: Tensor, target: Target, size: int) -> tuple[NDArray[np.int64], float]:
    """The tokens with most of the target's mass, rising, and the mass that they have together.

    states: [rows, layers * width], the last width being the state after the final norm.
    """
    width = target.head.shape[1]
    mass = torch.zeros(target.head.shape[0])
    for part in states[:, -width:].split(256):
        mass += (part @ target.head.T).softmax(-1).sum(0)
    size = min(size, len(mass))
    ids = mass.topk(size).indices.sort().values
    return ids.numpy().astype(np.int64), float(mass[ids].sum() / mass.sum())
