"""Two verdicts that do not know each other, and what each means for the exit status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from acceptance.made import WISH, AutoRunner, ModelEngine, plan, report, speed, task, told
from bench.fake import changed_run, result_of
from verify.fakes import FakeCheck, leg

from draftproof.acceptance.parts import Standing
from draftproof.acceptance.run import Speed, correctness, interrupted
from draftproof.acceptance.verdicts import TOO_SLOW, accepted, record, required, sentences
from draftproof.bench.figures import figures
from draftproof.bench.plan import Weights
from draftproof.verify.contract import Verdict

FAULT = {"verdict": Verdict.FAILS, "p_value": 0.0}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
def test_both_verdicts_appear_whatever_the_other_says(tmp_path: Path, slow: bool, faulty: bool) -> None:
    found = accepted(told(), report(tmp_path, **({"law__joint": FAULT} if faulty else {})), speed(slow))
    lines = sentences(found)
    assert ("Correctness: Not exact." if faulty else "Correctness: Exact.") in lines
    assert ("Speed: Slower." if slow else "Speed: Faster.") in lines
    assert found.status == int(faulty)
    said = record(found)
    assert said["correctness"]["verdict"] == ("not exact" if faulty else "exact")
    assert said["speed"]["verdict"] == ("Slower" if slow else "Faster")
    row = said["speed"]["by_batch"]["4"]["k=2"]
    assert row["verdict"] == ("slower" if slow else "faster")
    assert (row["high"] < 1) if slow else (row["low"] > 1)
    assert len(said["parts"]) == 6


def test_what_broke_while_measuring_is_told_and_leaves_correctness_alone(tmp_path: Path) -> None:
    found = accepted(told(), report(tmp_path), speed(runs=5, trouble="measuring ended early: MemoryError: "))
    assert found.status == 0
    assert found.parts[4].standing is Standing.MISSING
    assert any("MemoryError" in line for line in sentences(found))
    assert any("not complete" in line for line in sentences(found))


def test_parts_that_do_not_add_up_fail_part_5_only(tmp_path: Path) -> None:
    whole = result_of(plan(), AutoRunner(unseen=0.01))
    found = accepted(told(), report(tmp_path), Speed(whole, figures(whole)))
    assert [s.standing for s in found.parts].count(Standing.FAILS) == 1
    assert found.parts[4].standing is Standing.FAILS
    assert found.status == 0


def test_a_required_speedup_is_judged_by_its_low_end_and_by_a_config_that_no_result_picks(tmp_path: Path) -> None:
    exact, fast, slow = report(tmp_path), speed(), speed(slow=True)
    low = min(required(fast.figures, 1.0).lows.values())
    assert accepted(told(), exact, fast, low * 0.99).status == 0
    assert accepted(told(), exact, fast, low * 1.01).status == TOO_SLOW
    assert accepted(told(), exact, slow).status == 0
    assert accepted(told(), exact, slow, 1.0).status == TOO_SLOW
    assert required(slow.figures, 1.0).config == "k=auto"
    assert any("not met" in line for line in sentences(accepted(told(), exact, slow, 1.0)))
    assert not any("required" in line for line in sentences(accepted(told(), exact, slow)))


def test_a_required_speedup_is_not_met_by_one_batch_size_alone() -> None:
    of = plan()
    whole = result_of(of, AutoRunner())
    for at, run in enumerate(whole.runs):
        if of.groups[run.group].batch == 4 and run.config == "k=auto":
            late = tuple(replace(q, chunks=tuple((9 * t, n) for t, n in q.chunks)) for q in run.requests)
            whole = changed_run(whole, at, requests=late)
    found = required(figures(whole), 1.0)
    assert found.lows[1] > 1.0 > found.lows[4]
    assert not found.met


def test_a_required_speedup_is_not_met_by_an_unfinished_run(tmp_path: Path) -> None:
    part = speed(runs=30)
    assert accepted(told(), report(tmp_path), part, 0.5).status == TOO_SLOW
    assert accepted(told(), report(tmp_path), replace(part, interrupted=True), 0.5).status == 130


def test_a_failing_check_comes_before_a_missed_speedup(tmp_path: Path) -> None:
    assert accepted(told(), report(tmp_path, law__joint=FAULT), speed(slow=True), 2.0).status == 1


def test_other_weights_than_the_manifests_are_not_accepted(tmp_path: Path) -> None:
    """Planted: the verified engine runs on weights that are not those of the manifest."""

    class Other(ModelEngine):
        weights = "cd"

    wrong = correctness(
        task(lambda: [leg(FakeCheck("law/joint"), engine=Other, name="m, draft ngram")]),
        tmp_path / "s",
        lambda at: None,
    )
    found = accepted(told(), wrong, speed())
    assert found.status == 3
    assert "Correctness: Could not be tested." in sentences(found)
    assert found.parts[0].standing is Standing.FAILS
    assert accepted(told(), report(tmp_path), speed()).parts[0].standing is Standing.HOLDS


def test_measuring_other_weights_or_other_work_fails_part_1(tmp_path: Path) -> None:
    exact = report(tmp_path)
    weights = plan(target=Weights("toy", "ef", {}))
    assert accepted(told(), exact, speed(of=weights)).parts[0].standing is Standing.FAILS
    work = plan(replace(WISH, short=5))
    assert accepted(told(), exact, speed(of=work)).parts[0].standing is Standing.FAILS


def test_unknown_weights_are_not_shown(tmp_path: Path) -> None:
    of = plan(draft=Weights("some-model", "", {}))
    assert accepted(told(of), report(tmp_path), speed(of=of)).parts[0].standing is Standing.PARTLY


def test_what_was_not_verified_is_not_said_to_have_run(tmp_path: Path) -> None:
    found = accepted(told(), interrupted(task(list)), speed())
    assert found.status == 130
    assert found.parts[0].standing is Standing.PARTLY
    assert found.parts[0].rows[0].standing is Standing.MISSING
    assert {s.standing for s in found.parts if s.part.checks} == {Standing.MISSING}
