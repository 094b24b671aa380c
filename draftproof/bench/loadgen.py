"""When requests begin: so many always under way, or each at its planned time, however long others take.

Knows asyncio; knows no HTTP, no prompt and no result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]
Send = Callable[[int, float], Awaitable[T]]  # a request's place and the clock's time at which it is due


async def closed(count: int, under_way: int, send: Send[T], clock: Clock) -> list[T]:
    """`count` requests in their order, `under_way` at a time: one begins when one ends. Answers by place.

    Raises:
        Exception: what a request raised first; the others are called off.
    """
    places, answers = iter(range(count)), dict[int, T]()

    async def work() -> None:
        for place in places:
            answers[place] = await send(place, clock())

    await _all(work() for _ in range(min(under_way, count)))
    return [answers[place] for place in range(count)]


async def planned(arrivals: Sequence[float], send: Send[T], clock: Clock) -> list[T]:
    """A request for each arrival, in seconds from now. What is due does not wait for what is under way.

    Raises:
        Exception: as `closed`.
    """
    began, answers = clock(), dict[int, T]()

    async def work(place: int, due: float) -> None:
        await asyncio.sleep(max(due - clock(), 0.0))
        answers[place] = await send(place, due)

    await _all(work(place, began + at) for place, at in enumerate(arrivals))
    return [answers[place] for place in range(len(arrivals))]


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
