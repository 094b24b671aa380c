"""Pages that are kept: found by their whole prefix, evicted in order, shared, never written to, audited."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from draftproof.kv.pages import AuditError, OutOfPages, PageError, PagePool
from draftproof.kv.prefix import PrefixCache
from draftproof.kv.states import StateStore
from draftproof.kv.table import PageTable


def written(pool: PagePool, slots: int) -> PageTable:
    table = PageTable(pool)
    table.extend(slots)
    table.commit(slots)
    return table


def kept(cache: PrefixCache, pool: PagePool, tokens: list[int], salt: str = "") -> list[int]:
    """Pages of a sequence that came, was kept and went."""
    table = written(pool, len(tokens))
    pages = list(table.pages)
    cache.keep(tokens, pages, salt)
    table.close()
    return pages


def test_a_prefix_is_found_by_all_of_its_tokens() -> None:
    pool = PagePool(20, 2)
    cache = PrefixCache(pool)
    pages = kept(cache, pool, [1, 2, 3, 4, 5])
    assert (pool.held, pool.cached, pool.free) == (0, 2, 18)  # the last page is not full
    assert cache.find([1, 2, 3, 4, 5, 6], "") == pages[:2]
    assert cache.find([1, 2, 3], "") == pages[:1]
    for other in ([1], [3, 4], [9, 2, 3, 4], [2, 1, 3, 4]):
        assert cache.find(other, "") == []
    assert cache.find([1, 2, 9, 9, 3, 4], "") == pages[:1]
    assert cache.find([1, 2], "a") == []
    assert kept(cache, pool, [1, 2], "a") != pages[:1]
    cache.audit()


def test_the_same_content_is_kept_once() -> None:
    pool = PagePool(20, 2)
    cache = PrefixCache(pool)
    first, second = written(pool, 4), written(pool, 6)
    cache.keep([1, 2, 3, 4], first.pages, "")
    cache.keep([1, 2, 3, 4, 5, 6], second.pages, "")
    assert cache.find([1, 2, 3, 4, 5, 6], "") == [*first.pages, second.pages[2]]
    second.close()
    first.close()
    assert (pool.cached, pool.free) == (3, 17)


def test_the_end_of_what_was_used_least_lately_goes_first() -> None:
    pool = PagePool(6, 1)
    cache = PrefixCache(pool)
    kept(cache, pool, [1, 2, 3])
    kept(cache, pool, [7, 8])
    again = PageTable(pool, cache.find([1], ""), 1)  # used once more
    again.close()
    order = []
    while pool.available:
        pool.alloc(1)
        order.append((len(cache.find([1, 2, 3], "")), len(cache.find([7, 8], ""))))
    assert order == [(3, 2), (2, 2), (1, 2), (1, 1), (1, 0), (0, 0)]
    with pytest.raises(OutOfPages):
        pool.alloc(1)
    cache.audit()


def test_a_found_page_is_held_and_not_evicted() -> None:
    pool = PagePool(4, 2)
    cache = PrefixCache(pool)
    pages = kept(cache, pool, [1, 2, 3, 4])
    table = PageTable(pool, cache.find([1, 2, 3, 4], ""), 4)
    assert (pool.held, pool.cached, pool.available) == (2, 0, 2)
    pool.alloc(2)
    assert table.pages == tuple(pages)
    with pytest.raises(OutOfPages):
        table.extend(1)
    pool.audit([table, _Holding(0, 1, 2, 3, without=pages)])


class _Holding:
    def __init__(self, *pages: int, without: list[int]) -> None:
        self.pages = [p for p in pages if p not in without]

    def held_pages(self) -> list[int]:
        return self.pages


def test_a_kept_page_is_copied_before_it_is_written_to() -> None:
    """Also by its only holder: who finds it must find what it was kept for."""
    pool = PagePool(4, 4)
    cache = PrefixCache(pool)
    table = written(pool, 4)
    (page,) = table.pages
    cache.keep([1, 2, 3, 4], table.pages, "")
    ((source, target),) = table.extend(2, 3)
    assert (source, table.pages[0]) == (page, target)
    assert target != page
    table.commit(5)
    assert cache.find([1, 2, 3, 4], "") == [page]
    assert (pool.refs(page), pool.cached) == (0, 1)
    pool.audit([table])


def test_dropped_pages_are_free_once_nobody_holds_them() -> None:
    pool = PagePool(6, 2)
    cache = PrefixCache(pool)
    kept(cache, pool, [1, 2, 3, 4])
    table = PageTable(pool, cache.find([1, 2], ""), 2)
    cache.clear()
    assert cache.find([1, 2, 3, 4], "") == []
    assert (pool.free, pool.held, pool.cached) == (5, 1, 0)
    table.close()
    assert pool.free == 6
    with pytest.raises(PageError, match="not held"):
        pool.keep(0)


def run(seed: int, steps: int = 3000) -> None:
    """Random sequences over three tokens; what is found must hold the tokens that it was asked for."""
    rng, pool = random.Random(seed), PagePool(24, 2)
    cache, held, content = PrefixCache(pool), dict[PageTable, list[int]](), dict[int, list[int]]()
    for _ in range(steps):
        if held and (rng.random() < 0.5 or pool.available < 8):
            table = rng.choice(list(held))
            tokens = held.pop(table)
            if rng.random() < 0.8:
                cache.keep(tokens, table.pages, "")
            table.close()
        else:
            tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
            found = cache.find(tokens[:-1], "")
            assert [t for page in found for t in content[page]] == tokens[: 2 * len(found)]
            table = PageTable(pool, found, 2 * len(found))
            table.extend(len(tokens) - 2 * len(found))
            table.commit(len(tokens))
            for at, page in enumerate(table.pages[len(found) :], len(found)):
                content[page] = tokens[2 * at : 2 * at + 2]
            held[table] = tokens
        pool.audit(held)
        cache.audit()


def test_any_order_of_events_keeps_the_books_and_the_contents() -> None:
    run(1)


def forgotten_eviction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "_forget", lambda self, page: None)


def page_alone(patch: pytest.MonkeyPatch) -> None:
    """A key without what came before."""
    honest = PrefixCache._chain

    def chain(self: PrefixCache, tokens: list[int], salt: str) -> list[bytes]:
        size = self._pool.page_size
        starts = range(0, len(tokens) - size + 1, size)
        return [key for s in starts for key in honest(self, tokens[s : s + size], salt)]

    patch.setattr(PrefixCache, "_chain", chain)


def freed_while_kept(patch: pytest.MonkeyPatch) -> None:
    def drop(self: PagePool, page: int) -> None:
        self._cached.pop(page, None)
        self._free.append(page)

    patch.setattr(PagePool, "drop", drop)


def shared_but_still_cached(patch: pytest.MonkeyPatch) -> None:
    def share(self: PagePool, page: int) -> None:
        self._held += self._refs[page] == 0
        self._refs[page] += 1

    patch.setattr(PagePool, "share", share)


def half_pages(patch: pytest.MonkeyPatch) -> None:
    """A page counts as full one token too early."""
    honest = PrefixCache.keep
    patch.setattr(PrefixCache, "keep", lambda self, tokens, pages, salt: honest(self, [*tokens, 0], pages, salt))


@pytest.mark.parametrize(
    "fault", [forgotten_eviction, page_alone, freed_while_kept, shared_but_still_cached, half_pages]
)
def test_planted_faults_are_seen(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, AuditError, PageError, KeyError, IndexError)):
        run(1)


def test_states_follow_their_pages() -> None:
    store = StateStore(5, 2, (1, 3))
    rows = np.arange(15, dtype=np.float32).reshape(5, 1, 3)
    store.write([4, 1, 3], 1, rows)
    assert np.array_equal(store.read([4, 1, 3])[1:], rows)
    store.copy_pages([(1, 0)])
    store.write([1], 0, rows[:2])
    assert np.array_equal(store.read([4, 0, 3])[1:], rows)
