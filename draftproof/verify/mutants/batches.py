"""Who runs in a step of the honest decoder: seats, room for KV, preemption by recomputing, cancelling.

Knows no law, no draft and no rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from draftproof.verify.mutants.cache import Prefixes, Slot
from draftproof.verify.mutants.live import Live


class Batches(ABC):
    seats = 8
    page = 4  # tokens
    pages, tight_pages = 1000, 16  # room for the KV of all running sequences
    preemptions: int
    prefixes: Prefixes

    @abstractmethod
    def step(self, lives: Sequence[Live]) -> None: ...

    def run(self, lives: Sequence[Live], abort: Mapping[int, int]) -> Iterator[None]:
        """Step until all are done. `abort`: after how many steps a sequence is cancelled."""
        waiting, running = deque(lives), list[Live]()
        ends = {id(lives[i]): steps for i, steps in abort.items()}
        steps = 0
        while waiting or running:
            if ends:
                for live in [live for live in (*running, *waiting) if ends.get(id(live), steps + 1) <= steps]:
                    self.cancel(live, running, waiting)
            self.schedule(waiting, running)
            if running:
                self.step(running)
            running = [live for live in running if not live.finish]
            steps += 1
            yield

    def cancel(self, live: Live, running: list[Live], waiting: deque[Live]) -> None:
        live.finish = "abort"
        (running if live in running else waiting).remove(live)

    def schedule(self, waiting: deque[Live], running: list[Live]) -> None:
        used = sum(map(self.room, running))
        while len(running) > 1 and used > self.pages:
            used -= self.room(running[-1])
            waiting.appendleft(running.pop())
            self.preempt(waiting[0])
        while waiting and len(running) < self.seats:
            used += self.room(waiting[0])
            if running and used > self.pages:
                return
            running.append(waiting.popleft())
            self.seat(running[-1])

    def room(self, live: Live) -> int:
        return (len(live.context) + live.job.params.k) // self.page + 1

    def preempt(self, live: Live) -> None:
        """Its caches are dropped and computed anew later; its tokens stay."""
        self.preemptions += 1
        live.target, live.draft = Slot(), Slot()

    def seat(self, live: Live) -> None:
        live.target = Slot(self.prefixes.reuse(live.job.prompt))
