"""What a head is fed: long prompts in pieces, penalties inside a draft, pages that others used, and rejected tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heads import PROMPTS, Rows, Watching, engine, head_path, laws, random_head, states_of

from draftproof import step
from draftproof.draft import head as drafts
from draftproof.draft.base import Seen
from draftproof.draft.head import HeadProposer
from draftproof.engine import Engine
from draftproof.model import headfile
from draftproof.scheduler import Item
from draftproof.types import Draft, Finish, Run, SamplingParams

FREE = SamplingParams(max_tokens=16, seed=5, ignore_eos=True)
LONG = [[4 + (i * n) % 16 for i in range(45 + n)] for n in (1, 3, 5, 7)]
Drafted = Sequence[tuple[int, tuple[int, ...], Draft]]


def drafted(made: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams = FREE) -> Drafted:
    watch = Watching(made)
    made.generate([list(p) for p in prompts], params)
    made.audit()
    watch.inner.audit()
    assert watch.inner.pool.free == watch.inner.pool.total
    return [d for d in watch.drafts if d[2].tokens]


def farthest(found: Drafted, most: int = 40) -> float:
    """Largest difference between a stated law and the independent pass; some drafts, each token of them."""
    made, head, far = engine(k=3), headfile.read(head_path()), [0.0]  # an engine of its own: all pages are free
    assert len(found) > 10
    for _, tokens, draft in found[:: max(len(found) // most, 1)]:
        wanted = laws(head, tokens, states_of(made, tokens)[1][:-1], draft.tokens[:-1])
        far += [float(np.abs(q.dense() - w).max()) for q, w in zip(draft.laws, wanted, strict=True)]
    return max(far)


def in_pieces(monkeypatch: pytest.MonkeyPatch, rows: int = 33, head_rows: int = 7) -> Engine:
    """The target reads prompts in chunks, and the head reads what has come in smaller ones."""
    monkeypatch.setattr(drafts, "_MOST_ROWS", head_rows)
    made = engine(k=3)
    made.scheduler._limits = made.scheduler._limits._replace(rows=rows)
    return made


def test_prompts_longer_than_a_chunk_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    honest = HeadProposer._feed

    def counted(self: HeadProposer, parts: Sequence[Any]) -> None:
        sizes.append(sum(len(states) for _, _, states in parts))
        honest(self, parts)

    monkeypatch.setattr(HeadProposer, "_feed", counted)
    assert farthest(drafted(in_pieces(monkeypatch), LONG)) < 2e-4
    assert max(sizes) == 7


def test_more_waits_than_one_pass_of_the_head_takes() -> None:
    """Nothing is made smaller here: four prompts of 90 tokens, 256 rows a pass."""
    assert farthest(drafted(engine(k=3), [[*p, *p] for p in LONG], replace(FREE, max_tokens=9)), 8) < 2e-4


def test_rows_that_are_lost_between_chunks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of what is left is skipped: later rows take the state of their neighbour."""

    def losing(self: HeadProposer, parts: Sequence[Any]) -> None:
        honest(self, parts)
        for _, state, _ in parts:
            if state.waiting and len(state.waiting[0]) > 1:
                state.waiting = [np.concatenate([state.waiting[0][1:], state.waiting[0][-1:]])]

    honest = HeadProposer._feed
    monkeypatch.setattr(HeadProposer, "_feed", losing)
    assert farthest(drafted(in_pieces(monkeypatch), LONG)) > 0.01


@pytest.mark.parametrize("bitwise", [True, False])
def test_rows_of_either_kernel_are_the_heads(bitwise: bool) -> None:
    assert farthest(drafted(engine(k=3, bitwise=bitwise), PROMPTS)) < 2e-4


def overlapping(self: HeadProposer, seen: Sequence[Seen]) -> None:
    """The target's report in two parts, the second of which begins with what the first one ended with."""
    for s in seen:
        half, hidden = s.rows // 2, s.hidden
        assert hidden is not None
        if half:
            observe(self, [replace(s, rows=half, hidden=hidden[:half])])
            observe(self, [replace(s, start=s.start + half - 1, rows=s.rows - half + 1, hidden=hidden[half - 1 :])])
        else:
            observe(self, [s])


def wrong_end(self: HeadProposer, seen: Seen) -> None:
    """Of rows that come again, as many are dropped at the end as should be at the start."""
    state, hidden = self._states.get(seen.view.request.id), seen.hidden
    assert hidden is not None
    note(self, replace(seen, hidden=np.roll(hidden, max(state.known - seen.start, 0) if state else 0, axis=0)))


observe, note = HeadProposer.observe, HeadProposer._note


def test_states_that_come_again_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadProposer, "observe", overlapping)
    assert farthest(drafted(engine(k=3), PROMPTS)) < 2e-4
    monkeypatch.setattr(HeadProposer, "_note", wrong_end)
    assert farthest(drafted(engine(k=3), PROMPTS)) > 0.01


