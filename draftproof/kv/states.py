"""Hidden states beside the KV pages: what a draft must be told of tokens that the target need not read again.

One row a slot, by page, like K and V. Memory is touched as pages are used. Knows no request and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.float32]


class StateStore:
    """Args: number of pages, slots a page, and the shape of one row, [layers, width]."""

    def __init__(self, pages: int, page_size: int, shape: tuple[int, ...]) -> None:
        self._rows = np.zeros((pages, page_size, *shape), dtype=np.float32)
        self._size = page_size

    def write(self, pages: Sequence[int], start: int, rows: States) -> None:
        """rows: [n, layers, width], for slots start .. start + n - 1 of the sequence that `pages` belong to."""
        slots = np.arange(start, start + len(rows))
        self._rows[np.asarray(pages, dtype=np.int64)[slots // self._size], slots % self._size] = rows

    def read(self, pages: Sequence[int]) -> States:
        """A copy of all rows of whole pages, in order. [len(pages) * page_size, layers, width]"""
        found = self._rows[list(pages)]
        return found.reshape(-1, *found.shape[2:])

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As of a TargetModel."""
        for source, target in pairs:
            self._rows[target] = self._rows[source]
