"""The page pool: lowest free page first, references, and an audit that sees each kind of broken book (I7)."""

from __future__ import annotations

import random

import pytest

from draftproof.kv.pages import AuditError, OutOfPages, PageError, PagePool


class Holding:
    def __init__(self, *pages: int) -> None:
        self.pages = pages

    def held_pages(self) -> tuple[int, ...]:
        return self.pages


def test_lowest_free_page_first() -> None:
    pool = PagePool(6, 4)
    assert pool.alloc(4) == [0, 1, 2, 3]
    for page in (2, 0):
        pool.release(page)
    assert pool.alloc(3) == [0, 2, 4]
    assert (pool.free, pool.held) == (1, 5)


def test_lowest_first_always() -> None:
    rng, pool, held = random.Random(1), PagePool(20, 1), set[int]()
    for _ in range(2000):
        if held and rng.random() < 0.5:
            page = rng.choice(sorted(held))
            held.remove(page)
            pool.release(page)
        elif pool.free:
            (page,) = pool.alloc(1)
            assert page == min(set(range(20)) - held)
            held.add(page)
    pool.audit([Holding(*held)])


def test_out_of_pages_allocates_nothing() -> None:
    pool = PagePool(3, 4)
    pool.alloc(1)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 of 3 are free") as caught:
        pool.alloc(3)
    assert (caught.value.wanted, caught.value.free, caught.value.total) == (3, 2, 3)
    assert (pool.free, pool.held) == (2, 1)
    assert pool.alloc(2) == [1, 2]


def test_a_shared_page_is_freed_by_its_last_reference() -> None:
    pool = PagePool(2, 4)
    (page,) = pool.alloc(1)
    pool.share(page)
    assert pool.refs(page) == 2
    pool.release(page)
    assert (pool.refs(page), pool.free) == (1, 1)
    pool.audit([Holding(page)])
    pool.release(page)
    assert (pool.refs(page), pool.free) == (0, 2)
    pool.audit([])


def test_misuse_is_an_error_and_changes_nothing() -> None:
    pool = PagePool(2, 4)
    pool.alloc(1)
    for call, text in [
        (lambda: pool.release(1), "page 1 is free and cannot be released"),
        (lambda: pool.share(1), "page 1 is free and cannot be shared"),
        (lambda: pool.release(-1), "no page -1"),
        (lambda: pool.share(2), "no page 2"),
        (lambda: pool.alloc(-1), "cannot allocate -1"),
        (lambda: PagePool(0, 4), "total=0"),
        (lambda: PagePool(4, 0), "page_size=0"),
    ]:
        with pytest.raises(PageError, match=text):
            call()
    pool.audit([Holding(0)])
    assert pool.alloc(0) == []


def lose(pool: PagePool) -> None:
    pool._free.remove(3)


def free_and_held(pool: PagePool) -> None:
    pool._free.append(0)


def twice_free(pool: PagePool) -> None:
    pool._free.append(4)


def foreign(pool: PagePool) -> None:
    pool._free.append(9)


def negative(pool: PagePool) -> None:
    pool._refs[3] = -1


def miscounted(pool: PagePool) -> None:
    pool._held += 1


def extra_reference(pool: PagePool) -> None:
    pool.share(1)


def early_release(pool: PagePool) -> None:
    pool.release(1)


BROKEN = {
    lose: "page 3 is neither free nor held nor cached",
    free_and_held: r"page 0 is both free and held \(1 references\)",
    twice_free: "page 4 is 2 times in the free list",
    foreign: "page 9 is in the free list but does not exist",
    negative: "page 3 has -1 references",
    miscounted: "3 free [+] 4 held [+] 0 cached pages are not 6",
    extra_reference: "page 1 has 2 references but occurs 1 times",
    early_release: "page 1 has 0 references but occurs 1 times",
}


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.__name__)
def test_audit_names_the_fault(fault) -> None:
    pool = PagePool(6, 4)
    table = Holding(*pool.alloc(3))
    pool.audit([table])
    fault(pool)
    with pytest.raises(AuditError, match=BROKEN[fault]):
        pool.audit([table])


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ([Holding(0)], "page 1 has 1 references but occurs 0 times"),
        ([Holding(0, 1), Holding(1)], "page 1 has 1 references but occurs 2 times"),
        ([Holding(0, 1, 0)], r"table 0 holds more than once: pages \[0\]"),
        ([Holding(0, 1), Holding(-1)], "a table holds page -1, which does not exist"),
        ([], "page 0 has .*; page 1 has "),
    ],
)
def test_audit_compares_with_the_tables(tables: list[Holding], text: str) -> None:
    pool = PagePool(4, 4)
    pool.alloc(2)
    with pytest.raises(AuditError, match=text):
        pool.audit(tables)


def test_audit_message_stays_short() -> None:
    pool = PagePool(100, 1)
    pool.alloc(100)
    with pytest.raises(AuditError, match="and 92 more"):
        pool.audit([])
