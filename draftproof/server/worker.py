"""The one thread that owns the engine: requests in by a queue, events out to the event loop.

An engine is not for several threads. Handlers on the loop submit a `Job` and read its events; the thread runs commands
between steps. Nothing here waits for a reader: unread events of a request are at most one a token. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple, Protocol

from draftproof.engine import Engine, Event
from draftproof.types import Finish, Output, RequestError, SamplingParams

_LOG = logging.getLogger("draftproof.server")
_TRIES = 2  # of a step: one that fails changes nothing and can be run again


@dataclass(frozen=True, slots=True)
class Ask:
    """One engine request."""

    prompt: tuple[int, ...]
    params: SamplingParams
    prediction: tuple[int, ...] = ()


class Arrival(NamedTuple):
    """An event of the job's request number `choice`, and when its step ended (seconds of `perf_counter`)."""

    choice: int
    event: Event
    at: float


class JobError(Exception):
    """A job that the engine could not bring to its end."""


class Observer(Protocol):
    """Hears on the event loop of everything that happens to jobs."""

    def arrived(self, job: Job, arrival: Arrival) -> None: ...
    def ended(self, job: Job, output: Output) -> None:
        """Once for each request that was admitted."""
        ...


class Job:
    """Requests that are admitted and answered together. Lives on the event loop, but for `names`: the thread's."""

    def __init__(self, asks: Sequence[Ask], born: float) -> None:
        self.asks, self.born = tuple(asks), born
        self.names: list[int] = []
        self.left = len(self.asks)  # requests that have not ended
        self._arrivals: list[Arrival] = []
        self._admitted = False
        self._error: list[Exception] = []
        self._wake = asyncio.Event()

    async def admitted(self) -> None:
        """Raises: RequestError or JobError: it is not."""
        while not (self._admitted or self._error):
            await self._woken()
        if self._error:
            raise self._error[0]

    async def arrivals(self) -> list[Arrival]:
        """What came since the last call, at least one; empty when every request has ended.

        Raises: JobError: the model failed; what came before was handed out.
        """
        while not (self._arrivals or self._error or self.left == 0):
            await self._woken()
        if self._error and not self._arrivals:
            raise self._error[0]
        found, self._arrivals = self._arrivals, []
        return found

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def admit(self) -> None:
        self._admitted = True
        self._wake.set()

    def arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        self._error.append(error)
        self._wake.set()


