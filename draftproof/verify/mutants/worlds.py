"""The worlds that planted faults are shown on, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from draftproof.verify.contract import World
from draftproof.verify.toy import tabular_world

WORLDS: Mapping[str, Callable[[], World]] = MappingProxyType(
    {
        "tabular": partial(tabular_world, 6),
        "close": partial(tabular_world, 6, tv=0.1),  # a draft that is worse than it should be stands out
    }
)
