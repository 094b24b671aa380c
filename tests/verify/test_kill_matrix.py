"""The kill matrix: every planted fault falls to the check that it names, honest decoders stand, broken ones never pass.

One seed here; `benchmarks/kill_matrix.py` takes twenty. An honest decoder fails a check with probability 1e-7 at most.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.verify import suite
from draftproof.verify.contract import Budget, Mutant, Verdict, World
from draftproof.verify.mutants import BROKEN, HONEST, MUTANTS, SILENT, WORLDS, Variant
from draftproof.verify.outcome import Overall, conclude
from draftproof.verify.plan import Leg
from draftproof.verify.run import run_plan

BUDGET = Budget(level="quick")
FEW = (
    "law/ends",
    "law/penalties",
    "bitwise/batch",
    "bitwise/order",
    "ends/*",
)  # enough to know an honest decoder from a broken one


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.check} {m.name}")
def test_fault_falls_to_its_check(mutant: Mutant) -> None:
    assert suite.kill(mutant, Budget(), (1,)).killed


def test_every_kind_of_check_has_a_fault_to_kill() -> None:
    named = {m.check for m in MUTANTS}
    claims = {c.name for c in suite.TOY_CHECKS if not c.name.startswith("numerics/")}
    assert named == claims
    assert len(MUTANTS) >= 35


def leg(variant: Variant, *patterns: str) -> Leg:
    world: World = WORLDS["tabular"]()
    checks = [c for c in suite.TOY_CHECKS if not patterns or any(c.name.startswith(p.rstrip("*")) for p in patterns)]
    judged = world if variant.drafts else replace(world, draft=None)
    return Leg(variant.name, lambda: variant.make(world), judged, tuple(checks), essential=FEW)


@pytest.mark.parametrize("variant", HONEST, ids=lambda v: v.name)
def test_honest_decoder_stands(variant: Variant) -> None:
    outcome = conclude(run_plan([leg(variant, *FEW)], BUDGET), BUDGET)
    assert outcome.verdict is Overall.EXACT, outcome.reasons


@pytest.mark.slow
@pytest.mark.parametrize("variant", HONEST, ids=lambda v: v.name)
def test_honest_decoder_stands_everything(variant: Variant) -> None:
    outcome = conclude(run_plan([leg(variant)], BUDGET), BUDGET)
    assert not outcome.having(Verdict.FAILS)


@pytest.mark.parametrize("variant", [*SILENT, *BROKEN], ids=lambda v: v.name)
def test_what_cannot_be_tested_is_never_passed(variant: Variant) -> None:
    outcome = conclude(run_plan([leg(variant, "law/ends", "ends/books")], BUDGET), BUDGET)
    assert outcome.verdict is Overall.UNTESTED, outcome.reasons


def test_witness_is_small_and_names_the_place() -> None:
    mutant = next(m for m in MUTANTS if m.check == "law/joint")
    world = WORLDS[mutant.world]()
    result = suite.all_checks()["law/joint"].run(mutant.make(world), world, BUDGET, 1e-7)
    assert result.witness is not None
    assert {"prompt", "params", "tokens", "expected", "seen"} <= set(result.witness)
    assert len(result.witness["tokens"]) <= 2
