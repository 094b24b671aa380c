"""Trees beside chains and plain rows: seeds, preemption, stops in mid-path, books, hidden states, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import finished, random_table, toy_engine
from tree_proposers import BUSHY, LikeliestTrees, SampledTrees

from draftproof.accept import RULES
from draftproof.draft.base import Seen, point_tree
from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.model.tabular import TabularModel
from draftproof.stats import summary
from draftproof.types import Chunk, Draft, Finish, Forward, Kind, Output, SamplingParams

VOCAB, NODES = 6, 8
TARGET = random_table(VOCAB, 1, 0.3, 3.0)
KINDS = {"sampled": SampledTrees, "likeliest": LikeliestTrees}


def engine(kind: str, mixed: bool = False, **info: Any) -> Engine:
    proposer = KINDS[kind](random_table(VOCAB, 1, 0.3, 2.0), VOCAB, BUSHY, mixed)
    return toy_engine(TARGET, VOCAB, proposer, **{"min_rows": 2, "context": 48, "nodes": NODES, **info})


def work(rule: str, draft: bool = True) -> list[tuple[list[int], SamplingParams]]:
    rng = np.random.default_rng(7)
    found = []
    for i in range(10):
        params = SamplingParams(
            temperature=(0.0, 0.7, 1.0, 1.3)[i % 4],
            top_k=(0, 4)[i % 2],
            frequency_penalty=(0.0, 0.0, 0.6)[i % 3],
            min_tokens=i % 4,
            max_tokens=6 + 3 * (i % 5),
            stop=("cab", "ff") if i % 5 == 0 else (),
            stop_token_ids=(5,) if i % 4 == 1 else (),
            seed=100 + i,
            k=(4, 1, 3, 0, 7)[i % 5] if draft else 0,
            rule=rule,
            logprobs=i % 3,
        )
        found.append((rng.integers(VOCAB, size=1 + (5 * i) % 11).tolist(), params))
    return found


def said(output: Output) -> tuple[object, ...]:
    return output.tokens, output.kinds, output.text, output.finish, output.logprobs


def alone(kind: str, rule: str) -> list[tuple[object, ...]]:
    return [said(engine(kind).generate([p], params)[0]) for p, params in work(rule)]


def batched(made: Engine, rule: str, draft: bool = True) -> list[Output]:
    names = [made.add(*one) for one in work(rule, draft)]
    outputs = finished(made)  # with an audit after every step
    assert made.pool.free == made.pool.total
    return [outputs[name] for name in names]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_scheduling_changes_no_token(rule: str, kind: str) -> None:
    expected = alone(kind, rule)
    settings: list[dict[str, int]] = [{}, {"pages": 13}, {"max_rows": 17}, {"page_size": 1, "pages": 60}]
    for info in settings:
        assert [said(o) for o in batched(engine(kind, **info), rule)] == expected, info


def test_preemption_happens_in_these_settings() -> None:
    made = engine("likeliest", pages=13)
    seen, preempt = [], made.scheduler._preempt
    made.scheduler._preempt = lambda: seen.append(preempt()) or seen[-1]  # type: ignore[func-returns-value, method-assign]
    batched(made, "token")
    assert sum(len(s.kinds) > 0 for s in seen) > 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mixed", [False, True], ids=["trees", "trees, chains and plain rows"])
@pytest.mark.parametrize("rule", ["sampled", "coupled"])
def test_the_seed_alone_decides(rule: str, kind: str, mixed: bool) -> None:
    plain = [o.tokens for o in batched(toy_engine(TARGET, VOCAB, min_rows=2, context=48), rule, draft=False)]
    outputs = batched(engine(kind, mixed, pages=13), rule)
    assert [o.tokens for o in outputs] == plain
    steps = [s for o in outputs for s in o.steps]
    assert sum(s.accepted > 1 for s in steps) > 3  # the trees had a say


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_plain_greedy(kind: str) -> None:
    for rule in RULES:
        params = [SamplingParams(temperature=0, k=k, rule=rule, max_tokens=20) for k in (0, 1, 3, 5)]
        assert len({o.tokens for o in engine(kind).generate([[1, 2, 3]] * 4, params)}) == 1


# state and hidden states


class Telling(TabularModel):
    """Hidden state of a row: its token and what its cache slot's place in the sequence is. Shape [rows, 1, 2]."""

    def forward(self, chunks: Sequence[Chunk]) -> Forward:
        rows = [(t, c.past + (c.depths[j] if c.depths else j)) for c in chunks for j, t in enumerate(c.tokens)]
        return replace(super().forward(chunks), hidden=np.array(rows, dtype=np.float32)[:, None])


