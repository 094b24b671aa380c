"""What is remembered of drafts, against counts made by hand."""

from __future__ import annotations

import pytest

from draftproof.length.record import Record


def noted(*steps: tuple[int, int, int]) -> Record:
    record = Record()
    for asked, proposed, accepted in steps:
        record.note(asked, proposed, accepted)
    return record


def test_nothing_seen_is_the_prior_and_what_it_promises() -> None:
    assert Record().chances(4, (0.6, 0.3)) == pytest.approx([0.6, 0.3, 0.44, 0.552])  # a fifth of the way to 1
    assert Record().proposals(2, (1.0,)) == [1.0, 1.0]


def test_a_position_counts_the_steps_that_reached_it() -> None:
    """Many equal steps: of 3 asked tokens the first stands, the second falls, the third is never reached."""
    record = noted(*[(3, 3, 1)] * 400)
    first, second, third = record.chances(3, (0.5,))
    assert first > 0.9
    assert second < 0.12
    assert third == pytest.approx(second + 0.2 * (1 - second))  # nothing was seen of it


def test_tokens_that_were_not_proposed_do_not_stand() -> None:
    record = noted(*[(2, 0, 0), (2, 2, 2)] * 200)
    chances, proposals = record.chances(2, (0.5,)), record.proposals(2, (1.0,))
    assert chances[0] == pytest.approx(0.5, abs=0.05)
    assert chances[1] > 0.9  # where there was a first one that stood
    assert proposals == pytest.approx([0.5, 0.5], abs=0.08)


def test_older_steps_fade() -> None:
    record = noted(*[(1, 1, 0)] * 200, *[(1, 1, 1)] * 60)
    assert record.chances(1, (0.5,))[0] > 0.75  # 60 of 260 if nothing were forgotten


@pytest.mark.parametrize(("steps", "low", "high"), [(1, 0.4, 0.5), (4, 0.24, 0.3), (100, 0.0, 0.07)])
def test_a_few_steps_move_the_prior_a_little(steps: int, low: float, high: float) -> None:
    assert low <= noted(*[(1, 1, 0)] * steps).chances(1, (0.5,))[0] <= high


def test_a_weightier_prior_moves_less() -> None:
    seen = noted((1, 1, 0))
    assert seen.chances(1, (0.5,), 12.0) == pytest.approx([12 * 0.5 / 13])
    assert seen.proposals(1, (0.5,), 12.0) == pytest.approx([(1 + 12 * 0.5) / 13])
