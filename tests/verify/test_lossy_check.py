"""Measured distances of lossy rules agree with the exact ones, and exact rules come out as no distance.

Each interval misses with probability 0.01; the seed is fixed, and both rules move the law by more than an interval.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftproof.lossy import LossyRule, parse
from draftproof.types import Law
from draftproof.verify import oracle, toy
from draftproof.verify.adapters.draftproof import DraftproofEngine, toy_engine
from draftproof.verify.checks.common import prompts
from draftproof.verify.checks.lossy import LossyDistance
from draftproof.verify.contract import Budget, Params, World


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> tuple[DraftproofEngine, World]:
    pair, folder = toy.pair(), tmp_path_factory.mktemp("toy")
    return toy_engine(pair, Path(folder), "model"), toy.world(pair)


def exact_tv(world: World, rule: LossyRule) -> float:
    prompt = prompts(world, 1)[0]
    p, q = (law(world, prompt, (), Params()) for law in (oracle.law_at, oracle.draft_law))
    laws = [Law(len(x), None, x) for x in (p, q)]
    return float(0.5 * np.abs(rule.law(*laws) - p).sum())


@pytest.mark.parametrize("name", ["lenience:1.5", "typical:0.3"])
def test_interval_holds_the_exact_distance(name: str, subject: tuple[DraftproofEngine, World]) -> None:
    engine, world = subject
    rule = parse(name)
    assert rule is not None
    figures = LossyDistance(name).run(engine, world, Budget(level="quick"), 1e-6).witness
    assert figures is not None
    assert figures["low"] <= exact_tv(world, rule) <= figures["high"]
    assert figures["low"] > 0  # it is seen to be lossy


def test_exact_rule_is_measured_as_none(subject: tuple[DraftproofEngine, World]) -> None:
    engine, world = subject
    figures = LossyDistance("block").run(engine, world, Budget(level="quick"), 1e-6).witness
    assert figures is not None
    assert figures["low"] == 0
