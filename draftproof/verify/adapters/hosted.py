"""An engine that lives in a process of its own: jobs go in and samples come out as JSON lines.

Knows no engine: a worker script does, under the engine's own interpreter. What the worker prints is kept in a log.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Ability, EngineError, Job, RuleUnderTest, Sample, StepCount

_WORKERS = Path(__file__).parent / "workers"
_PATIENCE = 5.0  # seconds that a worker has to leave


class Child:
    """A worker process. Not for several threads at a time."""

    def __init__(self, python: Path, script: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._out = log.open("w", encoding="utf-8")
        command = [str(python), "-P", str(_WORKERS / "lines.py"), str(_WORKERS / script)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._out, text=True, encoding="utf-8"
        )

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The worker's answer.

        Raises:
            EngineError: it says so, it ended, or it answered no JSON.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            raise EngineError(f"the engine's process ended: {self._last_words()} (log: {self.log.name})") from error
        if "error" in answer:
            raise EngineError(f"the engine reports an error: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)  # it says them as it goes
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"status {self._process.poll()}, {lines[-1] if lines else 'without a word'}"

    def close(self) -> None:
        """End the process, by force if it does not leave."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # what it did not read any more
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._out.close()


class Hosted:
    """An engine under test behind a `Child`. `setup` is what its worker's `make` gets.

    `abilities` and `rules` are as in `EngineUnderTest`; abilities that are not about `sample` cannot be offered.
    """

    context = 0

    def __init__(
        self,
        name: str,
        child: Child,
        setup: Mapping[str, Any],
        abilities: frozenset[Ability],
        rules: tuple[str, ...] = ("",),
    ) -> None:
        self.name, self.abilities, self.rules = name, abilities, rules
        self._child = child
        try:
            self._said: dict[str, str] = child.ask(setup)
        except EngineError:
            child.close()
            raise

    def describe(self) -> Mapping[str, str]:
        return self._said

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        answer = self._child.ask({"jobs": [asdict(job) for job in jobs]})
        return [_sample(told) for told in answer["samples"]]

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        return self._not_offered(job)

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        return self._not_offered(tokens, chunk)

    def rule(self, name: str) -> RuleUnderTest:
        return self._not_offered(name)

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        return self._not_offered(jobs, abort)

    def sample_tight(self, jobs: Sequence[Job]) -> list[Sample]:
        return self._not_offered(jobs)

    def _not_offered(self, *asked: object) -> NoReturn:
        del asked
        raise EngineError(f"{self.name} does not offer this")

    def close(self) -> None:
        self._child.close()


def _sample(told: Mapping[str, Any]) -> Sample:
    """Lists to tuples; what the worker leaves out keeps its default."""
    more: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
    if "steps" in more:
        more["steps"] = tuple(StepCount(*step) for step in more["steps"])
    return Sample(**more)
