"""A second, smaller model proposes: autoregressive, batched over sequences, with KV pages of its own.

Its law is the target's recipe (penalties, masks, temperature, top-k, top-p, min-p) on its own logits, and a token is
drawn from exactly that law. Its state is caught up or rolled back by comparing what it was fed with what was committed,
so it cannot go stale. Knows nothing of the target's model, of verdicts or of stop rules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof import arrays
from draftproof.draft.base import Ask, Seen
from draftproof.kv.pages import PagePool
from draftproof.kv.table import PageTable, reserve
from draftproof.model.base import TargetModel
from draftproof.prices import Pace
from draftproof.types import Chunk, Draft, Floats, Law, RequestError

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _State:
    table: PageTable
    tokens: list[int] = field(default_factory=list)  # what the table's slots hold, one for one


@dataclass(slots=True)
class _Work:
    """One ask on its way: `tokens` are committed and drawn ones in the draft's ids, `drawn` in the target's."""

    ask: Ask
    state: _State
    tokens: list[int]
    pace: Pace
    drawn: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    error: str | None = None
    enough: bool = False  # the next token does not pay

    @property
    def goes_on(self) -> bool:
        return not (self.error or self.enough) and len(self.laws) < self.ask.k and self.pace.wants_a_pass()

    @property
    def unfed(self) -> int:
        return len(self.tokens) - len(self.state.tokens)

    @property
    def most(self) -> int:
        """Slots that the table needs until the whole draft is drawn."""
        return len(self.tokens) + self.ask.k - len(self.laws)


class ModelProposer:
    """Args: the draft model and the target's vocabulary size.

    The draft's rows may differ from the target's by padding: ids beyond the target's are never proposed, and ids that
    the draft does not know get no mass.
    """

    def __init__(self, model: TargetModel, vocab: int) -> None:
        self.model, self._vocab = model, vocab
        self.pool = PagePool(model.info.pages, model.info.page_size)
        self._context = min(model.info.context, model.info.pages * model.info.page_size)
        self._states: dict[int, _State] = {}
        self._said = False
        self.passes = 0

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.passes = 0
        works = [self._begin(ask) for ask in asks]
        waiting = [w for w in works if w is not None]
        while waiting:
            active = self._wave(waiting)
            waiting = waiting[len(active) :]
            while active:
                for work, logits in self._feed(active):
                    self._draw(work, logits)
                active = [w for w in active if w.goes_on]
        return [Draft() if w is None else Draft(tuple(w.drawn), tuple(w.laws), w.error) for w in works]

    def observe(self, seen: Sequence[Seen]) -> None:
        del seen  # the next proposal compares tokens

    def forget(self, request: int) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            state.table.close()

    def audit(self) -> None:
        self.pool.audit(s.table for s in self._states.values())

    def _begin(self, ask: Ask) -> _Work | None:
        """Roll the state back to the longest prefix that still stands, leaving at least the last token to feed."""
        tokens = self._read(ask.view.tokens)
        if not tokens or (ask.prices is not None and not ask.prices.pass_pays):
            return None
        if len(tokens) + ask.k > self._context:
            if not self._said:
                _log.warning("the draft's context of %d tokens is full: going on without it", self._context)
                self._said = True
            return None
        state = self._states.setdefault(ask.view.request.id, _State(PageTable(self.pool)))
        same = _common(state.tokens, tokens)
        del state.tokens[min(same, len(tokens) - 1) :]
        state.table.roll_back(len(state.tokens))
        return _Work(ask, state, tokens, Pace(ask.prices))

    def _wave(self, works: Sequence[_Work]) -> list[_Work]:
        """The first works that have room together. The states of all others give way; they are caught up later."""
        wave: list[_Work] = []
        for work in works:
            trial = [*wave, work]
            if self._lacking(trial) > self.pool.free:
                self._evict_all_but(trial)
            if self._lacking(trial) > self.pool.free:
                break
            wave = trial
        return wave

    def _lacking(self, works: Sequence[_Work]) -> int:
        size = self.pool.page_size
        return sum(max(0, -(-w.most // size) - len(w.state.table.pages)) for w in works)

    def _evict_all_but(self, works: Sequence[_Work]) -> None:
        for state in self._states.values():
            if all(state is not w.state for w in works):
                state.tokens.clear()
                state.table.roll_back(0)

    def _feed(self, works: Sequence[_Work]) -> list[tuple[_Work, Floats]]:
        """Feed what the states lack, in as many passes as needed; the logits after the last token of each work."""
        logits: dict[int, Floats] = {}
        least = self.model.info.min_rows
        while any(w.unfed for w in works):
            chosen = self._fit([w for w in works if w.unfed])
            with reserve([(w.state.table, start, max(end - start, least)) for w, start, end in chosen]) as slots:
                self.model.copy_pages(slots.copies)
                self.passes += 1
                out = self.model.forward([_chunk(*c, least) for c in chosen])
                slots.commit([end for _, _, end in chosen])
            finished = (row for row in out.logits)
            for work, start, end in chosen:
                work.state.tokens = work.tokens[:end]
                if not work.unfed:
                    logits[id(work)] = next(finished)
                    for _ in range(least - (end - start)):
                        next(finished)
        return [(w, logits[id(w)]) for w in works]

    def _fit(self, works: Sequence[_Work]) -> list[tuple[_Work, int, int]]:
        """(work, start, end) of the chunks of one pass, within the model's most and fewest rows."""
        chosen, budget, least = [], self.model.info.max_rows, self.model.info.min_rows
        for work in works:
            end = min(len(work.tokens), len(work.state.tokens) + budget)
            start = max(0, min(len(work.state.tokens), end - least))
            rows = max(end - start, least)
            if end > start and rows <= budget:
                chosen.append((work, start, end))
                budget -= rows
        return chosen

    def _draw(self, work: _Work, logits: Floats) -> None:
        view = work.ask.view
        prompt = view.request.prompt
        own = self._fitted(logits)
        try:
            law = work.ask.laws.law(own, prompt, [*view.tokens[len(prompt) :], *work.drawn])
        except RequestError as error:
            work.error = f"draft model: {error}"
            return
        work.enough = not work.pace.takes(own)
        if work.enough:
            return
        token = work.ask.draw(law, work.ask.noise, len(work.laws))
        work.tokens.append(self._own(token))
        work.drawn.append(token)
        work.laws.append(law)

    def _read(self, tokens: Sequence[int]) -> list[int]:
        """A text of the target's ids in the draft's."""
        return list(tokens)

    def _own(self, token: int) -> int:
        """The draft's id of a token that it may propose."""
        return token

    def _fitted(self, logits: Floats) -> Floats:
        """The draft's logits, one for each of the target's ids."""
        if len(logits) >= self._vocab:
            return logits[: self._vocab]
        rest = arrays.like(np.full(self._vocab - len(logits), -np.inf, dtype=np.float32), logits)
        whole: Floats = arrays.namespace(logits).concat([logits, rest])
        return whole


def _chunk(work: _Work, start: int, end: int, least: int) -> Chunk:
    """A prompt of one token may be too short: rows behind fill it up, and are not read."""
    rows = work.tokens[start:end]
    padding = max(0, least - len(rows))
    wanted = 1 + padding if end == len(work.tokens) else 0
    return Chunk(tuple(rows + rows[-1:] * padding), start, work.state.table.pages, wanted)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix; it is nearly all of the shorter one."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
