"""How many nodes a tree draft may have: what the model has room for, and what the rule of a request allows.

Knows no tree and no request.
"""

from __future__ import annotations

from draftproof.accept import RULES
from draftproof.model.base import ModelInfo
from draftproof.types import RequestError

MOST_NODES = 64


def most_nodes(info: ModelInfo) -> int:
    """The largest budget that this model can be given: 0 if it was not loaded with trees."""
    room = min(info.max_rows - 2 * info.min_rows + 1, info.pages * info.page_size // 2, MOST_NODES)
    return max(room, 0) if info.trees else 0


def checked(nodes: int, info: ModelInfo, speculates: bool) -> int:
    """The budget as asked for.

    Raises:
        RequestError: the model or the draft cannot make use of it.
    """
    if nodes and not speculates:
        raise RequestError(f"nodes={nodes}, but the draft is 'none': name a draft, or leave nodes out")
    if nodes and not info.trees:
        raise RequestError(f"nodes={nodes}, but the model was loaded without trees: load it with trees=True")
    if not 0 <= nodes <= most_nodes(info):
        raise RequestError(f"nodes={nodes}: give a number of tree nodes from 0 to {most_nodes(info)}")
    return nodes


def granted(nodes: int, info: ModelInfo, rule: str, k: int) -> int:
    """The budget of one request: 0 if its rule judges chains only, or promises bits that trees would not keep."""
    exact = RULES.get(rule)
    if exact is None or k == 0 or (exact.seed_decides and info.bitwise and not info.trees_bitwise):
        return 0
    return nodes
