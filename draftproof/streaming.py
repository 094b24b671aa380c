"""The events of one request as an iterator that can be left at any moment. Knows an engine only by three functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

E = TypeVar("E")


class Stream(Iterator[E], Generic[E]):
    """Ends with the request. `close`, or losing the last reference, ends the request instead, started or not.

    Args:
        mailbox: events that wait to be read; `alive` says whether more can come, `advance` makes them come.
    """

    def __init__(
        self, mailbox: list[E], alive: Callable[[], bool], advance: Callable[[], object], end: Callable[[], None]
    ) -> None:
        self._mailbox, self._alive, self._advance, self._end = mailbox, alive, advance, end
        self._open = True

    def __next__(self) -> E:
        while self._open and not self._mailbox:
            if not self._alive():
                self.close()
                break
            try:
                self._advance()
            except BaseException:
                self.close()
                raise
        if not self._open:
            raise StopIteration
        return self._mailbox.pop(0)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._end()

    def __del__(self) -> None:
        self.close()
