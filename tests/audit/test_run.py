"""What an audit says of good and bad engines, and that nothing is said of what did not come again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from verify.fakes import FakeCheck, FakeEngine, dying, leg

from draftproof.audit.cases import Case, cases
from draftproof.audit.page import to_html
from draftproof.audit.record import read, to_json, to_record
from draftproof.audit.run import Finding, How, Standing, audit
from draftproof.verify.adapters.registry import Promise
from draftproof.verify.contract import Budget, Result, Verdict
from draftproof.verify.mutants import MUTANTS, WORLDS
from draftproof.verify.outcome import Overall
from draftproof.verify.plan import Leg, VerifyError
from draftproof.verify.suite import all_checks

BUDGET = Budget(level="quick", seed=5)
HOLDS, FAILS = Verdict.HOLDS, Verdict.FAILS


def case(on: Any, off: Any = None, promise: Promise = Promise.EXACT, engine: Any = FakeEngine) -> Case:
    without = (leg(off, name="off"),) if off is not None else ()
    return Case("fake", "draft", "a fake", promise, (leg(on, engine=engine),), without, ("--engine", "fake"))


def how(folder: Path) -> How:
    return How(BUDGET, {"draftproof": "1"}, folder, 60.0)


def said(folder: Path, *told: Any, **more: Any) -> Finding:
    return audit(case(*told, **more), how(folder))


def once(seed: int) -> Any:
    """Fails at one seed alone."""

    class Once(FakeCheck):
        def run(self, engine: Any, world: Any, budget: Budget, alpha: float) -> Any:
            found = super().run(engine, world, budget, alpha)
            return replace(found, verdict=FAILS if budget.seed == seed else HOLDS)

    return Once("a")


def test_an_engine_that_holds_stands_as_promised(tmp_path: Path) -> None:
    found = said(tmp_path, FakeCheck("a"), FakeCheck("a"))
    assert (found.standing, found.outcome.verdict) == (Standing.AS_PROMISED, Overall.EXACT)
    assert not found.confirmations


@pytest.mark.parametrize(
    ("on", "off", "standing"),
    [
        (FakeCheck("a", FAILS), FakeCheck("a"), Standing.CHANGED),
        (FakeCheck("a", FAILS), FakeCheck("a", FAILS), Standing.APART),
        (once(BUDGET.seed), FakeCheck("a"), Standing.ONCE),
        (once(BUDGET.seed), FakeCheck("a", FAILS), Standing.ONCE),
        (FakeCheck("a", FAILS), FakeCheck("a", Verdict.UNTESTED), Standing.APART),
        (FakeCheck("a", FAILS), None, Standing.CHANGED),
    ],
)
def test_what_failed_is_put_down_to_speculation_only_if_it_comes_again_and_not_without(
    on: Any, off: Any, standing: Standing, tmp_path: Path
) -> None:
    assert said(tmp_path, on, off).standing is standing


def test_only_what_failed_is_run_again(tmp_path: Path) -> None:
    good, bad, off, idle = FakeCheck("good"), FakeCheck("bad", FAILS), FakeCheck("bad"), FakeCheck("good")
    both = (leg(good, bad),)
    found = audit(Case("fake", "draft", "", Promise.EXACT, both, (leg(off, idle, name="off"),), ()), how(tmp_path))
    assert (good.runs, bad.runs, off.runs, idle.runs) == (1, 2, 1, 0)
    (confirmed,) = found.confirmations
    assert (confirmed.check, confirmed.again, confirmed.off) == ("bad", FAILS, HOLDS)


@pytest.mark.parametrize(
    ("verdict", "promise", "standing"),
    [
        (HOLDS, Promise.PLAIN, Standing.AS_PROMISED),
        (FAILS, Promise.PLAIN, Standing.CONTROL),
        (FAILS, Promise.APPROXIMATE, Standing.AS_PROMISED),
        (HOLDS, Promise.APPROXIMATE, Standing.CONTROL),
    ],
)
def test_controls_must_come_out_as_what_they_are(
    verdict: Verdict, promise: Promise, standing: Standing, tmp_path: Path
) -> None:
    assert said(tmp_path, FakeCheck("a", verdict), promise=promise).standing is standing


@pytest.mark.parametrize("engine", [partial(FakeEngine, proposed=0), partial(FakeEngine, reply=dying)])
def test_an_engine_that_stopped_drafting_or_died_could_not_be_tested(engine: Callable[[], Any], tmp_path: Path) -> None:
    assert said(tmp_path, FakeCheck("a"), engine=engine).standing is Standing.UNTESTED


def test_a_stopped_audit_goes_on_where_it_was(tmp_path: Path) -> None:
    first, second = FakeCheck("a", FAILS), FakeCheck("a", FAILS)
    before = audit(case(first, FakeCheck("a")), how(tmp_path))
    after = audit(case(second, FakeCheck("a")), how(tmp_path))
    assert (first.runs, second.runs) == (2, 0)
    assert to_record([before], BUDGET, {}, "", "") == to_record([after], BUDGET, {}, "", "")


def planted(world_of: Any) -> Case:
    """A decoder with the argmax of the draft for a sample of it, and the honest one as its control."""
    mutant = next(m for m in MUTANTS if m.check == "law/joint" and m.world == "tabular")
    world, check = WORLDS[mutant.world](), all_checks()["law/joint"]
    honest = Leg("honest", partial(world_of, world), world, (check,))
    faulty = Leg("faulty", partial(mutant.make, world), world, (check,))
    return Case("planted", mutant.name, mutant.what, Promise.EXACT, (faulty,), (honest,), ())


def test_a_planted_fault_is_found_and_its_honest_twin_is_not(tmp_path: Path) -> None:
    """At seed 5 and two more; an honest run fails with probability 1e-6 at most, a planted one passes with 1e-2."""
    from draftproof.verify.mutants.honest import Honest

    fault = planted(Honest)
    found = audit(fault, how(tmp_path))
    assert found.standing is Standing.CHANGED
    assert found.confirmations[0].off == HOLDS
    honest = audit(replace(fault, mode="honest", legs=fault.off), how(tmp_path))
    assert honest.standing is Standing.AS_PROMISED


def test_a_record_survives_its_file_and_makes_the_page(tmp_path: Path) -> None:
    witness = {"tokens": (1, 2), "text": "<script>alert(1)</script>"}
    bad = FakeCheck("law/a", act=lambda _: Result("", "", FAILS, 7, 0.0, witness=witness))
    found = [said(tmp_path, bad, FakeCheck("law/a")), said(tmp_path / "b", FakeCheck("law/a"))]
    told = [to_record(found, BUDGET, {"draftproof": "1"}, "draftproof audit --seed 5", "today")]
    (tmp_path / "a.json").write_text(to_json(told), encoding="utf-8")
    assert read(tmp_path / "a.json") == json.loads(to_json(told)) == told
    page = to_html(told)
    assert "speculation changes the output" in page
    assert "<script>alert" not in page
    assert "draftproof verify --engine fake --quick --tv 0.02 --seed 5 --leg leg --checks law/a" in page


def test_a_check_that_met_no_draft_says_so(tmp_path: Path) -> None:
    seen, unseen = FakeCheck("a"), FakeCheck("b", act=lambda e: Result("", "", HOLDS, 5))
    legs = (leg(seen), leg(unseen, name="other", engine=partial(FakeEngine, proposed=0)))
    found = audit(Case("fake", "draft", "", Promise.EXACT, legs, (), ()), how(tmp_path))
    told = [to_record([found], BUDGET, {}, "", "")]
    told[0]["findings"][0]["checks"][1]["proposed"] = 0
    assert to_html(told).count("no draft") == 1


def test_what_is_no_audit_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", '[{"draftproof audit": 0}]'):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        with pytest.raises(VerifyError, match=r"x\.json"):
            read(tmp_path / "x.json")


def test_unknown_engines_and_modes_are_refused_with_what_there_is(tmp_path: Path) -> None:
    for engine, mode, match in (
        ("nothing", (), "genai"),
        ("genai", ("x",), "lookup"),
        ("draftproof", ("x",), "lookup"),
    ):
        with pytest.raises(VerifyError, match=match):
            cases(engine, mode, tmp_path, tmp_path, {})


def test_our_engine_is_audited_with_all_its_rules(tmp_path: Path) -> None:
    found = {c.mode: c for c in cases("draftproof", (), tmp_path, tmp_path, {})}
    assert set(found) == {"draft", "lookup"}
    assert all(c.legs and c.promise is Promise.EXACT for c in found.values())
