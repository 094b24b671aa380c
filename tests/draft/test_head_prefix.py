"""I8: a head drafts the same whether the target read the prompt or found it. Its states are kept beside the pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from heads import engine

from draftproof.draft.base import Proposer
from draftproof.engine import Engine
from draftproof.kv.states import StateStore
from draftproof.reuse import Reuse
from draftproof.types import SamplingParams

FREE = SamplingParams(max_tokens=30, seed=5, ignore_eos=True, logprobs=1)
STEM = [4 + (i * 7) % 16 for i in range(70)]
PROMPTS = [STEM, STEM[:64], [*STEM[:40], 5, 6], STEM[:66], [9, *STEM]]


def said(made: Engine, params: SamplingParams, rounds: int = 1) -> list[tuple[Any, ...]]:
    found = []
    for _ in range(rounds):
        found = [(o.tokens, o.kinds, o.logprobs) for p in PROMPTS for o in made.generate([p], params)]
        made.audit()
    return found


@pytest.mark.parametrize("draft", ["head", "combined"])
@pytest.mark.parametrize("rule", ["block", "token", "coupled"])
def test_a_warm_cache_changes_no_draft(draft: str, rule: str) -> None:
    """Under rules whose text depends on the draft; also for requests that ran before without one."""
    params = replace(FREE, rule=rule)
    expected = said(engine(draft), params)
    made = engine(draft, prefix_cache=True)
    assert said(made, params) == expected
    assert said(made, params) == expected
    assert made.generate([STEM], params)[0].cached == 64
    after_plain = engine(draft, prefix_cache=True)
    said(after_plain, replace(params, k=0))
    assert said(after_plain, params) == expected


@pytest.mark.parametrize("nodes", [0, 6])
def test_preempted_and_found_again(nodes: int) -> None:
    params = replace(FREE, rule="block", max_tokens=40)
    plain = engine(nodes=nodes)
    expected = [plain.generate([p], params)[0].tokens for p in PROMPTS]
    small = engine(nodes=nodes, kv_pages=8, prefix_cache=True)
    for _ in range(2):
        assert [o.tokens for o in small.generate([*PROMPTS], params)] == expected
        small.audit()


def _told_nothing(self: Reuse, adopted: Any, proposer: Proposer) -> None:
    """The head begins where the target reads on."""


def _other_page(self: StateStore, pages: Any) -> np.ndarray:
    rows = self._rows[[*pages[1:], pages[0]]]
    return np.ascontiguousarray(rows.reshape(-1, *rows.shape[2:]))


FAULTS = {
    "states are not told": (Reuse, "hand_over", _told_nothing),
    "states of another page": (StateStore, "read", _other_page),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = replace(FREE, rule="block")
    expected = said(engine(), params)
    monkeypatch.setattr(*FAULTS[fault])
    assert said(engine(prefix_cache=True), params, rounds=2) != expected
