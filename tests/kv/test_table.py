"""Page tables against a plain model: lists of tokens and a store that is really written and copied (I6, I7, I11)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from draftproof.kv.pages import AuditError, OutOfPages, PageError, PagePool
from draftproof.kv.table import PageTable, Reservation, TableError, reserve


@dataclass
class Sequence:
    table: PageTable
    tokens: list[int] = field(default_factory=list)
    start: int = 0
    fed: list[int] | None = None  # rows of the open extension

    def content(self) -> list[int]:
        if self.fed is None:
            return self.tokens
        return self.tokens[: self.start] + self.fed + self.tokens[self.start + len(self.fed) :]


class Interrupt(Exception):
    pass


class Program:
    """Random operations; after each one, every sequence is read back through its table and the pool is audited."""

    def __init__(self, seed: int, total: int, size: int) -> None:
        self.rng, self.pool = random.Random(seed), PagePool(total, size)
        self.store: dict[tuple[int, int], int] = {}
        self.live: list[Sequence] = []
        self.clock = 0
        self.seen: Counter[str] = Counter()
        self.ops = [*[self.extend, self.end, self.batch] * 4, self.fork, self.fork, self.close]

    def run(self, operations: int) -> Counter[str]:
        for _ in range(operations):
            if not self.live or (len(self.live) < 6 and self.rng.random() < 0.1):
                self.live.append(Sequence(PageTable(self.pool)))
            self.rng.choice(self.ops)(self.rng.choice(self.live))
            self.check()
        while self.live:
            self.close(self.live[0])
            self.check()
        assert self.pool.free == self.pool.total, "pages left over when nothing lives"
        return self.seen

    def check(self) -> None:
        size = self.pool.page_size
        self.pool.audit([sequence.table for sequence in self.live])
        for s in self.live:
            want, pages = s.content(), s.table.pages
            assert (s.table.length, s.table.tentative) == (len(s.tokens), len(want) - len(s.tokens)), "slots"
            assert len(pages) == -(-len(want) // size), "pages are not what the slots need"
            have = [self.store.get((pages[slot // size], slot % size)) for slot in range(len(want))]
            assert have == want, "content"

    def books(self) -> object:
        tables = [(s.table.pages, s.table.length, s.table.tentative) for s in self.live]
        return tables, sorted(self.pool._free), list(self.pool._refs)

    def plan(self, s: Sequence) -> tuple[int, list[int]]:
        """A start, at times a few committed tokens back, and the rows to feed: those tokens again, then new ones."""
        back = self.rng.randint(1, 3) if self.rng.random() < 0.3 else 0
        start = max(0, len(s.tokens) - back)
        self.seen["fed again"] += start < len(s.tokens)
        rows = self.rng.randint(0, self.rng.choice((3, 3 * self.pool.page_size)))
        self.clock += rows
        return start, (s.tokens[start:] + list(range(self.clock - rows, self.clock)))[:rows]

    def write(self, copies: list[tuple[int, int]], writers: list[Sequence]) -> None:
        size = self.pool.page_size
        targets = {target for _, target in copies}
        assert len(targets) == len(copies), "two copies into one page"
        assert not targets & {source for source, _ in copies}, "the order of the copies matters"
        for source, target in copies:
            self.seen["copy"] += 1
            for offset in range(size):
                self.store[target, offset] = self.store.get((source, offset), -1)
        for s in writers:
            for slot, token in enumerate(s.fed or (), s.start):
                self.store[s.table.pages[slot // size], slot % size] = token

    def keep(self, s: Sequence, length: int) -> None:
        s.tokens, s.fed = s.content()[:length], None

    def accepted(self, s: Sequence) -> int:
        assert s.fed is not None
        if self.rng.random() < 0.1:
            return len(s.tokens)
        return s.start + self.rng.randint(0, len(s.fed))

    def extend(self, s: Sequence) -> None:
        if s.fed is not None:
            self.end(s)
            return
        start, fed = self.plan(s)
        before = self.books()
        try:
            default = start == len(s.tokens) and self.rng.random() < 0.5
            copies = s.table.extend(len(fed), None if default else start)
        except OutOfPages:
            self.seen["out of pages"] += 1
            self.check()
            assert self.books() == before, "a failed extension left traces"
            return
        s.start, s.fed = start, fed
        if self.rng.random() < 0.1:  # interrupted before anything is copied or written
            s.fed = None
            s.table.roll_back()
            self.check()
            assert self.books() == before, "a roll-back left traces"
        else:
            self.write(copies, [s])

    def end(self, s: Sequence) -> None:
        if s.fed is not None and self.rng.random() < 0.6:
            length = self.accepted(s)
            s.table.commit(length)
            self.keep(s, length)
        else:
            s.fed = None
            cut = self.rng.randint(0, self.rng.choice((3, len(s.tokens))))
            length = max(0, len(s.tokens) - cut) if self.rng.random() < 0.3 else None
            s.table.roll_back(length)
            del s.tokens[len(s.tokens) if length is None else length :]

    def fork(self, s: Sequence) -> None:
        if s.fed is None and len(self.live) < 6:
            self.live.append(Sequence(s.table.fork(), list(s.tokens)))

    def close(self, s: Sequence) -> None:
        self.seen["closed in mid-step"] += s.fed is not None
        s.table.close()
        self.live.remove(s)

    def batch(self, _: Sequence) -> None:
        """One step of several sequences that ends in a commit, an exception, or neither."""
        idle = [s for s in self.live if s.fed is None]
        chosen = self.rng.sample(idle, self.rng.randint(0, len(idle)))
        plans = [self.plan(s) for s in chosen]
        before = self.books()
        how = self.rng.choice(["committed", "committed", "before the copies", "after the write", "left"])
        try:
            items = [(s.table, start, len(fed)) for s, (start, fed) in zip(chosen, plans, strict=True)]
            with reserve(items) as slots:
                if how == "before the copies":
                    raise Interrupt
                for s, (start, fed) in zip(chosen, plans, strict=True):
                    s.start, s.fed = start, fed
                self.write(slots.copies, chosen)
                self.check()
                if how == "after the write":
                    raise Interrupt
                if how == "committed":
                    lengths = [self.accepted(s) for s in chosen]
                    slots.commit(lengths)
                    for s, length in zip(chosen, lengths, strict=True):
                        self.keep(s, length)
        except Interrupt:
            pass
        except OutOfPages:
            how = "batch out of pages"
        self.seen[how] += 1
        for s in chosen:
            s.fed = None
        self.check()
        assert how == "committed" or self.books() == before, "a reservation left traces"


@pytest.mark.parametrize(("total", "size"), [(14, 1), (14, 3), (15, 4), (10, 16)])
def test_hundred_thousand_operations(total: int, size: int) -> None:
    seen = Program(seed=size, total=total, size=size).run(25_000)
    kinds = ["copy", "fed again", "out of pages", "closed in mid-step", "batch out of pages"]
    kinds += ["committed", "before the copies", "after the write", "left"]
    assert not [kind for kind in kinds if seen[kind] < 100], seen


# Planted faults: each replaces one method, and the random program must notice.


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageTable, "shared", lambda self, start, end: [])


def copies_not_reported(patch: pytest.MonkeyPatch) -> None:
    extend = PageTable.extend
    patch.setattr(PageTable, "extend", lambda self, rows, start=None: extend(self, rows, start)[1:])


def roll_back_leaks(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: PageTable, length: int | None = None) -> None:
        self._extension, self._length = None, self._length if length is None else length
        del self._pages[self._needed(self._length) :]

    patch.setattr(PageTable, "roll_back", roll_back)


def roll_back_keeps_pages(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: PageTable, length: int | None = None) -> None:
        for page in self._extension.displaced.values() if self._extension else ():
            self.pool.release(page)
        self._extension, self._length = None, self._length if length is None else length

    patch.setattr(PageTable, "roll_back", roll_back)


def roll_back_keeps_uncopied_targets(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: PageTable, length: int | None = None) -> None:
        for page in self._extension.displaced.values() if self._extension else ():
            self.pool.release(page)
        self._extension = None
        self._cut(self._length if length is None else length)

    patch.setattr(PageTable, "roll_back", roll_back)


def released_twice(patch: pytest.MonkeyPatch) -> None:
    def close(self: PageTable) -> None:
        for page in [*self.held_pages(), *self.held_pages()[:1]]:
            self.pool.release(page)
        self._pages, self._extension, self._closed = [], None, True

    patch.setattr(PageTable, "close", close)


def closed_without_the_displaced(patch: pytest.MonkeyPatch) -> None:
    def close(self: PageTable) -> None:
        for page in self._pages:
            self.pool.release(page)
        self._pages, self._extension, self._closed = [], None, True

    patch.setattr(PageTable, "close", close)


def fork_without_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagePool, "share", lambda self, page: None)


def commit_off_by_a_page(patch: pytest.MonkeyPatch, pages: int) -> None:
    commit = PageTable.commit

    def wrong(self: PageTable, length: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            needed = PageTable._needed
            inner.setattr(PageTable, "_needed", lambda self, slots: max(0, needed(self, slots) + pages))
            commit(self, length)

    patch.setattr(PageTable, "commit", wrong)


def commit_keeps_a_page_too_many(patch: pytest.MonkeyPatch) -> None:
    commit_off_by_a_page(patch, 1)


def commit_keeps_a_page_too_few(patch: pytest.MonkeyPatch) -> None:
    commit_off_by_a_page(patch, -1)


def reserve_does_not_roll_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reservation, "__exit__", lambda self, *_: None)


def reserve_undoes_only_the_first(patch: pytest.MonkeyPatch) -> None:
    def exit(self: Reservation, *_: object) -> None:
        for table in self._extended[:1] if self._active else ():
            table.roll_back()

    patch.setattr(Reservation, "__exit__", exit)


def reserve_is_not_all_or_none(patch: pytest.MonkeyPatch) -> None:
    def enter(self: Reservation) -> Reservation:
        for table, start, rows in self._items:
            self.copies += table.extend(rows, start)
            self._extended.append(table)
        self._active = True
        return self

    patch.setattr(Reservation, "__enter__", enter)


def extend_takes_pages_one_by_one(patch: pytest.MonkeyPatch) -> None:
    alloc = PagePool.alloc
    patch.setattr(PagePool, "alloc", lambda self, count: [alloc(self, 1)[0] for _ in range(count)])


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    no_copy_on_write: "content",
    copies_not_reported: "content",
    roll_back_leaks: "has 1 references but occurs 0 times",
    roll_back_keeps_pages: "pages are not what the slots need",
    roll_back_keeps_uncopied_targets: "content|left traces",
    released_twice: "cannot be released again|has 1 references but occurs 2 times",
    closed_without_the_displaced: "has [123] references but occurs",
    fork_without_share: "has 1 references but occurs 2 times",
    commit_keeps_a_page_too_many: "pages are not what the slots need",
    commit_keeps_a_page_too_few: "pages are not what the slots need",
    reserve_does_not_roll_back: "slots",
    reserve_undoes_only_the_first: "slots",
    reserve_is_not_all_or_none: "slots",
    extend_takes_pages_one_by_one: "has 1 references but occurs 0 times",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_program_kills(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, AuditError, PageError, TableError), match=FAULTS[fault]):
        Program(seed=4, total=15, size=4).run(3000)


def filled(pool: PagePool, length: int) -> PageTable:
    table = PageTable(pool)
    table.extend(length)
    table.commit(length)
    return table


def test_pages_follow_tokens_not_drafts() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool)
    assert table.extend(9) == []
    assert (table.pages, table.length, table.tentative) == ((0, 1, 2), 0, 9)
    table.commit(4)
    assert (table.pages, table.length, table.tentative, pool.free) == ((0,), 4, 0, 7)
    table.extend(2, start=3)
    assert (table.pages, table.tentative) == ((0, 1), 1)
    table.commit(3)
    table.extend(1, start=1)
    table.commit(3)
    assert (table.pages, table.length) == ((0,), 3)


def test_copy_on_write_and_back() -> None:
    pool = PagePool(8, 4)
    table = filled(pool, 6)
    twin = table.fork()
    assert twin.extend(3) == [(1, 2)]
    assert (twin.pages, table.pages) == ((0, 2, 3), (0, 1))
    twin.roll_back()
    assert (twin.pages, pool.held) == ((0, 1), 2)
    assert twin.extend(3, start=3) == [(0, 2), (1, 3)]
    twin.commit(6)
    assert table.extend(1) == [], "the last holder writes in place"
    pool.audit([table, twin])


def test_adopting_cached_pages() -> None:
    pool = PagePool(8, 4)
    table = filled(pool, 9)
    warm = PageTable(pool, table.pages[:2], 8)
    assert warm.extend(1) == []
    pool.audit([table, warm])
    with pytest.raises(TableError, match="2 pages of 4 slots do not fit 9"):
        PageTable(pool, table.pages[:2], 9)
    with pytest.raises(TableError, match=r"pages \[7\] are free"):
        PageTable(pool, [0, 7], 8)
    pool.audit([table, warm])


def test_closing_twice_and_using_a_closed_table() -> None:
    pool = PagePool(8, 4)
    table = filled(pool, 6)
    table.extend(5)
    table.close()
    table.close()
    assert pool.free == 8
    uses = [lambda: table.extend(1), lambda: table.commit(0), table.roll_back, table.fork]
    for use in [*uses, lambda: table.pages, lambda: table.length, lambda: table.tentative]:
        with pytest.raises(TableError, match="closed"):
            use()


def test_misuse_is_an_error_and_changes_nothing() -> None:
    pool = PagePool(8, 4)
    table, open_table = filled(pool, 6), filled(pool, 6)
    open_table.extend(3, start=5)
    for call, text in [
        (lambda: table.commit(6), "nothing to commit"),
        (lambda: table.extend(-1), "rows=-1"),
        (lambda: table.extend(1, start=-1), "start=-1"),
        (lambda: table.extend(1, start=7), "start=7: 6 slots"),
        (lambda: table.roll_back(-1), "roll back to -1"),
        (lambda: table.roll_back(7), "roll back to 7"),
        (lambda: open_table.extend(1), "already extended"),
        (open_table.fork, "cannot fork during"),
        (lambda: open_table.commit(4), "reserved are 5 to 8"),
        (lambda: open_table.commit(9), "reserved are 5 to 8"),
        (lambda: open_table.commit(-1), "commit -1"),
    ]:
        with pytest.raises(TableError, match=text):
            call()
    assert (table.pages, table.length, open_table.pages, open_table.tentative) == ((0, 1), 6, (2, 3), 2)


def test_a_wrong_batch_commit_commits_nothing() -> None:
    pool = PagePool(8, 4)
    one, two = filled(pool, 6), filled(pool, 2)
    with pytest.raises(TableError, match="cannot commit 4"), reserve([(one, None, 3), (two, 1, 2)]) as slots:
        slots.commit([8, 4])
    assert (one.length, one.tentative, two.length, two.tentative) == (6, 0, 2, 0)
    with pytest.raises(TableError, match="1 lengths for 2 tables"), reserve([(one, None, 3), (two, 1, 2)]) as slots:
        slots.commit([8])
    with pytest.raises(TableError, match="already extended"):
        reserve([(one, None, 1), (one, None, 1)]).__enter__()
    assert (one.length, one.tentative, pool.held) == (6, 0, 3)


def test_a_reservation_is_used_once() -> None:
    pool = PagePool(8, 4)
    table = filled(pool, 6)
    with reserve([(table, None, 3)]) as slots:
        slots.commit([7])
        table.extend(1)  # the next step's: not the reservation's to undo
    assert table.tentative == 1
    with pytest.raises(TableError, match="committed once"):
        slots.commit([7])
    with pytest.raises(TableError, match="entered once"), slots:
        pass


def close_and_commit(one: PageTable, two: PageTable) -> None:
    with reserve([(one, None, 3), (two, None, 2)]) as slots:
        one.close()
        slots.commit([7, 3])


def test_a_table_closed_inside_a_reservation() -> None:
    pool = PagePool(8, 4)
    one, two = filled(pool, 6), filled(pool, 2)
    with pytest.raises(TableError, match="closed"):
        close_and_commit(one, two)
    assert (two.length, two.tentative, pool.held) == (2, 0, 1)
    with reserve([]) as slots:
        slots.commit([])
