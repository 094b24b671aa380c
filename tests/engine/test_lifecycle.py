"""I7, I11: requests come, run, are preempted and cancelled at any moment; the books balance, nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import drafting, finished, random_table, toy_engine

from draftproof import step as step_module
from draftproof.accept import RULES
from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.kv.pages import AuditError
from draftproof.scheduler import Scheduler
from draftproof.types import Finish, Output, SamplingParams

VOCAB = 5
PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "model": lambda: drafting(random_table(VOCAB, 2), VOCAB, min_rows=2, pages=30),
    "ngram": lambda: NgramProposer(VOCAB, 1, 3),
}
Work = tuple[list[int], SamplingParams]


def engine(proposer: str = "model", **info: int) -> Engine:
    return toy_engine(random_table(VOCAB, 1), VOCAB, PROPOSERS[proposer](), **{"min_rows": 2, "context": 40, **info})


def audit(made: Engine) -> None:
    made.audit()
    running = {s.request.id for s in made.scheduler.running}
    if isinstance(made.proposer, ModelProposer):
        made.proposer.audit()
        assert made.proposer._states.keys() <= running
    if isinstance(made.proposer, NgramProposer):
        assert made.proposer._indexes.keys() <= running


def assert_empty(made: Engine) -> None:
    audit(made)
    assert (made.pool.free, made.busy) == (made.pool.total, False)
    assert not made.scheduler.running
    assert not made.scheduler.waiting
    if isinstance(made.proposer, ModelProposer):
        assert made.proposer.pool.free == made.proposer.pool.total


def work(rng: np.random.Generator) -> Work:
    prompt = rng.integers(VOCAB, size=rng.integers(1, 20)).tolist()
    params = SamplingParams(
        k=int(rng.integers(6)),
        seed=int(rng.integers(1 << 40)),
        max_tokens=int(rng.integers(1, 19)),
        rule=list(RULES)[rng.integers(4)],
        stop=("cab",) if rng.random() < 0.3 else (),
    )
    return prompt, params


def program(made: Engine, seed: int, steps: int = 120) -> tuple[dict[int, Work], dict[int, Output]]:
    """A random program of add, step and abort, with an audit after each."""
    rng = np.random.default_rng(seed)
    asked: dict[int, Work] = {}
    outputs: dict[int, Output] = {}
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.3:
            item = work(rng)
            asked[made.add(*item)] = item
        elif choice < 0.45 and made._live:
            name = int(rng.choice(list(made._live)))
            free = made.pool.free + len(made._live[name].job.sequence.table.pages)
            output = made.abort(name)
            assert output is not None
            assert made.pool.free == free
            outputs[name] = output
        else:
            outputs.update({e.request: e.output for e in made.step() if e.output is not None})
        audit(made)
    outputs.update(finished(made))
    return asked, outputs


SETTINGS = [{"pages": 12}, {"pages": 16, "max_rows": 14}, {"max_rows": 12, "max_running": 3}]


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("seed", range(6))
def test_random_program(seed: int, proposer: str) -> None:
    """Cases 34 and 35. Every output, cut short or not, begins as the request would say it alone."""
    made = engine(proposer, **SETTINGS[seed % 3])
    asked, outputs = program(made, seed)
    assert_empty(made)
    assert outputs.keys() == asked.keys()
    for name, (prompt, params) in asked.items():
        aborted = outputs[name].finish is Finish.ABORT
        uncut = replace(params, stop=()) if aborted else params  # what may begin a stop string is not taken back then
        alone = engine(proposer).generate([prompt], uncut)[0]
        if aborted:
            assert outputs[name].tokens == alone.tokens[: len(outputs[name].tokens)]
        else:
            assert (outputs[name].tokens, outputs[name].finish) == (alone.tokens, alone.finish)


def test_the_program_meets_every_state() -> None:
    """Aborted: waiting, reading the prompt, running, preempted after it had said something."""
    met: set[str] = set()
    for seed in range(40):
        made = engine(**SETTINGS[seed % 3])
        abort = made.abort

        def watched(name: int, made: Engine = made, abort: Any = abort) -> Output | None:
            s = made._live[name].job.sequence
            waits = s in made.scheduler.waiting
            met.add(
                f"{'waiting' if waits else 'running'}, {'said' if s.kinds else 'read' if s.table.length else 'new'}"
            )
            return abort(name)  # type: ignore[no-any-return]

        made.abort = watched  # type: ignore[method-assign]
        program(made, seed)
    assert {"waiting, new", "waiting, said", "running, read", "running, said"} <= met


def test_abort_of_an_unknown_or_finished_request_is_nothing() -> None:
    made = engine()
    name = made.add([1], SamplingParams(max_tokens=1))
    assert made.abort(name + 1) is None
    finished(made)
    assert made.abort(name) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("place", ["target", "draft", "verdict"])
def test_a_failing_step_leaks_nothing_and_can_be_run_again(place: str, error: type[BaseException]) -> None:
    prompts, params = [[1], [2, 3, 4], [0] * 9], SamplingParams(k=3, max_tokens=12, seed=3, stop=("cab",))
    expected = [o.tokens for o in engine().generate(prompts, params)]
    made = engine()
    names = [made.add(p, params) for p in prompts]
    rule = next(iter(made._live.values())).job.rule
    calls = 0

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls in {3, 7, 12}:
                original(*args)  # what was written must not count
                raise error
            return original(*args)

        return call

    if place == "verdict":
        for live in made._live.values():
            job = live.job
            broken = type(rule)(rule.name, rule.draw, failing(rule.verdict))  # type: ignore[attr-defined, call-arg]
            live.job = step_module.Job(job.sequence, job.laws, broken, job.ending)
    else:
        model: Any = made.target if place == "target" else made.proposer.model  # type: ignore[attr-defined]
        model.forward = failing(model.forward)
    outputs: dict[int, Output] = {}
    failures = 0
    while made.busy:
        try:
            outputs.update({e.request: e.output for e in made.step() if e.output is not None})
        except error:
            failures += 1
        audit(made)
    assert failures > 1
    assert [outputs[n].tokens for n in names] == expected
    assert_empty(made)


def test_generate_that_fails_leaves_nothing_behind() -> None:
    made = engine()
    made.target.forward = lambda chunks: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        made.generate([[1], [2]])
    assert_empty(made)


def test_a_closed_stream_frees_its_request() -> None:
    made = engine()
    stream = made.stream([1, 2], SamplingParams(max_tokens=30, k=2))
    next(stream)
    assert made.pool.free < made.pool.total
    stream.close()
    assert_empty(made)


# planted faults


def _not_closed(self: Scheduler, sequence: Any, sound: bool = True) -> None:
    """Case 35: the pages of a request that ended are kept."""
    for queue in (self.waiting, self.running):
        if sequence in queue:
            queue.remove(sequence)


def _output_lost(self: Scheduler) -> Any:
    """A preempted request starts anew, without what it had said."""
    sequence = self.running.pop()
    sequence.table.roll_back(0)
    del sequence.tokens[len(sequence.request.prompt) :]
    self.waiting.insert(0, sequence)
    return sequence


def _pages_kept(self: Scheduler) -> Any:
    """A preempted request is reported, and still holds the KV that others overwrite."""
    sequence = self.running.pop()
    pages, length = list(sequence.table.pages), sequence.table.length
    sequence.table.roll_back(0)
    sequence.table._pages, sequence.table._length = pages, length
    self.waiting.insert(0, sequence)
    return sequence


FAULTS: dict[str, tuple[type, str, Any]] = {
    "pages of the target are kept": (Scheduler, "remove", _not_closed),
    "pages of the draft are kept": (ModelProposer, "forget", lambda self, request: None),
    "a preempted request loses its output": (Scheduler, "_preempt", _output_lost),
    "a preempted request keeps its pages": (Scheduler, "_preempt", _pages_kept),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    with pytest.raises((AssertionError, AuditError)):
        test_random_program(0, "model")
