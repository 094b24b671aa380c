"""Runs of fake checks on fake engines: whatever goes wrong is no pass, and whatever was obtained is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verify.fakes import BUDGET, FakeCheck, FakeEngine, dying, hanging, leg, raising

from draftproof.verify.contract import Ability, Result, Sample, Verdict
from draftproof.verify.outcome import Expected, Overall, conclude, read_expected
from draftproof.verify.plan import State, VerifyError, fingerprint, select
from draftproof.verify.run import Progress, Ran, run_plan
from draftproof.verify.store import Store

FAILS, HOLDS, UNTESTED, MEASURED = Verdict.FAILS, Verdict.HOLDS, Verdict.UNTESTED, Verdict.MEASURED


def run(*legs: Any, expected: Any = (), **more: Any) -> Any:
    return conclude(run_plan(legs, BUDGET, **more), BUDGET, expected)


# the ordinary course


def test_all_hold() -> None:
    checks = [FakeCheck("a"), FakeCheck("b"), FakeCheck("c", statistical=False, p_value=1.0)]
    outcome = run(leg(*checks))
    assert (outcome.verdict, outcome.status, outcome.reasons) == (Overall.EXACT, 0, ())
    assert [c.alpha for c in checks] == [BUDGET.alpha / 2] * 3  # statistical checks share
    entry = outcome.entries[0]
    assert (entry.result.name, entry.result.claim) == ("a", "claim of a")
    assert (entry.drafted, entry.proposed) == (1, 2)  # the plain job counts as no drafting


def test_one_failure_is_enough() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b", FAILS, 0.0)))
    assert (outcome.verdict, outcome.status) == (Overall.NOT_EXACT, 1)


def test_a_failure_outranks_a_dead_engine() -> None:
    assert run(leg(FakeCheck("a", FAILS, 0.0), FakeCheck("b", act=dying))).verdict is Overall.NOT_EXACT


def test_holm_adds_failures_that_single_shares_miss() -> None:
    """Two checks at share alpha / 2: the second p-value lies between alpha / 2 and alpha."""
    p = 0.9 * BUDGET.alpha
    assert run(leg(FakeCheck("a"), FakeCheck("b", p_value=p))).verdict is Overall.EXACT
    outcome = run(leg(FakeCheck("a", FAILS, 0.0), FakeCheck("b", p_value=p)))
    assert [e.result.verdict for e in outcome.entries] == [FAILS, FAILS]
    assert "Holm" in outcome.entries[1].result.note


def test_measured_figures_are_never_rejected() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b", MEASURED, 0.0)))
    assert outcome.verdict is Overall.EXACT


def test_progress_comes_before_and_after() -> None:
    seen: list[Progress] = []
    run(leg(FakeCheck("a"), FakeCheck("b")), progress=seen.append)
    assert [(p.done, p.total, p.check, p.entry is not None) for p in seen] == [
        (0, 2, "a", False),
        (1, 2, "a", True),
        (1, 2, "b", False),
        (2, 2, "b", True),
    ]


def test_names_must_differ() -> None:
    with pytest.raises(VerifyError, match="two checks"):
        run(leg(FakeCheck("a"), FakeCheck("a")))


def test_selection_by_name_and_pattern() -> None:
    legs = [leg(FakeCheck("law/a[1]"), FakeCheck("ends/b")), leg(FakeCheck("ends/c"), name="other")]
    assert [[c.name for c in x.checks] for x in select(legs, ["law/a[1]"])] == [["law/a[1]"]]
    assert [x.name for x in select(legs, ["ends/*"])] == ["leg", "other"]
    assert [x.name for x in select(legs, (), ["oth*"])] == ["other"]


# engines that cannot be tested


BROKEN = {
    "raises": (raising(ValueError("odd")), "ValueError: odd"),
    "dies": (dying, "the pipe is broken"),
    "exits": (raising(SystemExit(3)), "SystemExit"),
    "hangs": (hanging, "hung"),
    "no result": (lambda _: "fine", "str instead of a Result"),
    "nan": (lambda _: Result("x", "x", HOLDS, 1, float("nan")), "p-value nan"),
    "string verdict": (lambda _: Result("x", "x", "holds", 1), "verdict"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_breaks_is_no_pass_and_the_rest_goes_on(how: str) -> None:
    act, words = BROKEN[how]
    engines: list[FakeEngine] = []

    def make() -> FakeEngine:
        engines.append(FakeEngine())
        return engines[-1]

    outcome = run(leg(FakeCheck("a"), FakeCheck("b", act=act), FakeCheck("c"), engine=make), timeout=0.3)
    assert [e.result.verdict for e in outcome.entries] == [HOLDS, UNTESTED, HOLDS]
    assert outcome.entries[1].state is State.BROKE
    assert words in outcome.entries[1].result.note
    assert (outcome.verdict, outcome.status) == (Overall.UNTESTED, 3)
    assert any(words in reason for reason in outcome.reasons)
    assert [e.closed for e in engines] == [1, 1]  # a fresh one after the break


GARBAGE = {
    "nothing": lambda jobs: None,
    "too few": lambda jobs: [Sample((0, 0))],
    "no samples": lambda jobs: ["text"] * len(jobs),
    "token beyond the vocabulary": lambda jobs: [Sample((0, 4)) for _ in jobs],
    "negative token": lambda jobs: [Sample((0, -1)) for _ in jobs],
    "token as text": lambda jobs: [Sample(("0",)) for _ in jobs],  # type: ignore[arg-type]
    "strange finish": lambda jobs: [Sample((0,), finish="done") for _ in jobs],
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_no_pass(what: str) -> None:
    outcome = run(leg(FakeCheck("a"), engine=lambda: FakeEngine(reply=GARBAGE[what])))
    assert outcome.verdict is Overall.UNTESTED
    assert "answered garbage" in outcome.entries[0].result.note


def test_logits_of_a_wrong_shape_are_garbage() -> None:
    class Odd(FakeEngine):
        def logits(self, tokens: Any, chunk: int = 0) -> Any:
            return np.zeros((len(tokens), 3))

    outcome = run(leg(FakeCheck("a", act=lambda engine: engine.logits((1, 2))), engine=Odd))
    assert "answered garbage: logits" in outcome.entries[0].result.note


def test_an_engine_that_cannot_be_made() -> None:
    outcome = run(leg(FakeCheck("a"), engine=raising_factory))
    assert outcome.verdict is Overall.UNTESTED
    assert "no such model" in outcome.entries[0].result.note


def raising_factory() -> FakeEngine:
    raise OSError("no such model")


def test_an_engine_that_breaks_again_and_again_is_given_up() -> None:
    checks = [FakeCheck(f"c{i}", act=dying) for i in range(6)]
    outcome = run(leg(*checks))
    assert sum(c.runs for c in checks) == 3
    assert "given up" in outcome.entries[5].result.note
    assert "the pipe is broken" in outcome.entries[5].result.note


@pytest.mark.parametrize(("proposed", "verdict"), [(0, Overall.UNTESTED), (2, Overall.EXACT), (None, Overall.EXACT)])
def test_nothing_speculated_is_no_pass(proposed: int | None, verdict: Overall) -> None:
    outcome = run(leg(FakeCheck("a"), engine=lambda: FakeEngine(proposed=proposed)))
    assert outcome.verdict is verdict
    assert any("nothing was speculated" in r for r in outcome.reasons) is (proposed == 0)
    assert any("not shown whether it speculated" in n for n in outcome.notes) is (proposed is None)


def test_one_idle_leg_is_enough() -> None:
    outcome = run(leg(FakeCheck("a")), leg(FakeCheck("a"), name="idle", engine=lambda: FakeEngine(proposed=0)))
    assert outcome.verdict is Overall.UNTESTED


# what engines do not declare


def test_undeclared_abilities_are_skipped_and_said() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b", needs=frozenset({Ability.STREAM}))))
    entry = outcome.entries[1]
    assert (entry.state, entry.result.verdict) == (State.SKIPPED, UNTESTED)
    assert entry.result.note == "the engine does not declare stream"
    assert outcome.verdict is Overall.EXACT


def test_an_essential_check_must_not_be_missing() -> None:
    checks = (FakeCheck("a"), FakeCheck("law/b", needs=frozenset({Ability.STREAM})))
    assert run(leg(*checks, essential=("law/*",))).verdict is Overall.UNTESTED
    assert run(leg(*checks, essential=("a",))).verdict is Overall.EXACT


@pytest.mark.parametrize(("essential", "verdict"), [(True, Overall.UNTESTED), (False, Overall.EXACT)])
def test_a_check_that_gives_up_by_itself(essential: bool, verdict: Overall) -> None:
    assert run(leg(FakeCheck("a"), FakeCheck("b", UNTESTED, 1.0, essential=essential))).verdict is verdict


def test_what_breaks_is_never_inessential() -> None:
    checks = (FakeCheck("a"), FakeCheck("b", act=dying, essential=False))
    assert run(leg(*checks)).verdict is Overall.UNTESTED
    assert run(leg(*checks, essential=("a",))).verdict is Overall.UNTESTED


def test_nothing_tested_is_no_pass() -> None:
    assert run(leg(FakeCheck("a", needs=frozenset({Ability.STREAM})))).verdict is Overall.UNTESTED
    assert run(leg(FakeCheck("a", MEASURED))).verdict is Overall.UNTESTED
    assert conclude(Ran(), BUDGET).verdict is Overall.UNTESTED


# interruption and resuming


def interrupt(at: Progress) -> None:
    if at.check == "b" and at.entry is None:
        raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_obtained() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b"), FakeCheck("c")), progress=interrupt)
    assert [e.state for e in outcome.entries] == [State.RAN, State.UNRUN, State.UNRUN]
    assert (outcome.verdict, outcome.status, outcome.interrupted) == (Overall.UNTESTED, 130, True)


def header(**more: Any) -> dict[str, Any]:
    return {"plan": "x", "seed": 1, **more}


def stored(path: Path, *legs: Any, head: Any = None, **more: Any) -> Any:
    with Store(path, head or header()) as store:
        return run(*legs, store=store, **more)


def test_resume_runs_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first = [FakeCheck("a", more={"witness": {"prompt": (1, 2)}, "plots": {"x": np.arange(2)}}), FakeCheck("b")]
    stored(path, leg(*first), progress=interrupt)
    again = [FakeCheck("a"), FakeCheck("b")]
    outcome = stored(path, leg(*again))
    assert [c.runs for c in again] == [0, 1]
    assert outcome.verdict is Overall.EXACT
    assert outcome.entries[0].result.witness == {"prompt": [1, 2]}
    assert (outcome.entries[0].drafted, outcome.entries[0].proposed) == (1, 2)
    finished = [FakeCheck("a"), FakeCheck("b")]
    assert stored(path, leg(*finished, engine=raising_factory)).verdict is Overall.EXACT  # needs no engine at all
    assert sum(c.runs for c in finished) == 0


def test_interrupted_resume_loses_nothing(tmp_path: Path) -> None:
    """ "c" is in the store already when Ctrl-C hits at "b" before it."""
    path = tmp_path / "store"
    stored(path, leg(FakeCheck("a"), FakeCheck("b", act=dying), FakeCheck("c")))
    outcome = stored(path, leg(FakeCheck("a"), FakeCheck("b"), FakeCheck("c")), progress=interrupt)
    assert [e.state for e in outcome.entries] == [State.RAN, State.UNRUN, State.RAN]


def test_what_broke_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert stored(path, leg(FakeCheck("a"), FakeCheck("b", act=dying))).verdict is Overall.UNTESTED
    outcome = stored(path, leg(FakeCheck("a"), FakeCheck("b")))
    assert outcome.verdict is Overall.EXACT
    assert len(outcome.entries) == 2


@pytest.mark.parametrize("torn", ['{"leg": "leg", "resu', '{"begin"', "\x00\x00"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "store"
    stored(path, leg(FakeCheck("a"), FakeCheck("b")))
    path.write_text(path.read_text() + torn)
    again = [FakeCheck("a"), FakeCheck("b")]
    assert stored(path, leg(*again)).verdict is Overall.EXACT
    assert sum(c.runs for c in again) == 0
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_every_cut_of_a_store_can_be_resumed(tmp_path: Path) -> None:
    """A kill may leave any prefix of the file: the whole lines of it are used, and each check ends up there once."""
    path = tmp_path / "store"
    stored(path, leg(FakeCheck("a"), FakeCheck("b")))
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b'"result"') - (b'"result"' in whole[:cut].rpartition(b"\n")[2])
        checks = [FakeCheck("a"), FakeCheck("b")]
        outcome = stored(path, leg(*checks))
        assert sum(c.runs for c in checks) == 2 - kept
        assert [e.result.name for e in outcome.entries] == ["a", "b"]
        assert path.read_bytes().count(b'"result"') == 2


def test_results_of_another_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stored(path, leg(FakeCheck("a")))
    before = path.read_bytes()
    with pytest.raises(VerifyError, match="seed was 1 and is 2"):
        Store(path, header(seed=2))
    assert path.read_bytes() == before


def test_results_of_another_engine_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stored(path, leg(FakeCheck("a")), leg(FakeCheck("b", act=dying), name="other"))
    with pytest.raises(VerifyError, match="engine of 'other' has changed since \\(version\\)"):
        stored(path, leg(FakeCheck("a")), leg(FakeCheck("b"), name="other", engine=lambda: FakeEngine(version="2")))


@pytest.mark.parametrize("text", ["hello", "hello\n", "[1]\n", '{"a": 1}\n'])
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(VerifyError, match="another file"):
        Store(path, header())
    assert path.read_text() == text


def test_a_store_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "store", header()), pytest.raises(VerifyError, match="in use"):
        Store(tmp_path / "store", header())


def test_the_plan_has_a_fingerprint() -> None:
    marks = {
        fingerprint(legs)
        for legs in (
            [leg(FakeCheck("a"))],
            [leg(FakeCheck("b"))],
            [leg(FakeCheck("a"), name="x")],
            [leg(FakeCheck("a", statistical=False))],
            [leg(FakeCheck("a"), essential=("a",))],
            [leg(FakeCheck("a"), FakeCheck("b"))],
        )
    }
    assert len(marks) == 6
    assert fingerprint([leg(FakeCheck("a"))]) == fingerprint([leg(FakeCheck("a"))])


_CHILD = """
import sys, time
from pathlib import Path
from draftproof.verify.run import run_plan
from draftproof.verify.store import Store
from verify.fakes import BUDGET, FakeCheck, leg
log = Path(sys.argv[2])

