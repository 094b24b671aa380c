"""Results on disk, a JSON line each, so that a run that is killed continues where it was.

The first line says what the results are of; another plan, version or seed is refused. A torn last line is dropped.
Knows neither how checks run nor what follows from them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from draftproof.verify.plan import Entry, State, VerifyError, entry_from_json, key, plain

_FORMAT = 1
_START = b'{"draftproof verify"'
_DEATHS = 3  # times that a check may take the whole process with it


class Store:
    """Open for one run at a time. `done` holds what needs no second run."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[str, Entry] = {}
        self.engines: dict[str, dict[str, str]] = {}  # leg -> what its engine said of itself
        self._begun: dict[str, int] = {}
        self._file = self._lock(path)
        try:
            self._read({"format": _FORMAT, **plain(header)})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def engine(self, leg: str, description: Mapping[str, str]) -> None:
        """Note what the leg's engine says of itself.

        Raises:
            VerifyError: stored results of this leg are of another engine.
        """
        said = {str(k): str(v) for k, v in description.items()}
        known = self.engines.setdefault(leg, said)
        if known != said:
            changed = ", ".join(k for k in sorted({*known, *said}) if known.get(k) != said.get(k))
            raise VerifyError(f"{self.path}: the engine of {leg!r} has changed since ({changed}); {_FIX}")
        self._append({"engine": leg, "description": said})

    def begin(self, leg: str, check: str) -> None:
        self._append({"begin": key(leg, check)})

    def stop(self, leg: str, check: str) -> None:
        """The check was interrupted by the user: not its fault."""
        self._append({"stop": key(leg, check)})

    def deadly(self, leg: str, check: str) -> bool:
        """Whether the whole process died in this check every time."""
        return self._begun.get(key(leg, check), 0) >= _DEATHS

    def add(self, entry: Entry) -> None:
        self._append(plain(entry))

    def _append(self, record: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self, path: Path) -> BinaryIO:
        try:
            file = path.open("a+b")
        except OSError as error:
            raise VerifyError(f"{path} cannot be used as a store: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise VerifyError(f"{path} is in use by another run: wait for it or give another file") from None
        return file

    def _read(self, header: dict[str, Any]) -> None:
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        lines = whole.splitlines() if whole else []
        records = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        if records:
            self._agree(records[0], header)
        elif not (torn.startswith(_START) or _START.startswith(torn)):
            raise VerifyError(f"{self.path} is not a store of draftproof verify: give another file")
        if torn:
            self._file.truncate(len(whole) + 1 if whole else 0)
        if not records:
            self._append({"draftproof verify": header})
        for record in records[1:]:
            self._take(record)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise VerifyError(f"{self.path}, line {number}: this is no record of draftproof verify; {_FIX}")
        return record

    def _agree(self, record: dict[str, Any], header: dict[str, Any]) -> None:
        stored = record.get("draftproof verify")
        if not isinstance(stored, dict):
            raise VerifyError(f"{self.path} is not a store of draftproof verify: give another file")
        changed = [name for name in sorted({*stored, *header}) if stored.get(name) != header.get(name)]
        if changed:
            told = "; ".join(f"{n} was {stored.get(n)} and is {header.get(n)}" for n in changed)
            raise VerifyError(f"{self.path} holds results of another run ({told}); {_FIX}")

    def _take(self, record: dict[str, Any]) -> None:
        if "engine" in record:
            self.engines[record["engine"]] = record["description"]
        elif "begin" in record:
            self._begun[record["begin"]] = self._begun.get(record["begin"], 0) + 1
        elif "stop" in record:
            self._begun[record["stop"]] = 0
        else:
            entry = entry_from_json(record)
            self._begun[entry.key] = 0
            if entry.state is not State.BROKE:  # what broke is tried again
                self.done.setdefault(entry.key, entry)


_FIX = "give another file, or remove this one to begin anew"