def watched(made: Engine) -> list[Seen]:
    """Everything that the proposer is shown, checked at once: one row for each slot that stays, in order."""
    made.target = Telling(TARGET, made.target.info)
    shown: list[Seen] = []

    def observe(seen: Sequence[Seen]) -> None:
        shown.extend(seen)
        for s in seen:
            tokens, table = list(s.view.tokens), s.view.table  # type: ignore[attr-defined]
            assert s.hidden is not None
            assert len(s.hidden) == s.rows
            if s.run is None or s.run.finish is None:
                assert s.start + s.rows == table.length
            assert s.hidden[:, 0, 0].tolist() == tokens[s.start : s.start + s.rows]
            assert s.hidden[:, 0, 1].tolist() == list(range(s.start, s.start + s.rows))
            held = made.target.slots[list(table.pages)].ravel()[: table.length]  # type: ignore[attr-defined]
            assert held.tolist() == tokens[: table.length]

    made.proposer.observe = observe  # type: ignore[method-assign]
    return shown


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_hidden_states_are_those_of_the_committed_tokens(kind: str) -> None:
    made = engine(kind, mixed=True, max_rows=24)
    shown = watched(made)
    for prompt, params in work("sampled"):
        made.add(prompt, replace(params, stop=(), stop_token_ids=()))
    finished(made)
    assert any(s.run is None for s in shown)  # a prompt in chunks
    assert sum(s.run is not None and s.run.accepted > 1 for s in shown) > 3


@pytest.mark.parametrize("fault", ["hidden of a rejected token", "KV not moved", "padding shown"])
def test_planted_fault_in_the_state_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "KV not moved":
        monkeypatch.setattr(TabularModel, "move_slots", lambda self, pages, moves: None)
    elif fault == "hidden of a rejected token":
        monkeypatch.setattr(
            "draftproof.step._saw",
            lambda item, path, run, states: Seen(
                item.sequence, item.start, n := item.end - item.start + len(path), run, states[:n]
            ),
        )
    else:
        monkeypatch.setattr(
            "draftproof.step._saw",
            lambda item, path, run, states: Seen(item.sequence, item.start, len(states), run, states),
        )
    with pytest.raises(AssertionError):
        test_state_and_hidden_states_are_those_of_the_committed_tokens("likeliest")


# books