def noted(name, slow):
    def act(engine):
        with log.open("a") as file:
            file.write(name)
        if slow:
            time.sleep(60)
        return FakeCheck(name).run(engine, None, BUDGET, 1.0)
    return FakeCheck(name, act=act)

with Store(Path(sys.argv[1]), {"plan": "x"}) as store:
    run_plan([leg(*(noted(n, n == sys.argv[3]) for n in "abcd"))], BUDGET, store=store)
"""


def child(store: Path, log: Path, slow: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen([sys.executable, "-c", _CHILD, store, log, slow], env={**os.environ, "PYTHONPATH": path})


def killed_at(store: Path, log: Path, check: str) -> None:
    before = len(log.read_text()) if log.exists() else 0
    process = child(store, log, check)
    try:
        for _ in range(3000):
            if log.exists() and log.read_text()[before:].endswith(check):
                break
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_kill_9_in_mid_run(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    killed_at(store, log, "c")
    assert log.read_text() == "abc"
    assert child(store, log, "none").wait() == 0
    assert log.read_text() == "abccd"  # a and b were not lost, c began anew
    with Store(store, {"plan": "x"}) as kept:
        assert sorted(kept.done) == ["leg / a", "leg / b", "leg / c", "leg / d"]
    assert store.read_text().count('"result"') == 4


def test_a_check_that_takes_the_process_with_it(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    for _ in range(3):
        killed_at(store, log, "b")
    assert child(store, log, "b").wait() == 0  # it is not tried a fourth time
    assert log.read_text() == "abbbcd"
    assert "the whole process died" in store.read_text()


# expected failures


def test_an_expected_failure_does_not_fail_the_run() -> None:
    known = Expected("b", "ticket 7")
    outcome = run(leg(FakeCheck("a"), FakeCheck("b", FAILS, 0.0)), expected=[known])
    assert outcome.status == 0
    assert outcome.verdict is Overall.NOT_EXACT  # the engine is what it is
    assert outcome.expected == {"leg / b": "ticket 7"}
    assert "as expected: ticket 7" in outcome.reasons[0]


def test_another_failure_still_fails_the_run() -> None:
    checks = (FakeCheck("a", FAILS, 0.0), FakeCheck("b", FAILS, 0.0))
    assert run(leg(*checks), expected=[Expected("b", "known")]).status == 1
    assert run(leg(*checks), expected=[Expected("*", "known", leg="other")]).status == 1


def test_an_unexpected_pass_is_reported_and_fails_the_run() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b")), expected=[Expected("b", "ticket 7")])
    assert (outcome.verdict, outcome.status) == (Overall.EXACT, 1)
    assert outcome.unexpected_passes == {"leg / b": "ticket 7"}
    assert "holds but was expected to fail (ticket 7)" in outcome.reasons[0]


def test_what_could_not_be_tested_is_neither() -> None:
    outcome = run(leg(FakeCheck("a"), FakeCheck("b", act=dying)), expected=[Expected("b", "known")])
    assert outcome.status == 3


def test_an_expectation_without_a_check_is_said() -> None:
    assert "'z'" in run(leg(FakeCheck("a")), expected=[Expected("z", "gone")]).notes[0]


def test_the_file_of_expectations(tmp_path: Path) -> None:
    path = tmp_path / "expect.toml"
    path.write_text('[[expected]]\ncheck = "law/*"\nreason = "r"\n[[expected]]\ncheck = "b"\nleg = "x"\nreason = "s"\n')
    assert read_expected(path) == (Expected("law/*", "r"), Expected("b", "s", "x"))


@pytest.mark.parametrize(
    "text",
    [
        "[[expected]]\ncheck = 'a'",
        "[[expected]]\ncheck = 'a'\nreason = ''",
        "[[expected]]\ncheck = 'a'\nreason = 'r'\nlegs = 'x'",
        "[[expected]]\ncheck = 1\nreason = 'r'",
        "[[expect]]\ncheck = 'a'\nreason = 'r'",
        "expected = 3",
        "expected = [1]",
        "not toml",
    ],
)
def test_a_bad_file_of_expectations_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "expect.toml"
    path.write_text(text)
    with pytest.raises(VerifyError, match="expect"):
        read_expected(path)
