"""A trained head proposes: one small decoder layer on the target's own hidden states (EAGLE-3: Li et al. 2025).

Row j of the head is token j + 1 with the target's state after token j; it says what token j + 2 will be. Beyond what
the target has read, a row takes the output of the row before in place of the state. Rows of drafted tokens are
tentative: they are dropped when the draft is drawn, and made anew from the target's states once tokens are committed,
so nothing of a rejected token stays. Tokens outside of the head's vocabulary have q = 0.

Knows nothing of the target's model, of verdicts or of stop rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.draft.base import Ask, Seen
from draftproof.draft.growth import Growth
from draftproof.kv.pages import PagePool
from draftproof.kv.table import PageTable, reserve
from draftproof.model.base import Head
from draftproof.prices import Pace
from draftproof.types import Chunk, Draft, Law, RequestError

_MOST_ROWS = 256  # of one pass of the head
States = NDArray[np.float32]


@dataclass(slots=True)
class _State:
    """What is known of one sequence: rows first .. first + table.length - 1 are in the head's cache.

    `waiting` are the target's states of the tokens behind them. `logits` and `output` are of the last row.
    """

    first: int
    table: PageTable
    waiting: list[States] = field(default_factory=list)
    known: int = 0  # tokens whose states have been seen
    logits: States | None = None
    output: States | None = None

    @property
    def fed(self) -> int:
        return self.first + self.table.length


@dataclass(slots=True)
class _Work:
    """One draft on its way: the row that says the next token, and what was drawn."""

    ask: Ask
    table: PageTable
    logits: States
    output: States
    pace: Pace
    tokens: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    error: str | None = None
    enough: bool = False  # no token may come next, or none that pays

    @property
    def most_rows(self) -> int:
        return max(self.ask.k - 1, 0)

    @property
    def goes_on(self) -> bool:
        return not (self.error or self.enough) and len(self.tokens) < self.ask.k and self.pace.wants_a_pass()


class _Tentative(Protocol):
    """A draft on its way: `most_rows` rows behind those of `table` at most, given back once it is drawn."""

    table: PageTable

    @property
    def most_rows(self) -> int: ...


T = TypeVar("T", bound=_Tentative)


class HeadProposer:
    """Args: the head, and the vocabulary size of the target, which must hand out the states that the head reads.

    `worth`: how likely a node must be to be put into a tree; what one more row of the target's pass costs, in tokens.
    """

    def __init__(self, head: Head, vocab: int, worth: float = 0.0) -> None:
        self.head, self._vocab, self.worth = head, vocab, worth
        self.pool = PagePool(head.pages, head.page_size)
        self._states: dict[int, _State] = {}
        self.passes = 0

    def observe(self, seen: Sequence[Seen]) -> None:
        for s in seen:
            if s.view.request.k and s.rows:
                self._note(s)

    def _note(self, seen: Seen) -> None:
        if seen.hidden is None:
            raise ValueError("the target was loaded without hidden_layers: a head reads its states")
        state = self._states.get(seen.view.request.id)
        if state is None or seen.start > state.known:  # what came before is not known: begin here
            self.forget(seen.view.request.id)
            state = self._states[seen.view.request.id] = _State(seen.start, PageTable(self.pool), known=seen.start)
        new = seen.hidden[state.known - seen.start :]
        if len(new):
            state.waiting.append(new)
            state.known += len(new)

    def forget(self, request: int) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            state.table.close()

    def audit(self) -> None:
        self.pool.audit(s.table for s in self._states.values())

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Trees for those who may have one, chains for the others."""
        ready = {n: state for n, ask in enumerate(asks) if (state := self._ready(ask)) is not None}
        self.passes = 1 if ready else 0
        self._catch_up([(asks[n], state) for n, state in ready.items()])
        chains = {n: _begun(asks[n], state) for n, state in ready.items() if not asks[n].nodes}
        trees = {n: self._sprout(asks[n], state) for n, state in ready.items() if asks[n].nodes}
        for some in self._waves(list(chains.values())):
            self._draw(some)
        for wave in self._waves(list(trees.values())):
            self._grow(wave)
        drafts = {n: Draft(tuple(w.tokens), tuple(w.laws), w.error) for n, w in chains.items()}
        drafts |= {n: t.draft(asks[n].nodes, self.worth, self._vocab) for n, t in trees.items()}
        return [drafts.get(n, Draft()) for n in range(len(asks))]

    def _ready(self, ask: Ask) -> _State | None:
        """The sequence's state, if a pass may pay and the target's states of all tokens but the last are there."""
        state = self._states.get(ask.view.request.id)
        if ask.prices is not None and not ask.prices.pass_pays:
            return None
        return state if state is not None and state.known == len(ask.view.tokens) - 1 else None

    def _catch_up(self, pairs: Sequence[tuple[Ask, _State]]) -> None:
        """Feed what the target has read since. All rows of a sequence but its last give no logits."""
        for _, state in pairs:
            if len(state.waiting) > 1:
                state.waiting = [np.concatenate(state.waiting)]
        while behind := [(ask, state) for ask, state in pairs if state.waiting]:
            parts, room = list[tuple[Ask, _State, States]](), _MOST_ROWS
            for ask, state in behind:
                states = state.waiting[0][:room]
                room -= len(states)
                if len(states):
                    parts.append((ask, state, states))
            self._feed(parts)

    def _waves(self, works: Sequence[T]) -> Iterator[list[T]]:
        """Groups whose rows find room together; each is drawn, and its pages are free again, before the next comes."""
        wave, room = list[T](), self.pool.free
        for work in works:
            pages = -(-(work.table.length + work.most_rows) // self.pool.page_size) - len(work.table.pages)
            if wave and pages > room:
                yield wave
                wave, room = [], self.pool.free
            wave.append(work)
            room -= pages
        if wave:
            yield wave

    def _feed(self, parts: Sequence[tuple[Ask, _State, States]]) -> None:
        fused = self.head.fuse(np.concatenate([states for _, _, states in parts]))
        with reserve([(state.table, None, len(states)) for _, state, states in parts]) as slots:
            self.head.copy_pages(slots.copies)
            chunks = [
                Chunk(tuple(ask.view.tokens[state.fed + 1 : state.fed + 1 + len(states)]), state.table.length,
                      state.table.pages, 1)
                for ask, state, states in parts
            ]  # fmt: skip
            out = self.head.forward(chunks, fused)
            slots.commit([state.table.length + len(states) for _, state, states in parts])
        ends = np.cumsum([len(states) for _, _, states in parts])
        for (_, state, states), end, logits in zip(parts, ends, out.logits, strict=True):
            rest = state.waiting[0][len(states) :]
            state.waiting = [rest] if len(rest) else []
            state.logits, state.output = logits, out.outputs[end - 1]

    def _draw(self, works: Sequence[_Work]) -> None:
        """Token by token, all sequences in one pass; the rows behind the committed ones are given back at the end."""
        with reserve([(w.table, None, w.most_rows) for w in works]) as slots:
            self.head.copy_pages(slots.copies)
            active = list(works)
            while active:
                for work in active:
                    self._draw_one(work)
                active = [w for w in active if w.goes_on]
                if active:
                    self._go_on(active)

    def _draw_one(self, work: _Work) -> None:
        prompt, tokens = work.ask.view.request.prompt, work.ask.view.tokens
        try:
            law = work.ask.laws.law(work.logits, prompt, [*tokens[len(prompt) :], *work.tokens], self.head.ids)
        except RequestError as error:
            if np.isfinite(work.logits).all():
                work.enough = True
            else:
                work.error = f"draft head: {error}"
            return
        work.enough = not work.pace.takes(work.logits)
        if work.enough:
            return
        work.tokens.append(work.ask.draw(law, work.ask.noise, len(work.laws)))
        work.laws.append(law)

    def _sprout(self, ask: Ask, state: _State) -> Growth:
        work = _begun(ask, state)
        return Growth(work.table, work.logits, work.output, self.head.ids, ask.k)

    def _grow(self, trees: Sequence[Growth]) -> None:
        """Level by level, all sequences in one pass. Rows of a level see their own path, so the levels above, which are
        tentative, are fed again with it."""
        with reserve([(t.table, None, t.most_rows) for t in trees]) as slots:
            self.head.copy_pages(slots.copies)
            active = [t for t in trees if t.spread(self.worth)]
            while active:
                out = self.head.forward([t.chunk() for t in active], np.concatenate([t.states for t in active]))
                wanted = iter(out.logits)
                rows = iter(out.outputs)
                for tree in active:
                    tree.take([next(rows) for _ in tree.fed], [next(wanted) for _ in range(tree.fresh)])
                active = [t for t in active if t.spread(self.worth)]

    def _go_on(self, works: Sequence[_Work]) -> None:
        self.passes += 1
        chunks = [Chunk((w.tokens[-1],), w.table.length + len(w.tokens) - 1, w.table.pages, 1) for w in works]
        out = self.head.forward(chunks, np.stack([w.output for w in works]))
        for work, logits, output in zip(works, out.logits, out.outputs, strict=True):
            work.logits, work.output = logits, output


def _begun(ask: Ask, state: _State) -> _Work:
    assert state.logits is not None  # _catch_up has seen to it
    assert state.output is not None
    return _Work(ask, state.table, state.logits, state.output, Pace(ask.prices))
