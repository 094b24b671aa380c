"""Who runs in the next step, and how many tokens each: admission, chunked prefill, preemption.

Whole numbers only. Nothing here changes a token: draft lengths come from the length policy and the sequence's own
limits, never from the load; a sequence that does not fit into this step waits for the next one. Knows nothing of
models, laws or texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from draftproof.kv.pages import PagePool
from draftproof.kv.prefix import NoPrefixes, Prefixes
from draftproof.kv.table import PageTable
from draftproof.length.base import LengthPolicy
from draftproof.types import Kind, Request, RequestError, StepTrace, TokenLogprob

_MOST_SCORED = 128  # rows of logits a step for tokens of prompts: 25 MB of them with 49,152 tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way. `tokens` is prompt and emitted tokens; the table holds KV for a prefix of them."""

    request: Request
    table: PageTable
    tokens: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)  # one for each emitted token
    steps: list[StepTrace] = field(default_factory=list)
    reused: int = 0  # tokens of the prompt that were found when it was first admitted
    scores: list[TokenLogprob] = field(default_factory=list)  # of the prompt, from its second token on, where asked for

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def unscored(self) -> int:
        """Tokens of the prompt whose log-probabilities are asked for and not known yet."""
        asked = self.request.params.prompt_logprobs is not None
        return len(self.request.prompt) - 1 - len(self.scores) if asked else 0


class Item(NamedTuple):
    """Feed tokens[start:end]. If that reaches the last token, decode: draft up to `k` tokens and judge them.

    The draft may be a tree of up to `nodes` nodes, `k` deep.
    """

    sequence: Sequence
    start: int
    end: int
    k: int
    nodes: int = 0

    @property
    def drafted(self) -> int:
        """Most rows that the draft may take."""
        return max(self.k, self.nodes)

    @property
    def decodes(self) -> bool:
        return self.end == len(self.sequence.tokens)

    @property
    def scored(self) -> int:
        """Rows, of the last ones that do not decode, whose logits are read for log-probabilities of the prompt."""
        known = len(self.sequence.scores)  # row i scores token i + 1
        return max(0, min(self.end - known, self.sequence.unscored))


class Limits(NamedTuple):
    """`min_rows`: fewest rows a chunk may have; committed tokens are fed again to reach it. Rows are per step.

    `exact_trees`: what rows of trees leave in pages equals what chains would have left, to the last bit.
    """

    running: int
    rows: int
    min_rows: int
    context: int
    exact_trees: bool = True


