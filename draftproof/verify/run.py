"""Plan -> entries: every check of every leg in turn, guarded, stored at once, resumable.

Knows nothing of rules, laws or statistics. An engine that dies, hangs or answers garbage could not be tested; nothing
here turns that into a pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draftproof.verify.contract import Budget, Check, EngineError, Result, Verdict
from draftproof.verify.plan import Entry, Leg, State, VerifyError, essential, key, plain, planned, readable, statistical
from draftproof.verify.store import Store
from draftproof.verify.watch import Hung, Watched, Worker

_STRIKES = 3  # an engine that broke so often in a row is given up
_FAREWELL = 10.0  # seconds that an engine has to close


class Progress(NamedTuple):
    """Before a check `entry` is None, after it the outcome."""

    done: int
    total: int
    leg: str
    check: str
    entry: Entry | None = None


@dataclass(slots=True)
class Ran:
    """All that a run obtained, one entry a planned check, in the plan's order."""

    entries: list[Entry] = field(default_factory=list)
    engines: dict[str, dict[str, str]] = field(default_factory=dict)  # leg -> what its engine said of itself
    interrupted: bool = False


def run_plan(
    legs: Sequence[Leg],
    budget: Budget,
    *,
    store: Store | None = None,
    timeout: float = 900.0,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Ran:
    """Run what the store does not hold yet. Ctrl-C keeps what was obtained; the rest is marked as not run.

    Raises:
        VerifyError: the plan names two things alike, or the store is of another engine.
    """
    share = budget.alpha / max(planned(legs), 1)
    total = sum(len(leg.checks) for leg in legs)
    ran = Ran(engines=dict(store.engines) if store else {})
    try:
        for leg in legs:
            _Subject(leg, budget, share, timeout, store, ran, total, progress).run()
    except KeyboardInterrupt:
        ran.interrupted = True
        known = {entry.key for entry in ran.entries}
        for leg in legs:
            rest = [c for c in leg.checks if key(leg.name, c.name) not in known]
            kept = (store.done.get(key(leg.name, c.name)) if store else None for c in rest)
            ran.entries += [k or _untested(leg, c, "interrupted", State.UNRUN) for k, c in zip(kept, rest, strict=True)]
    return ran


class _Subject:
    """One leg as it runs: its engine, made when first needed and again after it broke."""

    def __init__(
        self,
        leg: Leg,
        budget: Budget,
        share: float,
        timeout: float,
        store: Store | None,
        ran: Ran,
        total: int,
        progress: Callable[[Progress], None],
    ) -> None:
        self._leg, self._budget, self._share, self._timeout = leg, budget, share, timeout
        self._store, self._ran, self._total, self._progress = store, ran, total, progress
        self._worker: Worker | None = None
        self._engine: Watched | None = None
        self._strikes, self._last = 0, ""

    def run(self) -> None:
        try:
            for check in self._leg.checks:
                self._one(check)
        finally:
            self._leave()

    def _one(self, check: Check) -> None:
        name = key(self._leg.name, check.name)
        stored = self._store.done.get(name) if self._store else None
        at = Progress(len(self._ran.entries), self._total, self._leg.name, check.name)
        if stored is None:
            self._progress(at)
            stored = self._noted(check)
        else:
            self._ran.entries.append(stored)
        self._progress(at._replace(done=len(self._ran.entries), entry=stored))

    def _noted(self, check: Check) -> Entry:
        """Try the check, and put the outcome into the store whatever happens."""
        if self._store is None:
            entry = self._tried(check)
            self._ran.entries.append(entry)
            return entry
        leg = self._leg.name
        deadly = self._store.deadly(leg, check.name)
        self._store.begin(leg, check.name)
        try:
            died = "the whole process died in this check, several times"
            entry = _untested(self._leg, check, died) if deadly else self._tried(check)
        except KeyboardInterrupt:
            self._store.stop(leg, check.name)
            raise
        self._ran.entries.append(entry)
        self._store.add(entry)
        return entry

    def _tried(self, check: Check) -> Entry:
        began = time.perf_counter()
        if self._strikes >= _STRIKES:
            return _untested(
                self._leg, check, f"given up: the engine broke {_STRIKES} times, the last time: {self._last}"
            )
        try:
            entry = self._tested(check)
        except VerifyError:
            raise
        except EngineError as error:
            entry = self._broken(check, "hung or far too slow: " if isinstance(error, Hung) else "", error)
        except Exception as error:  # noqa: BLE001  whatever it was, it is no pass
            entry = self._broken(check, f"{type(error).__name__}: ", error)
        seconds = entry.result.seconds or time.perf_counter() - began
        return replace(entry, result=replace(entry.result, seconds=seconds))

    def _tested(self, check: Check) -> Entry:
        worker, engine = self._opened()
        lacking = sorted(check.needs - engine.abilities)
        if lacking:
            return _untested(self._leg, check, f"the engine does not declare {', '.join(lacking)}", State.SKIPPED)
        engine.forget()
        world, budget, share = self._leg.world, self._budget, self._share
        result = _sound(check, worker.call(lambda: check.run(engine, world, budget, share), self._timeout))
        self._strikes = 0
        entry = replace(_untested(self._leg, check, ""), state=State.RAN, result=result)
        return replace(entry, drafted=engine.drafted, proposed=engine.proposed)

    def _broken(self, check: Check, what: str, error: Exception) -> Entry:
        self._last = f"{what}{error}" or type(error).__name__
        self._strikes += 1
        self._leave()
        return _untested(self._leg, check, self._last)

    def _opened(self) -> tuple[Worker, Watched]:
        if self._worker is None:
            self._worker = Worker(f"verify {self._leg.name}")
        worker = self._worker
        if self._engine is None:
            made = worker.call(self._leg.engine, self._timeout)
            self._engine = Watched(made, self._leg.world.vocab)
            self._describe(worker.call(made.describe, self._timeout))
        return worker, self._engine

    def _describe(self, description: Mapping[str, str]) -> None:
        self._ran.engines[self._leg.name] = {str(k): str(v) for k, v in description.items()}
        if self._store is not None:
            self._store.engine(self._leg.name, description)

    def _leave(self) -> None:
        """Close the engine from a thread of its own: the one that worked for it may hang."""
        worker, engine = self._worker, self._engine
        self._worker = self._engine = None
        if worker is not None:
            worker.dismiss()
        if engine is None:
            return
        closer = Worker("verify close")
        try:
            closer.call(engine.close, _FAREWELL)
        except Exception:  # noqa: BLE001  its results are in; how it leaves proves nothing
            return
        closer.dismiss()


def _sound(check: Check, result: object) -> Result:
    """The check's result in plain values.

    Raises:
        EngineError: it is none.
    """
    if not isinstance(result, Result):
        raise EngineError(f"the check returned {type(result).__name__} instead of a Result")
    if not isinstance(result.verdict, Verdict) or not 0.0 <= float(result.p_value) <= 1.0:
        raise EngineError(f"the check returned verdict {result.verdict!r} with p-value {result.p_value!r}")
    if result.detectable_tv is not None and not math.isfinite(result.detectable_tv):
        result = replace(result, detectable_tv=None)
    told = {name: plain(getattr(result, name)) for name in ("samples", "p_value", "detectable_tv", "power", "seconds")}
    told |= {"witness": plain(result.witness), "plots": plain(result.plots), "note": readable(str(result.note))}
    return replace(result, name=check.name, claim=check.claim, **told)


def _untested(leg: Leg, check: Check, note: str, state: State = State.BROKE) -> Entry:
    result = Result(check.name, check.claim, Verdict.UNTESTED, note=readable(note))
    needed = essential(leg, check, state is State.SKIPPED)
    return Entry(leg.name, result, state, needed, statistical(check))
