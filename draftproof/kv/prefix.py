"""Finds pages by what they hold: a full page by a digest of its tokens and of all tokens before them.

The digest is SHA-256, so that nobody can make two prefixes that are taken for one another. Does not know which model
computed the pages: a pool is one model's. Knows no request and no array. Callers keep committed pages only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Protocol

from draftproof.kv.pages import AuditError, PagePool


class Prefixes(Protocol):
    """`salt` sets apart requests that must not find each other's pages."""

    def find(self, tokens: Sequence[int], salt: str) -> list[int]:
        """Pages of the longest prefix, in whole pages, that is kept."""
        ...

    def keep(self, tokens: Sequence[int], pages: Sequence[int], salt: str) -> None:
        """From now on the full pages among `pages`, held by the caller, are found by their tokens."""
        ...

    def drop(self, pages: Sequence[int]) -> None:
        """These are found no more."""
        ...

    def clear(self) -> None:
        """None are found any more."""
        ...

    def audit(self) -> None:
        """Raise AuditError unless this and the pool name the same pages."""
        ...


class NoPrefixes:
    """Nothing is kept and nothing found."""

    def find(self, tokens: Sequence[int], salt: str) -> list[int]:
        del tokens, salt
        return []

    def keep(self, tokens: Sequence[int], pages: Sequence[int], salt: str) -> None:
        del tokens, pages, salt

    def drop(self, pages: Sequence[int]) -> None:
        del pages

    def clear(self) -> None:
        pass

    def audit(self) -> None:
        pass


class PrefixCache:
    """A page whose content is kept already, on another page, is not kept twice."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages = dict[bytes, int]()
        self._keys = dict[int, bytes]()
        pool.evicted = self._forget

    def find(self, tokens: Sequence[int], salt: str) -> list[int]:
        found = list[int]()
        for key in self._chain(tokens, salt):
            if key not in self._pages:
                break
            found.append(self._pages[key])
        return found

    def keep(self, tokens: Sequence[int], pages: Sequence[int], salt: str) -> None:
        for key, page in zip(self._chain(tokens, salt), pages, strict=False):
            if key not in self._pages and page not in self._keys:
                self._pool.keep(page)
                self._pages[key], self._keys[page] = page, key

    def drop(self, pages: Sequence[int]) -> None:
        for page in pages:
            if page in self._keys:
                self._forget(page)
                self._pool.drop(page)

    def clear(self) -> None:
        self.drop(list(self._keys))

    def audit(self) -> None:
        if self._keys != {page: key for key, page in self._pages.items()}:
            raise AuditError("pages and keys of the prefix cache are not one for one")
        if self._pool.kept() != self._keys.keys():
            raise AuditError(f"kept but not found, or found but not kept: {self._pool.kept() ^ self._keys.keys()}")

    def _forget(self, page: int) -> None:
        del self._pages[self._keys.pop(page)]

    def _chain(self, tokens: Sequence[int], salt: str) -> Iterator[bytes]:
        """A key for each full page."""
        size, key = self._pool.page_size, sha256(salt.encode()).digest()
        for start in range(0, len(tokens) - size + 1, size):
            key = sha256(key + array("q", tokens[start : start + size]).tobytes()).digest()
            yield key
