"""Results on disk, a JSON line each: the plan, a line a run as it is done, and an end. What is there is never changed.

A killed run goes on with what is missing. A torn last line is dropped; other damage is refused. Knows neither how runs
come about nor what follows from them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from draftproof.bench.plan import Plan, changed, plan_from_json, plan_json
from draftproof.types import RequestError


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of a run. Times are seconds since it was due, which is `due` seconds behind the run's start.

    `chunks` are (time, tokens) as they came out; `ttft` is the time of the first, `end` that of the end (without
    tokens, both are the end's). `steps` emitted something, the first of them `first` tokens. `accepted_at[i]` of
    `reached_at[i]` drafts that reached position i were accepted there. It was sent `late` seconds behind its time.
    """

    prompt: str
    ttft: float
    end: float
    chunks: tuple[tuple[float, int], ...]
    tokens: int
    finish: str
    proposed: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    reached_at: tuple[int, ...] = ()
    steps: int = 0
    first: int = 0
    due: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a server counts of all drafts of a run. All zero where it counts nothing; `*_at` are as of a request, and
    empty where drafts of several lengths leave them open."""

    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    reached_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Decode:
    """Steps in which every sequence emitted tokens that were not its first: no prompt is read in them.

    `seconds` are of whole steps; `sequence_steps` counts a step once for each sequence in it.
    """

    steps: int = 0
    sequence_steps: int = 0
    tokens: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One group under one configuration.

    `wall` are the seconds of it all, `loop` those inside of the steps, `seconds` where they went by the engine's own
    account. `rows` are (rows in a verification pass, seconds of such passes, how many). What a runner cannot see is
    empty.
    """

    group: int
    config: str
    wall: float
    peak_bytes: int
    load1: float
    requests: tuple[RequestRecord, ...]
    steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    loop: float = 0.0
    decode: Decode = field(default_factory=Decode)
    rows: tuple[tuple[int, float, int], ...] = ()
    tokens_per_step: float = 0.0
    drafted: Drafted = field(default_factory=Drafted)


@dataclass(frozen=True, slots=True)
class Result:
    """A result file. `ended` if it has its end line; `resumed` counts how often it was gone on with."""

    plan: Plan
    runs: tuple[RunRecord, ...]
    ended: bool = False
    resumed: int = 0

    @property
    def done(self) -> set[tuple[int, str]]:
        return {(run.group, run.config) for run in self.runs}

    @property
    def complete(self) -> bool:
        return self.ended and len(self.runs) == len(self.plan.runs)


class Results:
    """A result file that is being written, by one bench at a time."""

    def __init__(self, file: BinaryIO, result: Result) -> None:
        self._file, self.result = file, result
        self.done = result.done

    def __enter__(self) -> Results:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, run: RunRecord) -> None:
        """On disk when this returns."""
        if (run.group, run.config) in self.done:
            raise ValueError(f"group {run.group} was measured under {run.config} before")
        _append(self._file, {"kind": "run", **asdict(run)})
        self.done.add((run.group, run.config))

    def end(self) -> None:
        if len(self.done) != len(self.result.plan.runs):
            raise ValueError(f"{len(self.done)} of {len(self.result.plan.runs)} runs are done")
        if not self.result.ended:
            _append(self._file, {"kind": "end", "complete": True})


def create(path: Path, plan: Plan) -> Results:
    """A new file that begins with the plan.

    Raises:
        RequestError: there is one already, or it cannot be written.
    """
    try:
        file = path.open("x+b")
    except FileExistsError:
        raise RequestError(f"{path} exists: go on with it by --resume, or give another --out") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror or error}") from error
    _lock(file, path)
    _append(file, plan_json(plan))
    return Results(file, Result(_plain(plan), ()))


def resume(path: Path, plan: Plan, note: Mapping[str, Any]) -> Results:
    """Go on with a file. `note` is written down with it: when, and under which load.

    Raises:
        RequestError: there is no such file, it is in use or damaged, or it is of another plan.
    """
    try:
        file = path.open("r+b")
    except OSError as error:
        raise RequestError(f"{path} cannot be gone on with: {error.strerror or error}") from error
    try:
        _lock(file, path)
        whole, result = _parse(path, file.read())
        different = changed(result.plan, _plain(plan))
        if different:
            raise RequestError(
                f"{path} was measured to another plan (other: {', '.join(different)}): give the options of its "
                "command, or another --out"
            )
        file.truncate(whole)
        file.seek(whole)
        if not result.ended:
            _append(file, {"kind": "resume", **note})
    except BaseException:
        file.close()
        raise
    return Results(file, result)


def read(path: Path) -> Result:
    """Whatever a file holds, complete or not.

    Raises:
        RequestError: it is no result file, or damaged in another place than its last line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    return _parse(path, content)[1]


def _parse(path: Path, content: bytes) -> tuple[int, Result]:
    """The result, and the bytes of its whole lines."""
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if not lines:
        raise RequestError(f"{path} holds no plan, so that nothing was measured yet: remove it or give another file")
    try:
        plan = plan_from_json(_record(lines[0], ("plan",)))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path}, line 1: this is no plan of draftproof bench ({error})") from error
    runs, ended, resumed = dict[tuple[int, str], RunRecord](), False, 0
    wanted = set(plan.runs)
    for number, line in enumerate(lines[1:], 2):
        try:
            told = _record(line, ("run", "resume", "end"))
            ended, resumed = ended or told["kind"] == "end", resumed + (told["kind"] == "resume")
            if told["kind"] == "run":
                _take(run_from_json(told), wanted, runs)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(f"{path}, line {number}: this is no record of its plan ({error})") from error
    return len(whole), Result(plan, tuple(runs.values()), ended, resumed)


def _take(run: RunRecord, wanted: set[tuple[int, str]], runs: dict[tuple[int, str], RunRecord]) -> None:
    key = (run.group, run.config)
    if key in runs or key not in wanted:
        what = "measured twice" if key in runs else "not planned"
        raise ValueError(f"group {run.group} under {run.config} is {what}")
    runs[key] = run


def _record(line: bytes, kinds: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(line)
    if told["kind"] not in kinds:
        raise ValueError(f"kind {told['kind']!r}")
    return told


def run_from_json(told: Mapping[str, Any]) -> RunRecord:
    fields = {name: value for name, value in told.items() if name != "kind"}
    return RunRecord(
        **{
            **fields,
            "requests": tuple(_request(**r) for r in fields["requests"]),
            "decode": Decode(**fields["decode"]),
            "drafted": _drafted(**fields.get("drafted", {})),
            "rows": tuple((int(r), float(s), int(n)) for r, s, n in fields["rows"]),
        }
    )


def _drafted(accepted_at: Sequence[int] = (), reached_at: Sequence[int] = (), **counts: int) -> Drafted:
    return Drafted(**counts, accepted_at=tuple(accepted_at), reached_at=tuple(reached_at))


def _request(**told: Any) -> RequestRecord:
    counts = {name: tuple(told[name]) for name in ("accepted_at", "reached_at")}
    chunks = tuple((float(t), int(n)) for t, n in told["chunks"])
    return RequestRecord(**{**told, **counts, "chunks": chunks})


def _plain(plan: Plan) -> Plan:
    """The plan as it is after a file."""
    return plan_from_json(json.loads(_line(plan_json(plan))))


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, default=str) + "\n").encode()


def _append(file: BinaryIO, record: Mapping[str, Any]) -> None:
    file.write(_line(record))
    file.flush()
    os.fsync(file.fileno())


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RequestError(f"{path} is in use by another bench: wait for it, or give another --out") from None
