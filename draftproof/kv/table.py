"""One sequence's list of pages: extend, then commit or roll back.

Does not know tokens, models or arrays: it says which pages to copy and which slots to write; the caller does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from draftproof.kv.pages import PagePool


class TableError(ValueError):
    """A page table was used out of order or out of range."""


class _Extension(NamedTuple):
    """Slots start .. end - 1 may be written. `displaced`: shared pages, by place, that fresh copies stand in for."""

    start: int
    end: int
    displaced: dict[int, int]


class PageTable:
    """Slots 0 .. length - 1 are committed; during an extension, slots up to its end are reserved as well.

    `pages` (for `length` slots) may name pages that somebody else holds, or that are cached: they become shared.
    """

    __slots__ = ("_closed", "_extension", "_length", "_pages", "pool")

    def __init__(self, pool: PagePool, pages: Sequence[int] = (), length: int = 0) -> None:
        self.pool, self._pages, self._length = pool, list(pages), length
        self._extension: _Extension | None = None
        self._closed = False
        if length < 0 or len(pages) != self._needed(length):
            raise TableError(f"{len(pages)} pages of {pool.page_size} slots do not fit {length} committed slots")
        if stale := [page for page in pages if not pool.alive(page)]:
            raise TableError(f"pages {stale} are free: only held or cached pages can be shared")
        for page in pages:
            pool.share(page)

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of all slots, reserved ones included, in order."""
        self._check_open()
        return tuple(self._pages)

    @property
    def length(self) -> int:
        """Committed slots."""
        self._check_open()
        return self._length

    @property
    def tentative(self) -> int:
        """Slots reserved beyond the committed ones."""
        self._check_open()
        return max(0, self._extension.end - self._length) if self._extension else 0

    def held_pages(self) -> list[int]:
        """Every page this table has a reference to: for the audit."""
        return [*self._pages, *(self._extension.displaced.values() if self._extension else ())]

    def extend(self, rows: int, start: int | None = None) -> list[tuple[int, int]]:
        """Reserve slots start .. start + rows - 1 for writing; `start` defaults to the committed length.

        Returns (source, target) pages to be copied before anything is written. Sources stay held until the commit:
        no target is ever a source, the order does not matter, and rolling back needs no copy. A start below the
        length feeds committed tokens again; to write *other* tokens there, `roll_back(start)` first.
        """
        start = self.length if start is None else start
        self._check_extend(rows, start)
        shared = self.shared(start, start + rows)
        grown = max(0, self._needed(start + rows) - len(self._pages))
        fresh = self.pool.alloc(len(shared) + grown)  # the only line that can fail; nothing has changed before it
        displaced = {at: self._pages[at] for at in shared}
        for at, page in zip(shared, fresh, strict=False):
            self._pages[at] = page
        self._pages += fresh[len(shared) :]
        self._extension = _Extension(start, start + rows, displaced)
        return [(source, self._pages[at]) for at, source in displaced.items()]

    def commit(self, length: int) -> None:
        """End the extension with `length` committed slots. Pages that these do not need are free at once."""
        extension = self._check_commit(length)
        self._extension = None
        for page in extension.displaced.values():
            self.pool.release(page)
        self._cut(length)

    def roll_back(self, length: int | None = None) -> None:
        """Drop reserved slots; with a `length`, drop the committed slots from there on as well."""
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise TableError(f"cannot roll back to {length}: {self._length} slots are committed")
        if self._extension:  # the shared pages come back: the copies may not have been made
            for at, page in self._extension.displaced.items():
                self.pool.release(self._pages[at])
                self._pages[at] = page
        self._extension = None
        self._cut(length)

    def fork(self) -> PageTable:
        """A second table with the same committed slots, on the same pages."""
        self._check_open()
        if self._extension:
            raise TableError("cannot fork during an extension: commit or roll back first")
        return PageTable(self.pool, self._pages, self._length)

    def close(self) -> None:
        """Give every page back, at any moment. Closing twice is harmless."""
        pages, self._closed = self.held_pages(), True
        self._pages, self._extension, self._length = [], None, 0
        self._release(pages)

    def shared(self, start: int, end: int) -> list[int]:
        """Places in the list, under slots start .. end - 1, of pages that must be copied before they are written to."""
        last = min(self._needed(end), len(self._pages)) if start < end else 0
        return [at for at in range(start // self.pool.page_size, last) if self.pool.fixed(self._pages[at])]

    def _release(self, pages: Sequence[int]) -> None:
        """The last page first: of a cached prefix the end goes before the beginning."""
        for page in reversed(pages):
            self.pool.release(page)

    def _needed(self, slots: int) -> int:
        return -(-slots // self.pool.page_size)

    def _cut(self, length: int) -> None:
        needed, self._length = self._needed(length), length
        dropped, self._pages = self._pages[needed:], self._pages[:needed]
        self._release(dropped)

    def _check_open(self) -> None:
        if self._closed:
            raise TableError("this page table is closed")

    def _check_extend(self, rows: int, start: int) -> None:
        self._check_open()
        if self._extension:
            raise TableError("already extended: commit or roll back first")
        if rows < 0 or not 0 <= start <= self._length:
            raise TableError(f"cannot extend by rows={rows} from start={start}: {self._length} slots are committed")

    def _check_commit(self, length: int) -> _Extension:
        self._check_open()
        extension = self._extension
        if extension is None:
            raise TableError("nothing to commit: extend first")
        if length != self._length and not extension.start <= length <= extension.end:
            raise TableError(f"cannot commit {length} slots: reserved are {extension.start} to {extension.end}")
        return extension


class Reservation:
    """Extends several tables, all or none, and rolls all of them back on any exit but a commit.

    with reserve([(table, start, rows), ...]) as slots: copy `slots.copies`, write, `slots.commit(lengths)`
    """

    def __init__(self, items: Iterable[tuple[PageTable, int | None, int]]) -> None:
        self._items = list(items)
        self._extended: list[PageTable] = []
        self._active = False
        self.copies: list[tuple[int, int]] = []  # (source, target) pages to copy before the first write

    def __enter__(self) -> Self:
        if self._active or self._extended:
            raise TableError("a reservation can be entered once: make a new one")
        self._active = True
        try:
            for table, start, rows in self._items:
                self.copies += table.extend(rows, start)
                self._extended.append(table)
        except BaseException:
            self.__exit__()
            raise
        return self

    def commit(self, lengths: Sequence[int]) -> None:
        """Commit each table to its length, in the order of reservation. A wrong length commits none."""
        if not self._active:
            raise TableError("a reservation is committed once, inside its `with` block")
        if len(lengths) != len(self._extended):
            raise TableError(f"{len(lengths)} lengths for {len(self._extended)} tables")
        for table, length in zip(self._extended, lengths, strict=True):
            table._check_commit(length)
        for table, length in zip(self._extended, lengths, strict=True):
            table.commit(length)
        self._active = False

    def __exit__(self, *_: object) -> None:
        for table in self._extended if self._active else ():
            if not table._closed:
                table.roll_back()
        self._active = False


reserve = Reservation