class Worker:
    """Args: `observer` is told of arrivals and ends, on the loop that `start` was called on."""

    def __init__(self, engine: Engine, observer: Observer) -> None:
        self.engine, self._observer = engine, observer
        self.alive = False
        self.outstanding = 0  # requests that were submitted and have not ended; the loop's
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[int, tuple[Job, int]] = {}  # the thread's
        self._outbox: list[Callable[[], None]] = []  # the thread's: what the loop is to do
        self._failures = 0  # of the same step
        self._gate = threading.Lock()  # `alive` and what is put into the queue belong together
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)

    # on the loop

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.alive = True
        self._thread.start()

    def submit(self, asks: Sequence[Ask]) -> Job:
        job = Job(asks, perf_counter())
        self.outstanding += len(job.asks)
        with self._gate:
            taken = self.alive
            if taken:
                self._commands.put(partial(self._add, job))
        if not taken:
            self._lost(job, JobError("the engine has stopped"))
        return job

    def abort(self, job: Job) -> None:
        """Ends what is left of a job; its pages are free before the next step."""
        if job.left:
            self._commands.put(partial(self._abort, job))

    def abort_all(self, reason: str) -> None:
        self._commands.put(partial(self._abort_all, reason))

    def reset_prefix_cache(self) -> None:
        """Requests that are submitted from now on find nothing of what was computed so far."""
        self._commands.put(self.engine.reset_prefix_cache)

    async def stop(self) -> None:
        self._commands.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    def _ended(self, job: Job, output: Output) -> None:
        job.left -= 1
        self.outstanding -= 1
        self._observer.ended(job, output)

    def _arrived(self, job: Job, arrival: Arrival) -> None:
        self._observer.arrived(job, arrival)
        output = arrival.event.output
        if output is not None:
            self._ended(job, output)
        if output is not None and output.finish is Finish.ERROR:
            job.fail(JobError(output.error or "the request failed"))
        else:
            job.arrive(arrival)

    def _cancelled(self, job: Job, output: Output, reason: str) -> None:
        self._ended(job, output)
        job.fail(JobError(reason))

    def _lost(self, job: Job, error: Exception) -> None:
        """Never admitted, or the thread is gone."""
        self.outstanding -= job.left
        job.left = 0
        job.fail(error)

    # on the thread

    def _run(self) -> None:
        try:
            while self.alive:
                self._obey()
                self._send()  # who was admitted need not wait for the step
                if self.engine.busy:
                    self._step()
                    self._send()
        except Exception as error:  # noqa: BLE001 - logged whole
            _LOG.exception("the engine's thread ends")
            self._die(JobError(f"the engine has stopped: {error}"))

    def _obey(self) -> None:
        """All commands that wait; the next one if there is nothing else to do."""
        if not self.engine.busy:
            self._commands.get()()
        with suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _send(self) -> None:
        """One wake-up of the loop a step, however many requests it moved."""
        outbox, self._outbox = self._outbox, []
        if outbox:
            try:
                self._loop.call_soon_threadsafe(_do, outbox)
            except RuntimeError:  # the loop is closed: nobody listens any more
                self.alive = False

    def _add(self, job: Job) -> None:
        """All requests of a job, or none."""
        if not self.alive:
            self._refuse(job, JobError("the engine has stopped"))
            return
        try:
            for ask in job.asks:
                job.names.append(self.engine.add(ask.prompt, ask.params, ask.prediction))
        except RequestError as error:
            self._refuse(job, error)
            return
        except Exception as error:  # noqa: BLE001 - logged whole
            _LOG.exception("a request could not be added")
            self._refuse(job, JobError(f"the request could not be added: {error}"))
            return
        self._jobs.update({name: (job, index) for index, name in enumerate(job.names)})
        self._outbox.append(job.admit)

    def _refuse(self, job: Job, error: Exception) -> None:
        for name in job.names:
            self.engine.abort(name)
        job.names.clear()
        self._outbox.append(partial(self._lost, job, error))

    def _abort(self, job: Job) -> None:
        self._end([name for name in job.names if name in self._jobs], "the request was cancelled")

    def _abort_all(self, reason: str) -> None:
        self._end(list(self._jobs), reason)

    def _end(self, names: Sequence[int], reason: str) -> None:
        for name in names:
            job, _ = self._jobs.pop(name)
            output = self.engine.abort(name)
            if output is not None:
                self._outbox.append(partial(self._cancelled, job, output, reason))

    def _step(self) -> None:
        try:
            events = self.engine.step()
        except Exception as error:  # noqa: BLE001 - logged whole
            _LOG.exception("a step failed")
            self._after_failure(error)
            return
        self._failures, now = 0, perf_counter()
        for event in events:
            job, index = self._jobs[event.request]
            if event.output is not None:
                del self._jobs[event.request]
            self._outbox.append(partial(self._arrived, job, Arrival(index, event, now)))

    def _after_failure(self, error: Exception) -> None:
        """A step that fails again ends the requests that were in it; those that wait go on."""
        self._failures += 1
        if self._failures < _TRIES:
            return
        self._failures = 0
        scheduler = self.engine.scheduler
        victims = scheduler.running or scheduler.waiting
        self._end([s.request.id for s in victims], f"the model failed: {error}")

    def _stop(self) -> None:
        self._end(list(self._jobs), "the server is shutting down")
        self._close()

    def _die(self, error: JobError) -> None:
        jobs = {id(job): job for job, _ in self._jobs.values()}
        self._jobs.clear()
        self._outbox += [partial(self._lost, job, error) for job in jobs.values()]
        self._close()
        self._send()

    def _close(self) -> None:
        """Nothing is taken any more, and what was asked meanwhile is refused."""
        with self._gate:
            self.alive = False
        with suppress(Empty):
            while True:
                self._commands.get_nowait()()


def _do(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()
