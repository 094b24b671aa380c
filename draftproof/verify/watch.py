"""Guards around an engine under test: a worker thread with a time limit, and an engine that is watched as it answers.

Knows neither checks nor verdicts. A thread that hangs cannot be ended; it is left behind and holds no one up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import EngineError, EngineUnderTest, Job, Sample

T = TypeVar("T")
_FINISHES = ("stop", "length", "abort", "error")


class Hung(EngineError):
    """No answer within the time limit."""


class Worker:
    """One thread that does all the work of a subject, so that engines bound to their thread are fine."""

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[bool, Any]]] | None] = SimpleQueue()
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def _loop(self) -> None:
        while (asked := self._asked.get()) is not None:
            work, answer = asked
            try:
                answer.put((True, work()))
            except BaseException as error:  # noqa: BLE001  it is raised again where the work was asked for
                answer.put((False, error))

    def call(self, work: Callable[[], T], seconds: float) -> T:
        """The value of `work`, or what it raised.

        Raises:
            Hung: there was no answer in time; this worker must not be used again.
        """
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._asked.put((work, answer))
        try:
            fine, value = answer.get(timeout=seconds)
        except Empty:
            raise Hung(f"no answer within {seconds:g} s") from None
        if fine:
            done: T = value
            return done
        if isinstance(value, Exception):
            raise value
        raise EngineError(f"ended with {type(value).__name__}: {value}") from value  # SystemExit and the like

    def dismiss(self) -> None:
        self._asked.put(None)


class Watched:
    """An engine whose answers are looked at on their way: garbage is refused, drafting is counted."""

    def __init__(self, engine: EngineUnderTest, vocab: int) -> None:
        self._engine, self._vocab = engine, vocab
        self.forget()

    def forget(self) -> None:
        """Begin to count anew. `proposed` is None as long as the engine gives no count."""
        self.drafted = 0  # samples that were asked for with k > 0
        self.proposed: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        return self._seen(jobs, self._engine.sample(jobs))

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        return self._seen(jobs, self._engine.sample_aborting(jobs, abort))

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        rows = self._engine.logits(tokens, chunk)
        if np.shape(rows) != (len(tokens), self._vocab):
            wanted = (len(tokens), self._vocab)
            raise EngineError(f"answered garbage: logits of shape {np.shape(rows)} instead of {wanted}")
        return rows

    def _seen(self, jobs: Sequence[Job], samples: Any) -> list[Sample]:
        if not isinstance(samples, list | tuple) or len(samples) != len(jobs):
            what = f"{len(samples)} samples" if isinstance(samples, list | tuple) else type(samples).__name__
            raise EngineError(f"answered garbage: {what} for {len(jobs)} jobs")
        for job, sample in zip(jobs, samples, strict=True):
            self._look(sample)
            if job.params.k > 0:
                self._count(sample)
        return list(samples)

    def _look(self, sample: Any) -> None:
        if not isinstance(sample, Sample):
            raise EngineError(f"answered garbage: {type(sample).__name__} instead of a Sample")
        if sample.finish not in _FINISHES:
            raise EngineError(f"answered garbage: finish {sample.finish!r}")
        for token in sample.tokens:
            if not isinstance(token, int | np.integer) or not 0 <= token < self._vocab:
                raise EngineError(f"answered garbage: token {token!r} in a vocabulary of {self._vocab}")

    def _count(self, sample: Sample) -> None:
        proposed = sample.proposed
        if proposed is None and sample.steps is not None:
            proposed = sum(step.proposed for step in sample.steps)
        self.drafted += 1
        if proposed is not None:
            self.proposed = (self.proposed or 0) + proposed
