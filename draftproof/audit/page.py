"""The page of an audit. Knows no engine and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def to_html(audits: Sequence[Mapping[str, Any]]) -> str:
    return str(len(audits))
