"""Reuse of prefixes, as the engine sees it: which pages are found again, and what a draft is told of their tokens.

A draft may read the target's states of the prompt. They are kept beside the pages, so that a request drafts the same
whether its prompt was read or found. Knows no model, rule or policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft.base import Proposer, Seen
from draftproof.kv.pages import PagePool
from draftproof.kv.prefix import NoPrefixes, PrefixCache, Prefixes
from draftproof.kv.states import States, StateStore
from draftproof.scheduler import Sequence as Running
from draftproof.step import Done


class Reuse:
    """Args: the target's pool, and whether prefixes are kept at all."""

    def __init__(self, pool: PagePool, on: bool) -> None:
        self.on, self._pool = on, pool
        self.prefixes: Prefixes = PrefixCache(pool) if on else NoPrefixes()
        self._states: list[StateStore] = []  # none until the target hands out states

    def hand_over(self, adopted: Sequence[Running], proposer: Proposer) -> None:
        """Tell the proposer of tokens that the target does not read, as if it had read them."""
        if adopted:
            proposer.observe([Seen(s, 0, s.table.length, None, self._known(s)) for s in adopted])

    def _known(self, sequence: Running) -> States | None:
        return self._states[0].read(sequence.table.pages) if self._states else None

    def note(self, sequences: Sequence[Running], done: Done) -> None:
        """After a step, before any of its pages is given back."""
        if not self.on:
            return
        for store in self._states:
            store.copy_pages(done.copies)
        for sequence, seen in zip(sequences, done.seen, strict=True):
            if seen.hidden is not None and seen.rows:
                self._store(seen.hidden.shape[1:]).write(sequence.table.pages, seen.start, seen.hidden)

    def _store(self, shape: tuple[int, ...]) -> StateStore:
        if not self._states:
            self._states.append(StateStore(self._pool.total, self._pool.page_size, shape))
        return self._states[0]