class Saying:
    """Proposes the same draft every time."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def propose(self, asks: Sequence[Any]) -> list[Draft]:
        return [self.draft] * len(asks)

    def observe(self, seen: Sequence[Seen]) -> None:
        pass

    def forget(self, request: int) -> None:
        pass


def saying(text: Sequence[int], **params: Any) -> Output:
    """The target surely says `text` behind a prompt of one token; the draft is always the same tree of points.

    0 -> 1 -> 2 -> 3 (first children), 0 -> 4 -> 5, and 5 under 4 has a sibling 2.
    """

    def table(prefix: tuple[int, ...]) -> np.ndarray:
        law = np.zeros(VOCAB)
        law[text[len(prefix) - 1] if len(prefix) <= len(text) else 0] = 1.0
        return law

    draft = point_tree((1, 4, 2, 5, 2, 3), (0, 0, 1, 2, 2, 3), VOCAB)
    made = toy_engine(table, VOCAB, Saying(draft), nodes=NODES)
    return made.generate([[0]], SamplingParams(k=3, max_tokens=len(text) + 3, **params))[0]


@pytest.mark.parametrize(
    ("text", "proposed", "accepted", "kind"),
    [
        ((1, 2, 3, 0), (1, 2, 3), 3, Kind.BONUS),
        ((1, 2, 0), (1, 2, 3), 2, Kind.RESIDUAL),
        ((4, 5, 1), (4, 5), 2, Kind.BONUS),  # a leaf above the deepest level: nothing was rejected
        ((4, 2, 0), (4, 2), 2, Kind.BONUS),
        ((4, 0), (4, 5), 1, Kind.RESIDUAL),
        ((5,), (1, 2, 3), 0, Kind.RESIDUAL),
    ],
)
def test_what_counts_as_proposed(text: tuple[int, ...], proposed: tuple[int, ...], accepted: int, kind: Kind) -> None:
    first = saying(text).steps[0]
    assert (first.proposed, first.accepted, first.kind) == (proposed, accepted, kind)
    assert first.emitted == text[: accepted + 1]
    stats = summary([first])
    assert stats.alpha == accepted / (accepted + (kind is Kind.RESIDUAL))
    assert stats.alpha_cond == (1.0,) * accepted + (0.0,) * (kind is Kind.RESIDUAL)


def test_a_stop_in_mid_path_ends_the_books_there() -> None:
    output = saying((4, 2, 0), stop_token_ids=(2,))
    assert (output.tokens, output.finish) == ((4,), Finish.STOP)
    assert (output.steps[0].proposed, output.steps[0].accepted, output.steps[0].emitted) == ((4,), 1, (4,))
    output = saying((4, 2, 0), stop=("ec",), logprobs=1)
    assert (output.tokens, output.text, output.finish) == ((4,), "", Finish.STOP) or output.text == ""
    assert len(output.tokens) == len(output.logprobs or ())


def test_logprobs_are_those_of_the_path() -> None:
    made = engine("likeliest")
    for output in (made.generate([p], s)[0] for p, s in work("token") if s.logprobs is not None):
        text = list(output.prompt)
        for entry in output.logprobs or ():
            assert entry.logprob == pytest.approx(float(np.log(TARGET(tuple(text))[entry.token])), abs=1e-5)
            text.append(entry.token)


# drafts that break the contract


BROKEN = {
    "a tree of 9 nodes, at most 8": point_tree((0, 1, 2, 3, 4, 5, 0, 1, 2), (0,) * 6 + (1,) * 3, VOCAB),
    "a tree of depth 4, at most 3": point_tree((1, 2, 3, 4), (0, 1, 2, 3), VOCAB),
    "2 draft tokens with 1 parents": point_tree((1, 2), (0,), VOCAB),
    "node 1 that hangs from node 1": point_tree((1, 2), (1, 0), VOCAB),
    "node 2 that hangs from node -1": point_tree((1, 2), (0, -1), VOCAB),
    "siblings with the same token": point_tree((1, 2, 1), (0, 1, 0), VOCAB),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_tree_ends_its_request(message: str) -> None:
    made = toy_engine(TARGET, VOCAB, Saying(BROKEN[message]), nodes=NODES)
    output = made.generate([[1]], SamplingParams(k=3, max_tokens=9))[0]
    assert output.finish is Finish.ERROR
    assert message in str(output.error)
    made.audit()


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_tree_that_was_not_asked_for_ends_its_request(nodes: int) -> None:
    made = toy_engine(TARGET, VOCAB, Saying(point_tree((1, 2), (0, 0), VOCAB)), nodes=nodes)
    rule = "lenience:2" if nodes else "block"
    output = made.generate([[1]], SamplingParams(k=3, max_tokens=9, rule=rule))[0]
    assert "a tree of 2 nodes, at most 0" in str(output.error)


def test_chains_and_lookups_run_with_a_node_budget() -> None:
    plain = toy_engine(TARGET, VOCAB, NgramProposer(VOCAB, 1, 3), min_rows=2, context=48)
    trees = toy_engine(TARGET, VOCAB, NgramProposer(VOCAB, 1, 3), min_rows=2, context=48, nodes=NODES, pages=14)
    assert [said(o) for o in batched(plain, "block")] == [said(o) for o in batched(trees, "block")]
