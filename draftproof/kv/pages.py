"""Reference-counted pages of KV storage: book-keeping with whole numbers.

Does not know what a page stores, which sequence uses it, or on which device its memory lies. Not for several threads.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol


class PageError(ValueError):
    """A page was used against its state: freed twice, shared while free, or no such page."""


class OutOfPages(RuntimeError):
    """Fewer pages are free than were asked for. Nothing was allocated."""

    def __init__(self, wanted: int, free: int, total: int) -> None:
        super().__init__(
            f"{wanted} pages wanted, {free} of {total} are free: close or preempt a sequence, or load more"
        )
        self.wanted, self.free, self.total = wanted, free, total


class AuditError(RuntimeError):
    """The books do not balance. The message names the pages."""


class Holder(Protocol):
    """Whatever keeps references to pages: a page table, a prefix cache."""

    def held_pages(self) -> Iterable[int]:
        """Each page that this holder has a reference to, once."""
        ...


def _untold(page: int) -> None:
    del page


class PagePool:
    """Pages 0 .. total - 1 of `page_size` slots. A page is free, held by one or more references, or cached.

    A page that is to be kept stays, cached, when its last reference goes: it can be shared again until its room is
    needed. The one that was released first goes first, and `evicted` is told.
    """

    def __init__(self, total: int, page_size: int) -> None:
        if total < 1 or page_size < 1:
            raise PageError(f"a pool needs at least one page of one slot, got total={total}, page_size={page_size}")
        self.total, self.page_size = total, page_size
        self._free = list(range(total))  # a heap: a sorted list is one
        self._refs = [0] * total
        self._held = 0  # kept apart from _refs and _free so that the audit can compare all three
        self._kept = set[int]()
        self._cached = dict[int, None]()  # kept pages without a reference, in the order they were released in
        self.evicted: Callable[[int], None] = _untold

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self._held

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Pages that can be allocated."""
        return len(self._free) + len(self._cached)

    def kept(self) -> set[int]:
        """Pages that are to be kept, held or cached."""
        return set(self._kept)

    def refs(self, page: int) -> int:
        """How many references a page has; 0 when it is free or cached."""
        if not 0 <= page < self.total:
            raise PageError(f"there is no page {page}: the pool has pages 0 to {self.total - 1}")
        return self._refs[page]

    def alive(self, page: int) -> bool:
        """Whether a page has content that can be shared: it is held or cached."""
        return self.refs(page) > 0 or page in self._cached

    def fixed(self, page: int) -> bool:
        """Whether a holder must not write to a page: others hold it too, or it is to be kept as it is."""
        return self.refs(page) > 1 or page in self._kept

    def alloc(self, count: int) -> list[int]:
        """`count` pages with one reference each, lowest free numbers first, so that touched memory grows with use."""
        if count < 0:
            raise PageError(f"cannot allocate {count} pages")
        if count > self.available:
            raise OutOfPages(count, self.available, self.total)
        while len(self._free) < count:
            page = next(iter(self._cached))
            self.drop(page)
            self.evicted(page)
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        self._held += count
        return pages

    def share(self, page: int) -> None:
        """One more reference to a page that is held or cached."""
        if not self.alive(page):
            raise PageError(f"page {page} is free and cannot be shared")
        if page in self._cached:
            del self._cached[page]
            self._held += 1
        self._refs[page] += 1

    def keep(self, page: int) -> None:
        """From now on a page that is held keeps its content until it is evicted or dropped."""
        if self.refs(page) < 1:
            raise PageError(f"page {page} is not held and cannot be kept")
        self._kept.add(page)

    def drop(self, page: int) -> None:
        """A page is not to be kept any more; it is free at once if it was cached."""
        self._kept.discard(page)
        if page in self._cached:
            del self._cached[page]
            heapq.heappush(self._free, page)

    def release(self, page: int) -> None:
        """One reference less; the page is free, or cached, when none is left."""
        if self.refs(page) < 1:
            raise PageError(f"page {page} is free and cannot be released again")
        self._refs[page] -= 1
        if self._refs[page] == 0:
            self._held -= 1
            if page in self._kept:
                self._cached[page] = None
            else:
                heapq.heappush(self._free, page)

    def audit(self, tables: Iterable[Holder]) -> None:
        """Raise AuditError unless the books balance, given everybody who holds pages."""
        faults = [*self._own_faults(), *self._holder_faults(tables)]
        if faults:
            more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
            raise AuditError("; ".join(faults[:8]) + more)

    def _own_faults(self) -> Iterator[str]:
        if self.free + self.held + self.cached != self.total:
            yield f"{self.free} free + {self.held} held + {self.cached} cached pages are not {self.total}"
        listed = Counter(self._free)
        for page, times in listed.items():
            if not 0 <= page < self.total:
                yield f"page {page} is in the free list but does not exist"
            if times > 1:
                yield f"page {page} is {times} times in the free list"
        for page, refs in enumerate(self._refs):
            if refs < 0:
                yield f"page {page} has {refs} references"
            if refs > 0 and page in listed:
                yield f"page {page} is both free and held ({refs} references)"
            if refs == 0 and page not in listed and page not in self._cached:
                yield f"page {page} is neither free nor held nor cached"
        yield from self._cache_faults(listed)

    def _cache_faults(self, listed: Counter[int]) -> Iterator[str]:
        for page in self._cached:
            if self._refs[page] > 0 or page in listed:
                yield f"page {page} is cached, and held or free as well"
        for page in self._cached.keys() - self._kept:
            yield f"page {page} is cached but not to be kept"
        for page in self._kept & listed.keys():
            yield f"page {page} is free but to be kept"

    def _holder_faults(self, tables: Iterable[Holder]) -> Iterator[str]:
        occurs: Counter[int] = Counter()
        for number, table in enumerate(tables):
            pages = list(table.held_pages())
            if len(set(pages)) != len(pages):
                twice = sorted(page for page, times in Counter(pages).items() if times > 1)
                yield f"table {number} holds more than once: pages {twice}"
            occurs.update(pages)
        for page in occurs:
            if not 0 <= page < self.total:
                yield f"a table holds page {page}, which does not exist"
        for page, refs in enumerate(self._refs):
            if refs != occurs[page]:
                yield f"page {page} has {refs} references but occurs {occurs[page]} times in the tables"
