"""Batches, budgets and small pools change no token; what a head cannot do ends drafts, not requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heads import IDS, PROMPTS, Watching, engine, head_path, laws, random_head, states_of

from draftproof import drafts
from draftproof.draft.head import HeadProposer
from draftproof.engine import Engine
from draftproof.kv.pages import OutOfPages
from draftproof.model import headfile
from draftproof.model.head import HeadModel
from draftproof.scheduler import Scheduler
from draftproof.types import Finish, SamplingParams

FREE = SamplingParams(max_tokens=30, seed=5, ignore_eos=True)
LONG = [[4 + (i * n) % 16 for i in range(50)] for n in (1, 3, 5, 7)]


def alone(made: Engine, params: SamplingParams) -> list[tuple[int, ...]]:
    return [made.generate(list(p), params)[0].tokens for p in LONG]


def together(made: Engine, params: SamplingParams) -> list[tuple[int, ...]]:
    found = [o.tokens for o in made.generate([list(p) for p in LONG], params)]
    made.audit()
    return found


def cut(made: Engine, rows: int) -> Engine:
    """Prompts are read in chunks, and not all sequences find room in a step."""
    made.scheduler._limits = made.scheduler._limits._replace(rows=rows)
    return made


@pytest.mark.parametrize("draft", ["head", "combined"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_batches_and_row_budgets_change_no_token(draft: str, rule: str) -> None:
    """Under rules whose text depends on the draft."""
    params = replace(FREE, rule=rule)
    made = engine(draft, k=3)
    expected = alone(made, params)
    assert together(made, params) == expected
    assert together(cut(engine(draft, k=3), 16), params) == expected
    assert together(cut(engine(draft, k=3), 33), params) == expected


def test_rows_of_batch_mates_that_are_mixed_up_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(self: HeadProposer, works: Sequence[Any]) -> None:
        honest(self, works)
        first = works[0].logits
        for work, other in zip(works, [*works[1:], None], strict=True):
            work.logits = first if other is None else other.logits

    honest = HeadProposer._go_on
    monkeypatch.setattr(HeadProposer, "_go_on", mixed)
    made = engine(k=3)
    params = replace(FREE, rule="token")
    assert together(made, params) != alone(made, params)


@pytest.mark.parametrize("nodes", [0, 8])
@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_preemption_changes_no_token(rule: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the last two the text depends on the draft, which must be what it would have been."""
    params = replace(FREE, rule=rule, max_tokens=40)
    expected = alone(engine(k=3, nodes=nodes), params)
    forgotten: list[int] = []
    honest = HeadProposer.forget

    def forget(self: HeadProposer, request: int) -> None:
        forgotten.append(request)
        honest(self, request)

    monkeypatch.setattr(HeadProposer, "forget", forget)
    small = engine(k=3, nodes=nodes, kv_pages=9)
    assert together(small, params) == expected
    assert len(forgotten) > 4  # once at the end of each, and more
    proposer: Any = small.proposer
    assert proposer.pool.free == proposer.pool.total


def test_planted_decoding_without_states_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that reads a preempted sequence anew and decodes at once has no states to draft from."""
    monkeypatch.setattr(Scheduler, "_reread", lambda self, s, budget: self._onward(s, budget, len(s.tokens)))
    params = replace(FREE, rule="block", max_tokens=40)
    assert together(engine(k=3, kv_pages=9), params) != alone(engine(k=3), params)


def crowded() -> list[tuple[int, ...]]:
    made = engine(k=12, nodes=16)
    params = replace(FREE, temperature=0.0, rule="token", max_tokens=30)
    found = together(made, params)
    proposer: Any = made.proposer
    proposer.audit()
    assert proposer.pool.free == proposer.pool.total
    return found


def test_drafts_wait_for_each_other_where_pages_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """14 pages for four sequences of up to three each, whose trees need up to two more each."""
    expected = crowded()
    monkeypatch.setattr(drafts, "_SPARE_PAGES", 14 - 64)
    waves: list[int] = []
    honest = HeadProposer._waves

    def counted(self: HeadProposer, works: Sequence[Any]) -> Iterator[list[Any]]:
        for wave in honest(self, works):
            waves.append(len(wave))
            yield wave

    monkeypatch.setattr(HeadProposer, "_waves", counted)
    assert crowded() == expected
    assert 0 < min(waves) < 4
    monkeypatch.setattr(HeadProposer, "_waves", lambda self, works: iter([list(works)] if works else []))
    with pytest.raises(OutOfPages):
        crowded()


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_a_request_that_forbids_the_heads_whole_vocabulary_goes_on(rule: str) -> None:
    made = engine(k=3)
    watch = Watching(made)
    params = replace(FREE, rule=rule, logit_bias={int(i): -np.inf for i in IDS})
    output = made.generate(list(PROMPTS[0]), params)[0]
    assert (output.finish, output.error) == (Finish.LENGTH, None)
    assert not set(output.tokens) & set(IDS.tolist())
    assert not any(d.tokens for _, _, d in watch.drafts)


def test_a_head_that_is_not_a_number_is_said(tmp_path: Path) -> None:
    head = random_head()
    spoilt = {**head.tensors, "norm.weight": np.full_like(head.tensors["norm.weight"], np.nan)}
    headfile.write(replace(head, tensors=spoilt), tmp_path, {})
    made = engine(k=3, head=tmp_path)
    drafted, plain = made.generate([list(p) for p in PROMPTS[:2]], [FREE, replace(FREE, k=0)])
    assert drafted.finish is Finish.ERROR
    assert drafted.error is not None
    assert drafted.error.startswith("draft head: ")
    assert plain.finish is Finish.LENGTH


@pytest.mark.parametrize("failing", [2, 5, 9])
def test_a_pass_that_fails_leaves_the_head_as_it_was(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, passes = HeadModel.forward, []

    def forward(self: HeadModel, *given: Any) -> Any:
        passes.append(1)
        if len(passes) == failing:
            raise MemoryError("planted")
        return honest(self, *given)

    made = engine(k=3)
    watch = Watching(made)
    monkeypatch.setattr(HeadModel, "forward", forward)
    for prompt in PROMPTS:
        made.add(list(prompt), FREE)
    failures = 0
    while made.busy:
        try:
            made.step()
        except MemoryError:
            failures += 1
            watch.inner.audit()
    assert failures == 1
    head = headfile.read(head_path())
    for _, tokens, draft in watch.drafts[:20]:
        if draft.tokens:
            wanted = laws(head, tokens, states_of(made, tokens)[1][:-1], draft.tokens[:-1])
            for law, right in zip(draft.laws, wanted, strict=True):
                np.testing.assert_allclose(law.dense(), right, atol=2e-4)