def test_the_state_of_a_rejected_token_in_place_of_the_last_that_stands_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a draft was cut, the last row of the pass is that of a rejected token."""

    def saw(item: Item, path: Sequence[int], run: Run | None, states: Any) -> Seen:
        seen = honest(item, path, run, states)
        if run is None or run.accepted >= run.proposed or seen.hidden is None:
            return seen
        rejected = states[item.end - item.start + run.accepted :][:1]
        return replace(seen, hidden=np.concatenate([seen.hidden[:-1], rejected]))

    honest = step._saw
    monkeypatch.setattr(step, "_saw", saw)
    assert farthest(drafted(engine(k=3), PROMPTS)) > 0.01


def test_drafting_gives_its_rows_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of drafted tokens are not among the committed ones: their number is that of the tokens that were read."""
    lengths: list[tuple[int, int]] = []
    honest = HeadProposer.propose

    def propose(self: HeadProposer, asks: Any) -> list[Draft]:
        made = honest(self, asks)
        tables = {name: state.table.length for name, state in self._states.items()}
        ready = [ask.view for ask, draft in zip(asks, made, strict=True) if draft.tokens]
        lengths.extend((tables[view.request.id], len(view.tokens) - 1) for view in ready)
        return made

    monkeypatch.setattr(HeadProposer, "propose", propose)
    drafted(engine(k=3), PROMPTS)
    assert len(lengths) > 20
    assert all(held == read for held, read in lengths)


def test_keys_that_were_not_rolled_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the draft stay committed where tokens stood, so those are not made anew from the target's states."""

    def feed(self: HeadProposer, parts: Sequence[Any]) -> None:
        kept = []
        for ask, state, states in parts:
            stale = min(len(states) - 1, 2) if state.table.length else 0  # of a draft of 3, two rows were written
            if stale:
                state.table.extend(stale)
                state.table.commit(state.table.length + stale)
                state.waiting = [state.waiting[0][stale:]]
            kept.append((ask, state, states[stale:]))
        honest(self, kept)

    honest = HeadProposer._feed
    monkeypatch.setattr(HeadProposer, "_feed", feed)
    assert farthest(drafted(engine(k=3), PROMPTS)) > 0.01


def test_pages_of_requests_that_stopped_or_were_aborted_leave_nothing_behind() -> None:
    made = engine(k=4, kv_pages=8)
    text = made.generate(list(PROMPTS[0]), FREE)[0].tokens
    halfway = replace(FREE, ignore_eos=False, stop_token_ids=(text[6],))
    assert made.generate(list(PROMPTS[0]), halfway)[0].finish is Finish.STOP
    request = made.add(list(LONG[0]), FREE)
    for _ in range(4):
        made.step()
    made.abort(request)
    assert farthest(drafted(made, PROMPTS)) < 2e-4


# the request's own parameters

PENALISED = SamplingParams(
    max_tokens=24, seed=5, ignore_eos=True, temperature=0.7, frequency_penalty=0.5, presence_penalty=0.4,
    logit_bias={5: 1.5, 9: -2.0}, top_k=6, min_tokens=12, stop_token_ids=(7,),
)  # fmt: skip


def processed(law: Rows, p: SamplingParams, output: Sequence[int]) -> Rows:
    """The head's law with bias, penalties, stop mask, temperature and top-k, in the order of law.py; no code shared."""
    with np.errstate(divide="ignore"):
        logits = np.log(law)
    for token, bias in p.logit_bias.items():
        logits[token] += bias
    for token, times in Counter(output).items():
        logits[token] -= p.frequency_penalty * times + p.presence_penalty
    if len(output) < p.min_tokens:
        logits[list(p.stop_token_ids)] = -np.inf
    logits[np.argsort(-logits, kind="stable")[p.top_k :]] = -np.inf
    weights = np.exp((logits - logits.max()) / p.temperature)
    return np.asarray(weights / weights.sum())


def penalised(made: Engine) -> float:
    """Largest difference between stated laws and those that the parameters make of the head's own."""
    watch, head, far, early, late = Watching(made), headfile.read(head_path()), [0.0], 0, 0
    starts = {request: len(p) for request, p in enumerate(PROMPTS)}
    made.generate([list(p) for p in PROMPTS], [replace(PENALISED, seed=n) for n in range(4)])
    for name, tokens, draft in watch.drafts:
        wanted = laws(head, tokens, states_of(made, tokens)[1][:-1], draft.tokens[:-1]) if draft.tokens else []
        output = tokens[starts[name] :]
        for i, (stated, law) in enumerate(zip(draft.laws, wanted, strict=True)):
            right = processed(law, PENALISED, [*output, *draft.tokens[:i]])
            far.append(float(np.abs(stated.dense() - right).max()))
            early += len(output) + i < PENALISED.min_tokens
            late += len(output) + i >= PENALISED.min_tokens
    assert min(early, late) > 10
    return max(far)


def test_penalties_bias_and_stop_masks_advance_inside_a_draft() -> None:
    assert penalised(engine(k=3)) < 2e-4


def test_a_history_that_stands_still_inside_a_draft_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_one(self: HeadProposer, work: Any) -> None:
        drawn, work.tokens = work.tokens, []
        honest(self, work)
        work.tokens = [*drawn, *work.tokens]

    honest = HeadProposer._draw_one
    monkeypatch.setattr(HeadProposer, "_draw_one", draw_one)
    assert penalised(engine(k=3)) > 0.01


@pytest.mark.parametrize("nodes", [0, 8])
def test_numbers_that_are_none_are_said_whatever_the_shape(nodes: int, tmp_path: Path) -> None:
    head = random_head()
    spoilt = {**head.tensors, "norm.weight": np.full_like(head.tensors["norm.weight"], np.nan)}
    headfile.write(replace(head, tensors=spoilt), tmp_path, {})
    made = engine(k=3, nodes=nodes, head=tmp_path)
    output = made.generate(list(PROMPTS[0]), replace(FREE, rule="token"))[0]
    assert output.finish is Finish.ERROR
    assert (output.error or "").startswith("draft head: ")
