"""The six parts: every check of the suite has one, and nothing that was not tested is said to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from acceptance.made import BEHIND, report, speed, told
from verify.fakes import raising

from draftproof.acceptance.parts import PARTS, Shown, Standing
from draftproof.acceptance.verdicts import accepted
from draftproof.verify import suite
from draftproof.verify.contract import Ability, Verdict
from draftproof.verify.plan import matches

LACKING = {"needs": frozenset({Ability.STREAM})}


def shown(tmp_path: Path, **changed: object) -> dict[int, Shown]:
    return {s.part.number: s for s in accepted(told(), report(tmp_path, **changed), speed()).parts}


def test_every_check_of_the_suite_is_in_one_part() -> None:
    for name in suite.all_checks():
        assert sum(matches(name, p.checks) for p in PARTS) == 1, name
    for part in PARTS:
        if part.checks:
            assert any(matches(name, part.checks) for name in suite.all_checks())


def test_no_rule_that_changes_the_law_is_in_a_part() -> None:
    assert not any(matches(f"lossy/{rule}", p.checks) for rule in suite.LOSSY_RULES for p in PARTS)


def test_every_part_names_the_checks_behind_it(tmp_path: Path) -> None:
    found = shown(tmp_path)
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    for number, names in BEHIND.items():
        assert tuple(r.name for r in found[number].rows) == names
        assert found[number].standing is Standing.HOLDS
    assert [r.name for r in found[1].rows] == ["manifest/weights", "manifest/workload"]
    assert [r.name for r in found[5].rows] == ["bench/complete", "bench/parts"]
    assert found[1].standing is Standing.HOLDS
    assert found[5].standing is Standing.MEASURED


@pytest.mark.parametrize("number", BEHIND)
def test_a_part_whose_checks_were_all_skipped_is_not_shown(tmp_path: Path, number: int) -> None:
    found = shown(tmp_path, **{name.replace("/", "__"): LACKING for name in BEHIND[number]})
    assert found[number].standing is Standing.MISSING
    assert {s.standing for n, s in found.items() if n not in (number, 5)} == {Standing.HOLDS}


def test_a_part_with_one_check_skipped_holds_in_part(tmp_path: Path) -> None:
    assert shown(tmp_path, bitwise__abort=LACKING)[6].standing is Standing.PARTLY


def test_figures_alone_show_nothing(tmp_path: Path) -> None:
    """A figure without a claim does not stand in for the claims beside it that were skipped."""
    found = shown(
        tmp_path,
        law__joint={"verdict": Verdict.MEASURED},
        acceptance__counts=LACKING,
        stream__evidence=LACKING,
    )
    assert found[3].standing is Standing.MISSING


def test_figures_do_not_lessen_the_claims_beside_them(tmp_path: Path) -> None:
    assert shown(tmp_path, law__joint={"verdict": Verdict.MEASURED})[3].standing is Standing.HOLDS


def test_a_check_that_fails_on_one_subject_fails(tmp_path: Path) -> None:
    found = shown(tmp_path, ends__pairs={"verdict": Verdict.FAILS, "p_value": 0.0})
    assert found[4].standing is Standing.FAILS
    assert {r.name: r.standing for r in found[4].rows} == {
        "rules/boundary": Standing.HOLDS,
        "ends/pairs": Standing.FAILS,
    }


def test_a_check_that_broke_holds_in_part_at_most(tmp_path: Path) -> None:
    """The other check of the part held."""
    found = shown(tmp_path, ends__pairs={"act": raising(RuntimeError("gone"))})
    assert found[4].standing is Standing.PARTLY


def test_rows_add_up_over_subjects(tmp_path: Path) -> None:
    fields = {"more": {"detectable_tv": 0.03, "power": 0.99}, "p_value": 0.25}
    row = shown(tmp_path, law__joint=fields)[3].rows[0]
    assert (row.samples, row.subjects, len(row.held)) == (20, 2, 2)
    assert (row.p_value, row.tv, row.power) == ((0.25,), (0.03,), (0.99,))


def test_rows_without_statistics_have_none(tmp_path: Path) -> None:
    row = shown(tmp_path)[6].rows[0]
    assert (row.tv, row.power, row.p_value) == ((), (), ())
