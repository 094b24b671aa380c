"""Costs between and beyond what was measured."""

from __future__ import annotations

import json

import pytest

from draftproof.length.profile import Line, Profile, from_json, on_line

POINTS = ((2.0, 1.0), (4.0, 2.0), (8.0, 2.0), (16.0, 4.0))
PROFILE = Profile(POINTS, ((1, Line(0.1, 0.05)), (4, Line(0.4, 0.05))), ((1, Line(0.01, 0.0)),), min_rows=2)


@pytest.mark.parametrize(
    ("x", "y"), [(0.5, 1.0), (2, 1.0), (3, 1.5), (4, 2.0), (6, 2.0), (12, 3.0), (16, 4.0), (20, 5.0)]
)
def test_straight_lines(x: float, y: float) -> None:
    assert on_line(POINTS, x) == pytest.approx(y)


def test_one_point_is_the_same_everywhere() -> None:
    assert on_line(POINTS[:1], 100.0) == 1.0


def test_a_step_is_the_sum_of_its_parts() -> None:
    assert PROFILE.seconds(1, 3, 3.0) == pytest.approx(2.0 + 0.1 + 3 * 0.05 + 0.01)
    assert PROFILE.seconds(4, 1, 1.0) == pytest.approx(2.0 + 0.4 + 0.05 + 0.01)


def test_plain_steps_pay_for_their_least_rows_and_no_draft() -> None:
    assert PROFILE.plain(1) == pytest.approx(1.0 + 0.01)
    assert PROFILE.seconds(1, 1, 1.0) - PROFILE.plain(1) == pytest.approx(0.15)  # the second row is there anyway


def test_expected_proposals_not_wishes_cost_rows() -> None:
    assert PROFILE.seconds(1, 8, 1.0) < PROFILE.seconds(1, 8, 8.0)


def test_worth_of_a_row() -> None:
    """Six rows more cost one second: a row must add a sixth of a plain step's tokens, which take 1.01 seconds."""
    assert PROFILE.row_worth(1, 7) == pytest.approx(1 / 6 / 1.01)
    assert PROFILE.row_worth(1, 1) == 0.0


def test_round_trip() -> None:
    assert from_json(json.loads(json.dumps(PROFILE.as_json()))) == PROFILE


@pytest.mark.parametrize("part", ["verify", "draft", "other", "min_rows"])
def test_incomplete_files_are_refused(part: str) -> None:
    told = PROFILE.as_json()
    del told[part]
    with pytest.raises((KeyError, ValueError)):
        from_json(told)
    with pytest.raises((TypeError, ValueError)):
        from_json({**told, part: []})