class Scheduler:
    def __init__(self, pool: PagePool, limits: Limits, lengths: LengthPolicy, prefixes: Prefixes | None = None) -> None:
        self._pool, self._limits, self._lengths = pool, limits, lengths
        self._prefixes: Prefixes = prefixes or NoPrefixes()
        self.adopted: list[Sequence] = []  # in the latest plan
        self.waiting: list[Sequence] = []  # oldest first
        self.running: list[Sequence] = []  # oldest first
        self._turn = 0  # id of the request that comes first in the next step

    def add(self, request: Request) -> Sequence:
        most = min(len(request.prompt) + request.params.max_tokens, self._limits.context)
        most += max(self._limits.min_rows, request.nodes)  # rows behind the end: filled up, or of a tree
        if self._pages(most) > self._pool.total:
            raise RequestError(
                f"prompt and max_tokens need {self._pages(most)} KV pages, the pool has {self._pool.total}: "
                "lower max_tokens or give the model more KV memory"
            )
        for name, drafted in (("k", request.k), ("nodes", request.nodes)):
            if drafted + 2 * self._limits.min_rows - 1 > self._limits.rows:  # what _item cannot cut must fit whole
                rows = self._limits.rows
                raise RequestError(f"{name}={drafted} does not fit into a step of {rows} rows: lower {name}")
        sequence = Sequence(request, PageTable(self._pool))
        self.waiting.append(sequence)
        return sequence

    def remove(self, sequence: Sequence, sound: bool = True) -> None:
        """The request ended: its pages are free or cached at once. Those that are not `sound` are never found again."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
        if sound:
            self._keep(sequence, len(sequence.tokens))
        else:
            self._prefixes.drop(sequence.table.pages)
        sequence.table.close()

    def stored(self, items: Iterable[Item]) -> None:
        """These were computed and committed. Full pages of prompts can be found from now on, those of outputs at their
        end, since a stop string may still take tokens back. Slots that will be fed again wait."""
        for item in items:
            sequence = item.sequence
            if item.start < len(sequence.request.prompt):
                again = self._limits.min_rows - 1
                self._keep(sequence, min(len(sequence.request.prompt), sequence.table.length - again))

    def _keep(self, sequence: Sequence, slots: int) -> None:
        if sequence.request.nodes and not self._limits.exact_trees:
            return
        committed = sequence.tokens[: max(0, min(slots, sequence.table.length))]
        self._prefixes.keep(committed, sequence.table.pages, sequence.request.params.cache_salt)

    def _adopt(self, sequence: Sequence) -> None:
        """Begin with the pages that others have left of the same tokens. At least two tokens are read, so that a draft
        knows as much of the prompt in that step as it would have known without; none are skipped that are scored."""
        params, again = sequence.request.params, 1 if sequence.kinds else 0
        most = max(0, len(sequence.tokens) - max(self._limits.min_rows, 2) - again)
        pages = (
            [] if params.prompt_logprobs is not None else self._prefixes.find(sequence.tokens[:most], params.cache_salt)
        )
        if pages:
            sequence.table = PageTable(self._pool, pages, len(pages) * self._pool.page_size)
            self.adopted.append(sequence)
        if not sequence.steps:
            sequence.reused = sequence.table.length

    def plan(self) -> tuple[list[Item], list[Sequence]]:
        """The step's items, and the sequences that were preempted to make room."""
        preempted: list[Sequence] = []
        self.adopted = []
        while len(self.running) < self._limits.running and self.waiting:
            self._adopt(self.waiting[0])
            self.running.append(self.waiting.pop(0))
        self.running.sort(key=lambda s: s.request.id)
        while True:
            items, turn = self._items()
            if sum(map(self._missing, items)) <= self._pool.available:
                self._turn = turn
                return items, preempted
            preempted.append(self._preempt())

    def _items(self) -> tuple[list[Item], int]:
        """Sequences in turn while the row budget lasts; the first that is left out comes first next time.

        Only those that score a prompt are left out, and others go on, once the step has no more rows of logits for it.
        """
        budget, room = self._limits.rows, _MOST_SCORED
        items, left = list[Item](), list[int]()
        first = bisect_left(self.running, self._turn, key=lambda s: s.request.id)
        for sequence in [*self.running[first:], *self.running[:first]]:
            if sequence.unscored and room < self._limits.min_rows:
                left.append(sequence.request.id)
                continue
            item = self._item(sequence, budget, room if sequence.unscored else len(sequence.tokens))
            if item is None:
                left.append(sequence.request.id)
                break
            budget -= self.rows(item)
            room -= item.scored
            items.append(item)
        return items, left[0] if left else 0

    def _item(self, sequence: Sequence, budget: int, most: int) -> Item | None:
        if sequence.kinds and sequence.table.length < len(sequence.tokens) - 1:
            return self._reread(sequence, budget)
        return self._onward(sequence, budget, most)

    def _onward(self, sequence: Sequence, budget: int, most: int) -> Item | None:
        """A prompt that is read, `most` tokens of it, or a sequence that decodes as it did in the step before."""
        total, least = len(sequence.tokens), self._limits.min_rows
        k = self._draft_length(sequence)
        start = max(0, min(sequence.table.length, total - least if k + 1 < least else total - 1))
        whole = Item(sequence, start, total, k, sequence.request.nodes if k else 0)
        if self.rows(whole) <= budget and total - start <= most:
            return whole
        end = min(start + min(budget, most), total - least)  # the rest is a chunk too: a decode step is never cut
        return Item(sequence, start, end, 0) if end - start >= least else None

    def _reread(self, sequence: Sequence, budget: int) -> Item | None:
        """After a preemption: all but the last token at first, and no decoding, since a draft may rest on their states.

        The next step then drafts as it would have done without the preemption.
        """
        known = len(sequence.tokens) - 1
        start = max(0, min(sequence.table.length, known - self._limits.min_rows))
        item = Item(sequence, start, min(start + budget, known), 0)
        return item if self.rows(item) <= budget else None

    def filled(self, items: Iterable[Item], drafted: Iterable[int]) -> list[Item]:
        """The items once their drafts are there, `drafted` tokens each: rows and pages that these leave go to prompts
        that the step reads a part of."""
        made = [item._replace(k=n, nodes=0) for item, n in zip(items, drafted, strict=True)]
        rows = self._limits.rows - sum(map(self.rows, made))
        pages = self._pool.available - sum(map(self._missing, made))
        for n, item in enumerate(made):
            more = self._room_for(item, rows, pages)
            made[n] = item._replace(end=item.end + more)
            rows -= more
            pages -= self._pages(item.end + more) - self._pages(item.end)
        return made

    def _room_for(self, item: Item, rows: int, pages: int) -> int:
        """More tokens of a prompt. As in the plan, what is left behind them is a chunk too."""
        sequence = item.sequence
        if item.decodes or sequence.kinds or sequence.unscored:
            return 0
        slots = (self._pages(item.end) + pages) * self._pool.page_size
        return max(0, min(rows, min(slots, len(sequence.tokens) - self._limits.min_rows) - item.end))

    def _draft_length(self, sequence: Sequence) -> int:
        """No more than could be emitted: the step adds one token of its own."""
        total, request = len(sequence.tokens), sequence.request
        left = len(request.prompt) + request.params.max_tokens - total
        most = max(0, min(left - 1, self._limits.context - total - 1))
        return self._lengths.choose(sequence, len(self.running), most)

    def rows(self, item: Item) -> int:
        return max(item.end - item.start + item.drafted, self._limits.min_rows)

    def _missing(self, item: Item) -> int:
        table, end = item.sequence.table, item.start + self.rows(item)
        return max(0, self._pages(end) - len(table.pages)) + len(table.shared(item.start, end))

    def _pages(self, slots: int) -> int:
        return -(-slots // self._pool.page_size)

    def _preempt(self) -> Sequence:
        """The youngest gives its pages back and starts anew later; its tokens stay."""
        sequence = self.running.pop()
        if sequence in self.adopted:
            self.adopted.remove(sequence)
        stops = sequence.request.params.stop
        self._keep(sequence, len(sequence.request.prompt if stops else sequence.tokens))
        sequence.table.roll_back(0)
        self.waiting.insert(0, sequence)
        return sequence
