"""Arrays of NumPy or PyTorch under one set of names, so that laws, rules and noise are written once.

The names are the array API's (array_api_compat gives them to PyTorch); here is what that leaves open. What has the size
of a vocabulary stays where the model put it: `host` is the one door out, for a few numbers at a time. Types say NumPy
throughout; a PyTorch tensor of the same kind is as good. Knows no law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_host(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def namespace(x: Any) -> Any:
    """The array API's functions for arrays of this kind."""
    if is_host(x):
        return np
    from array_api_compat import array_namespace  # the extra "torch"

    return array_namespace(x)


def place(x: Any) -> Any:
    """Where an array lies: arrays can be taken together if this is equal."""
    return None if is_host(x) else x.device


def host(x: Any) -> NDArray[Any]:
    """The numbers as a NumPy array."""
    return np.asarray(x) if is_host(x) else np.asarray(x.cpu().numpy())


def like(x: Any, other: Any) -> Any:
    """x in the place of the other array."""
    if place(x) == place(other):
        return x
    return host(x) if is_host(other) else namespace(other).asarray(x, device=other.device)


def where(mask: Any) -> Any:
    """Indices at which a one-dimensional mask holds, rising."""
    return np.flatnonzero(mask) if is_host(mask) else mask.nonzero()[:, 0]


def kth_largest(x: Any, k: int) -> Any:
    return np.partition(x, len(x) - k)[len(x) - k] if is_host(x) else x.topk(k).values[-1]


def exponentiate(x: Any) -> Any:
    """e to the power of x, in place: allocating costs as much as computing."""
    return np.exp(x, out=x) if is_host(x) else x.exp_()


def positive(x: Any) -> Any:
    """Nothing below zero, in place."""
    return np.maximum(x, 0.0, out=x) if is_host(x) else x.clamp_(min=0.0)


def word(value: int, x: Any) -> Any:
    """A number of 64 bits to compute with x, which is uint64 in NumPy and int64, with the same bits, in PyTorch."""
    return np.uint64(value) if is_host(x) else value - ((value >> 63) << 64)


def words_at(words: NDArray[np.uint64], place: Any) -> Any:
    """Words of the host in PyTorch."""
    from array_api_compat import torch as xp  # the extra "torch"

    return xp.asarray(words.view(np.int64).copy(), device=place)


def host_words(words: Any) -> NDArray[np.uint64]:
    return host(words).view(np.uint64)


def shifted(words: Any, bits: int, out: Any) -> Any:
    """Shift right, filling with zeros, into `out`."""
    if is_host(words):
        return np.right_shift(words, np.uint64(bits), out=out)
    return out.copy_(words).bitwise_right_shift_(bits).bitwise_and_((1 << (64 - bits)) - 1)


def at_least(words: Any, floor: int) -> Any:
    """Words that are not below `floor`, as numbers without a sign."""
    if is_host(words):
        return words >= np.uint64(floor)
    sign = -(1 << 63)
    return (words ^ sign) >= (word(floor, words) ^ sign)
