"""Shapes of trees: what each node hangs from, sees, and where its K and V go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import tree

# 0 -> 1 -> 3 -> 5, 0 -> 2 -> 4
SHAPE = (0, 0, 1, 2, 3)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.integers(0, i)) for i in range(draw(st.integers(1, 12))))


def test_a_small_tree() -> None:
    assert tree.children(SHAPE) == [[1, 2], [3], [4], [5], [], []]
    assert tree.depths(SHAPE) == [0, 1, 1, 2, 2, 3]
    assert tree.path(SHAPE, 5) == [1, 3, 5]
    assert tree.path(SHAPE, 4) == [2, 4]
    assert tree.path(SHAPE, 0) == []
    assert tree.row_depths(SHAPE, 2, 8) == (0, 1, 2, 2, 3, 3, 4, 2)
    assert tree.visible(SHAPE, 2, 8) == (
        (0,), (0, 1), (0, 1, 2), (0, 1, 3), (0, 1, 2, 4), (0, 1, 3, 5), (0, 1, 2, 4, 6), (0, 1, 7),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accepted", "line"), [((), (1, 3, 5)), ((1,), (1, 3, 5)), ((2,), (2, 4)), ((2, 4), (2, 4)), ((1, 3), (1, 3, 5))]
)
def test_the_line_that_counts_as_proposed(accepted: tuple[int, ...], line: tuple[int, ...]) -> None:
    assert tuple(tree.line(SHAPE, accepted)) == line


@given(shapes(), st.integers(1, 4), st.integers(0, 3))
def test_a_row_sees_one_row_of_each_depth_up_to_its_own(parents: tuple[int, ...], fed: int, unread: int) -> None:
    rows = fed + len(parents) + unread
    depths, seen = tree.row_depths(parents, fed, rows), tree.visible(parents, fed, rows)
    assert len(depths) == len(seen) == rows
    for row, visible in enumerate(seen):
        assert visible[-1] == row
        assert [depths[r] for r in visible] == list(range(depths[row] + 1))
        assert max(visible) == row  # nothing that comes later


@given(shapes(), st.integers(0, 5), st.data())
def test_moves_bring_the_path_together(parents: tuple[int, ...], end: int, data: st.DataObject) -> None:
    accepted = tree.path(parents, data.draw(st.integers(0, len(parents))))
    slots = [*("committed" for _ in range(end)), *range(1, len(parents) + 1)]
    for source, target in tree.moves(accepted, end):
        slots[target] = slots[source]
    assert slots[end : end + len(accepted)] == accepted


@given(st.integers(1, 9))
def test_a_chain_is_a_tree(k: int) -> None:
    parents = range(k)
    assert tree.depths(parents) == list(range(k + 1))
    assert tree.moves(tree.path(parents, k), 7) == []
    assert tree.line(parents, ()) == list(range(1, k + 1))
    assert tree.visible(parents, 2, k + 2) == tuple(tuple(range(r + 1)) for r in range(k + 2))


@pytest.mark.parametrize(
    ("parents", "tokens", "message"),
    [
        ((0,), (5, 6), "2 draft tokens with 1 parents"),
        ((0, 2), (5, 6), "node 2 that hangs from node 2"),
        ((-1,), (5,), "node 1 that hangs from node -1"),
        ((0, 1, 0), (5, 5, 5), "siblings with the same token"),
    ],
)
def test_a_faulty_tree_is_named(parents: tuple[int, ...], tokens: tuple[int, ...], message: str) -> None:
    assert message in str(tree.fault(parents, tokens))
    assert tree.fault((0, 1, 0), (5, 5, 6)) is None
