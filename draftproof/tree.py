"""The shape of a tree draft: which node hangs from which. Knows no law, no noise and no model.

Node 0 is the last committed token, node i + 1 is draft token i, and `parents[i]`, one of 0 .. i, is the node that node
i + 1 hangs from. A chain is the tree 0, 1, 2, ...; a node's depth is its draft position plus one.
"""

from __future__ import annotations

from collections.abc import Sequence

Parents = Sequence[int]


def children(parents: Parents) -> list[list[int]]:
    """The children of each node, in order, from node 0 on."""
    found: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for i, parent in enumerate(parents):
        found[parent].append(i + 1)
    return found


def depths(parents: Parents) -> list[int]:
    """The depth of each node, from node 0 on."""
    found = [0]
    for parent in parents:
        found.append(found[parent] + 1)
    return found


def path(parents: Parents, node: int) -> list[int]:
    """The nodes from the first level down to `node`."""
    found: list[int] = []
    while node:
        found.append(node)
        node = parents[node - 1]
    return found[::-1]


def line(parents: Parents, accepted: Sequence[int]) -> list[int]:
    """The accepted path, and on from its end through first children: the chain that counts as proposed.

    A rejection is then one at the first position behind the path, and a leaf's line ends with the path, as in a chain.
    """
    below, found = children(parents), list(accepted)
    node = found[-1] if found else 0
    while below[node]:
        node = below[node][0]
        found.append(node)
    return found


def fault(parents: Parents, tokens: Sequence[int]) -> str | None:
    """What is wrong with a tree, if anything."""
    if len(parents) != len(tokens):
        return f"{len(tokens)} draft tokens with {len(parents)} parents: each needs its own"
    for i, parent in enumerate(parents):
        if not 0 <= parent <= i:
            return f"node {i + 1} that hangs from node {parent}: parents come before their children"
    if len({*zip(parents, tokens, strict=True)}) < len(tokens):
        return "siblings with the same token: they must be distinct"
    return None


def row_depths(parents: Parents, fed: int, rows: int) -> tuple[int, ...]:
    """Of each row of a chunk, how far behind the first: `fed` committed tokens, the last of which is node 0, the nodes,
    and rows that nobody reads."""
    nodes = [fed - 1 + depth for depth in depths(parents)]
    return (*range(fed - 1), *nodes, *[fed] * (rows - fed - len(parents)))


def visible(parents: Parents, fed: int, rows: int) -> tuple[tuple[int, ...], ...]:
    """Which rows each row of such a chunk may attend to: the committed tokens before it, its own path, and itself."""
    committed = tuple(range(fed))
    nodes = [(*committed, *(fed - 1 + n for n in path(parents, node))) for node in range(1, len(parents) + 1)]
    unread = [(*committed, row) for row in range(fed + len(parents), rows)]
    return (*(committed[: row + 1] for row in committed), *nodes, *unread)


def moves(accepted: Sequence[int], end: int) -> list[tuple[int, int]]:
    """(source, target) cache slots that bring an accepted path together behind the `end` committed slots.

    Node n was fed at slot end - 1 + n. In this order no slot is overwritten that is still to be read.
    """
    return [(end - 1 + node, end + i) for i, node in enumerate(accepted) if node != i + 1]
