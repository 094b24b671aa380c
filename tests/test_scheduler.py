"""Who runs in a step: budgets, chunks of prompts, turns, preemption. No model: tokens are made up as plans say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.kv.pages import PagePool
from draftproof.kv.table import reserve
from draftproof.length.fixed import FixedLength
from draftproof.scheduler import Item, Limits, Scheduler, Sequence
from draftproof.types import Request, RequestError, SamplingParams


def request(name: int, prompt: int, output: int, k: int = 0, nodes: int = 0) -> Request:
    return Request(name, (1,) * prompt, SamplingParams(max_tokens=output), 0, k, frozenset(), nodes=nodes)


def scheduler(rows: int = 16, least: int = 1, pages: int = 99, running: int = 9, context: int = 99) -> Scheduler:
    return Scheduler(PagePool(pages, 4), Limits(running, rows, least, context), FixedLength())


def play(s: Scheduler, items: Many[Item], accept: int = 0) -> None:
    """What a decode step does to the sequences: reserve rows, commit, add tokens, remove who is done."""
    with reserve([(i.sequence.table, i.start, s.rows(i)) for i in items]) as slots:
        slots.commit([i.end + (min(accept, i.k) if i.decodes else 0) for i in items])
    for i in items:
        if i.decodes:
            r = i.sequence.request
            i.sequence.tokens += [2] * (1 + min(accept, i.k))
            if len(i.sequence.output) >= r.params.max_tokens:
                s.remove(i.sequence)


def check(s: Scheduler, items: Many[Item], rows: int, least: int) -> None:
    assert items, "nobody runs: the engine would wait for ever"
    assert sum(map(s.rows, items)) <= rows
    assert len({id(i.sequence) for i in items}) == len(items)
    for i in items:
        assert s.rows(i) >= least
        assert i.end - i.start >= min(least, len(i.sequence.tokens)) or i.decodes
        assert (
            i.start <= i.sequence.table.length < i.end <= len(i.sequence.tokens)
        )  # new tokens are fed, none is missed
        assert i.decodes or len(i.sequence.tokens) - i.end >= least  # what is left is a chunk of its own
        assert i.k == 0 or i.decodes
        assert i.nodes == 0 or i.k > 0


CALLS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(
    calls=CALLS,
    least=st.integers(1, 3),
    spare=st.integers(0, 12),
    pages=st.integers(13, 30),
    running=st.integers(1, 6),
    accept=st.integers(0, 5),
    nodes=st.integers(0, 5),
    drafts=st.integers(0, 5),
)
def test_every_plan_keeps_to_its_limits_and_all_get_done(
    calls: list[tuple[int, int, int]],
    least: int,
    spare: int,
    pages: int,
    running: int,
    accept: int,
    nodes: int,
    drafts: int,
) -> None:
    """Of what a draft may have, it takes `drafts` tokens at most."""
    rows = 5 + 2 * least - 1 + spare
    s = scheduler(rows, least, pages, running)
    for name, (prompt, output, k) in enumerate(calls):
        s.add(request(name, prompt, output, k, nodes))
    for _ in range(2000):
        if not (s.running or s.waiting):
            break
        oldest = min([*s.running, *s.waiting], key=lambda q: q.request.id)
        items, preempted = s.plan()
        check(s, items, rows, least)
        assert oldest not in preempted
        assert len(s.running) <= running
        assert all(q.table.length == 0 for q in preempted)
        items = s.filled(items, [min(drafts, i.drafted) for i in items])
        check(s, items, rows, least)
        play(s, items, accept)
        s._pool.audit(q.table for q in [*s.running, *s.waiting])
    assert s.running + s.waiting == []
    assert s._pool.free == pages


def drafting_beside_a_prompt(**scores: int) -> tuple[Scheduler, list[Item]]:
    """Of sixteen rows a draft may take nine; its step has a row of its own, a prompt of forty tokens the other six."""
    s = scheduler()
    s.add(request(0, 1, 20, k=9))
    s.add(Request(1, (1,) * 40, SamplingParams(max_tokens=2, **scores), 0, 0, frozenset()))
    play(s, s.plan()[0])
    items, _ = s.plan()
    return s, items


@pytest.mark.parametrize(("drafted", "read"), [(9, 6), (4, 11), (0, 15)])
def test_rows_that_a_draft_leaves_go_to_the_prompt(drafted: int, read: int) -> None:
    s, items = drafting_beside_a_prompt()
    assert [s.rows(i) for i in items] == [10, 6]
    assert [s.rows(i) for i in s.filled(items, [drafted, 0])] == [1 + drafted, read]


def test_a_prompt_that_is_filled_up_leaves_a_chunk_of_its_own() -> None:
    """The last token is fed where decoding begins."""
    s, items = drafting_beside_a_prompt()
    assert s.filled([items[0], items[1]._replace(start=32, end=38)], [0, 0])[1].end == 39


@pytest.mark.parametrize(("pages", "end"), [(1, 12), (2, 16), (3, 20), (9, 21)])
def test_a_prompt_is_filled_up_as_far_as_there_are_pages(pages: int, end: int) -> None:
    """Pages of four slots; the plan, which ends at slot 12, needs one more."""
    s, items = drafting_beside_a_prompt()
    s._pool.alloc(s._pool.available - pages)
    found = s.filled(items, [0, 0])
    assert found[1].end == end
    with reserve([(i.sequence.table, i.start, s.rows(i)) for i in found]) as slots:
        slots.commit([i.end for i in found])


def test_prompts_that_are_scored_are_not_filled_up() -> None:
    s, items = drafting_beside_a_prompt(prompt_logprobs=0)
    assert s.filled(items, [0, 0])[1].end == items[1].end


@pytest.mark.parametrize(("rows", "least", "prompt", "k"), [(1, 1, 3, 0), (3, 2, 5, 0), (9, 2, 3, 6), (3, 1, 9, 2)])
def test_the_smallest_budgets_make_progress(rows: int, least: int, prompt: int, k: int) -> None:
    s = scheduler(rows, least)
    s.add(request(0, prompt, 9, k))
    while s.running or s.waiting:
        items, _ = s.plan()
        check(s, items, rows, least)
        play(s, items)


@pytest.mark.parametrize(("rows", "least", "k"), [(8, 2, 6), (2, 2, 0), (3, 1, 3)])
def test_a_budget_that_could_stop_for_ever_is_refused(rows: int, least: int, k: int) -> None:
    with pytest.raises(RequestError, match=f"k={k} does not fit into a step of {rows} rows"):
        scheduler(rows, least).add(request(0, 3, 9, k))


def test_rows_and_pages_cover_the_nodes_of_a_tree() -> None:
    s = scheduler(rows=16, pages=5)
    s.add(request(0, 3, 9, k=2, nodes=7))
    ((item,), _) = s.plan()
    assert (item.k, item.nodes, s.rows(item)) == (2, 7, 10)
    assert s._missing(item) == 3  # slots 0 .. 9
    with pytest.raises(RequestError, match="nodes=16 does not fit into a step of 16 rows"):
        s.add(request(1, 3, 1, k=2, nodes=16))
    with pytest.raises(RequestError, match="need 6 KV pages, the pool has 5"):  # 14 tokens and 7 nodes behind them
        s.add(request(1, 5, 9, k=2, nodes=7))


def test_a_step_that_drafts_nothing_has_no_tree() -> None:
    s = scheduler()
    s.add(request(0, 3, 1, k=4, nodes=7))  # the step's own token is the last
    s.add(request(1, 3, 9, nodes=7))
    assert [(i.k, i.nodes, s.rows(i)) for i in s.plan()[0]] == [(0, 0, 3), (0, 0, 3)]


def test_a_request_that_never_fits_is_refused_and_not_queued() -> None:
    s = scheduler(pages=3)
    with pytest.raises(RequestError, match="need 4 KV pages, the pool has 3"):
        s.add(request(0, 10, 5))
    assert not s.waiting
    s.add(request(0, 10, 1))


def test_a_long_prompt_shares_steps_with_those_that_decode() -> None:
    s = scheduler(rows=8)
    decoding = [s.add(request(n, 1, 30)) for n in range(3)]
    play(s, s.plan()[0])
    long = s.add(request(3, 40, 1))
    steps = 0
    while long in s.running or long in s.waiting:
        items, _ = s.plan()
        assert {i.sequence for i in items} >= {*decoding}
        play(s, items)
        steps += 1
    assert steps == 8  # 40 rows in chunks of 5
    assert all(len(q.output) == 1 + 8 for q in decoding)


def test_a_prompt_is_not_cut_into_crumbs() -> None:
    s = scheduler(rows=4, least=2)
    s.add(request(0, 5, 9))
    chunks = []
    for _ in range(2):
        items, _ = s.plan()
        chunks += [(i.start, i.end) for i in items]
        play(s, items)
    assert chunks == [(0, 3), (3, 5)]


def test_no_chunk_has_fewer_rows_than_it_may() -> None:
    """Two at least: a decode step without a draft feeds the token before again; a prompt of one token is filled up."""
    s = scheduler(least=2)
    s.add(request(0, 1, 3))
    s.add(request(1, 5, 3))
    s.add(request(2, 1, 3, k=1))
    first, _ = s.plan()
    assert [(i.start, i.end, s.rows(i)) for i in first] == [(0, 1, 2), (0, 5, 5), (0, 1, 2)]
    play(s, first)
    second, _ = s.plan()
    assert [(i.start, i.end, s.rows(i)) for i in second] == [(0, 2, 2), (4, 6, 2), (1, 2, 2)]


def test_everybody_gets_a_turn() -> None:
    """More sequences than rows: nobody waits longer than a round."""
    s = scheduler(rows=4)
    names = range(9)
    for n in names:
        s.add(request(n, 1, 60))
    turns: Counter[int] = Counter()
    for _ in range(90):
        items, _ = s.plan()
        turns.update(i.sequence.request.id for i in items)
        play(s, items)
    assert sum(turns.values()) == 4 * 90
    assert max(turns.values()) - min(turns.values()) <= 1


def test_everybody_gets_a_turn_while_others_are_preempted() -> None:
    """A plan that is given up does not cost its sequences their turn."""
    s = scheduler(rows=3, pages=12, running=8)
    for n in range(8):
        s.add(request(n, 8, 20, k=1))
    gaps: Counter[int] = Counter()
    for _ in range(60):
        oldest = min(s.running, key=lambda q: q.request.id, default=None)
        items, _ = s.plan()
        for q in s.running:
            gaps[q.request.id] += 1
        for i in items:
            gaps[i.sequence.request.id] = 0
        if oldest is not None:
            assert gaps[oldest.request.id] <= len(s.running)
        play(s, items)


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    s = scheduler(rows=32, pages=6, running=3)
    old, middle, young = (s.add(request(n, 7, 9)) for n in range(3))
    play(s, s.plan()[0])
    later = s.add(request(3, 1, 1))
    play(s, s.plan()[0])
    items, preempted = s.plan()  # the ninth slot of each needs a third page
    assert preempted == [young]
    assert [i.sequence for i in items] == [old, middle]
    assert s.waiting == [young, later]
    assert young.tokens == [1] * 7 + [2] * 2  # its tokens stay
    assert young.table.length == 0


def test_draft_lengths_do_not_depend_on_the_load() -> None:
    for others in (0, 8):
        s = scheduler(rows=64, running=9)
        s.add(request(0, 3, 9, k=4))
        for n in range(others):
            s.add(request(n + 1, 5, 9, k=2))
        assert s.plan()[0][0].k == 4


@pytest.mark.parametrize(
    ("prompt", "output", "context", "k"), [(3, 9, 99, 4), (3, 3, 99, 2), (3, 1, 99, 0), (3, 9, 6, 2)]
)
def test_no_more_drafts_than_can_be_emitted(prompt: int, output: int, context: int, k: int) -> None:
    s = scheduler(context=context)
    s.add(request(0, prompt, output, k=4))
    assert s.plan()[0][0].k == k


def test_requests_run_in_the_order_of_their_coming() -> None:
    s = scheduler(running=3)
    added = [s.add(request(n, 1, 1)) for n in range(7)]
    done: list[Sequence] = []
    while s.running or s.waiting:
        items, _ = s.plan()
        done += [i.sequence for i in items]
        play(s, items)
    assert done == added


def test_a_random_order_of_removal_leaves_no_page() -> None:
    s = scheduler(pages=40)
    added = [s.add(request(n, 9, 9)) for n in range(9)]
    play(s, s.plan()[0])
    for n in np.random.default_rng(0).permutation(9):
        s.remove(added[n])
    assert s._pool.free == 40
    assert s.plan() == ([], [])


class StandingTurn(Scheduler):
    """The first always comes first."""

    def plan(self) -> tuple[list[Item], list[Sequence]]:
        self._turn = 0
        return super().plan()


class Crumbs(Scheduler):
    """The rest of a prompt may be too short for a chunk."""

    def _item(self, sequence: Sequence, budget: int, most: int) -> Item | None:
        item = super()._item(sequence, budget, most)
        if item is None or item.decodes:
            return item
        return item._replace(end=min(item.start + budget, len(sequence.tokens) - 1))


class OldestGoes(Scheduler):
    def _preempt(self) -> Sequence:
        self.running.reverse()
        return super()._preempt()


class Overbooked(Scheduler):
    def rows(self, item: Item) -> int:
        return item.end - item.start


class TreesForNothing(Scheduler):
    """The nodes of a tree are not counted."""

    def rows(self, item: Item) -> int:
        return super().rows(item._replace(nodes=0))


FAULTS = {
    TreesForNothing: test_rows_and_pages_cover_the_nodes_of_a_tree,
    StandingTurn: test_everybody_gets_a_turn,
    Crumbs: test_a_prompt_is_not_cut_into_crumbs,
    OldestGoes: test_the_youngest_gives_way_and_comes_back_first,
    Overbooked: test_no_chunk_has_fewer_rows_than_it_may,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: type[Scheduler], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Scheduler", fault)
    with pytest.raises(AssertionError):
        FAULTS[fault]()
