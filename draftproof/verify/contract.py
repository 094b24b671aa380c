"""What the parts of the conformance suite say to each other: jobs, samples, engines under test, checks, results.

Imports nothing of the engine, here or anywhere in `verify` but in `verify/adapters/draftproof.py`: an oracle that
shares code with what it judges shares its bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Ability(StrEnum):
    """What an engine declares; checks are chosen by it. What is not declared is reported as not shown."""

    SEEDS = "seeds"  # a seed decides the output, whatever else runs
    SEED_PROMISE = "bitwise"  # ... and whatever the draft: equal with and without speculation
    PLAIN = "plain"  # the same engine can run without speculation
    BATCH = "batch"  # several jobs at once, mixed parameters
    COUNTS = "counts"  # proposed and accepted tokens per sample
    STEPS = "steps"  # proposed and accepted tokens per step
    LOGPROBS = "logprobs"  # natural log-probabilities of emitted tokens under the model's own softmax
    STREAM = "stream"  # text and tokens piece by piece
    ABORT = "abort"  # a job can be cancelled in mid-flight
    PREEMPT = "preempt"  # the engine can be made to preempt
    PENALTIES = "penalties"  # repetition, presence, frequency
    REPETITION = "repetition"  # repetition penalty
    LOGIT_BIAS = "logit_bias"
    MIN_TOKENS = "min_tokens"
    MIN_P = "min_p"
    STOP_TOKENS = "stop_tokens"
    STOP_STRINGS = "stop_strings"
    CONTEXT = "context"  # says how many tokens prompt and output may have together, and ends there
    RULES = "rules"  # its accept rules can be called as functions
    LOSSY = "lossy"  # rules that change the law, by names of its own
    TEACHER = "teacher"  # logits of a given text, for worlds without an exact oracle


@dataclass(frozen=True, slots=True)
class Params:
    """Sampling parameters of one job, in the field's common words. `k` = 0 asks for plain decoding."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    max_tokens: int = 2
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = True
    k: int = 2
    rule: str = ""  # the engine's default
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    prompt: tuple[int, ...]
    params: Params = field(default_factory=Params)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class StepCount:
    """One step: tokens proposed that the verdict could see, and how many of them it accepted."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine returned for one job. `finish` is "stop", "length", "abort" or "error"."""

    tokens: tuple[int, ...]
    finish: str = "length"
    text: str | None = None
    logprobs: tuple[float, ...] | None = None
    proposed: int | None = None
    accepted: int | None = None
    steps: tuple[StepCount, ...] | None = None
    usage: int | None = None  # the engine's own count of emitted tokens
    error: str | None = None


class EngineError(RuntimeError):
    """The engine under test died, hung or answered garbage: it could not be tested."""


class SeesVerdict(Protocol):
    """What a rule under test must return: how many draft tokens stand, and the one token that follows them."""

    @property
    def accepted(self) -> int: ...
    @property
    def token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RuleUnderTest:
    """An accept rule as a pure function, with what is needed to call it.

    `verdict(rows, draft, noise)`: rows[i] is the target law at position i, i = 0 .. k.
    `draw(law, noise, offset)` draws a draft token.
    `law(probs)` and `draft(tokens, laws)` make the rule's own objects; laws must offer `.dense()`. The noise has
    `uniform(offset, purpose)`, `sample(offset)` and `race(offset).winner(law)`, see `enumerate.py`.
    `acceptance` names the acceptance law to expect: "token", "block", "sampled", "coupled", or "" for none.
    `trees`: the rule judges trees as well. Then `draft(tokens, laws, parents)` makes one: node 0 is the last token of
    the text, node i + 1 is token i and hangs from node parents[i]; rows[n] is the law behind node n; the verdict's
    `path` names the accepted nodes.
    """

    name: str
    verdict: Callable[[Sequence[Any], Any, Any], SeesVerdict]
    draw: Callable[[Any, Any, int], int]
    law: Callable[[Floats], Any]
    draft: Callable[..., Any]
    acceptance: str = ""
    trees: bool = False


class EngineUnderTest(Protocol):
    """An adapter. `sample` may run the jobs in any batches it likes; it returns one Sample a job, in order."""

    @property
    def name(self) -> str: ...
    @property
    def abilities(self) -> frozenset[Ability]: ...
    @property
    def rules(self) -> tuple[str, ...]:
        """Exact rules that a job may name; ("",) if there is no choice."""
        ...

    @property
    def context(self) -> int:
        """Most tokens that prompt and output may have together; only with Ability.CONTEXT."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Versions and settings, for the report."""
        ...

    def sample(self, jobs: Sequence[Job]) -> list[Sample]: ...
    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        """(new tokens, new text) pieces of one job; only with Ability.STREAM."""
        ...

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        """Target logits after each token [tokens, vocab], fed `chunk` rows at a time; only with Ability.TEACHER."""
        ...

    def rule(self, name: str) -> RuleUnderTest:
        """One of `rules` as a function; only with Ability.RULES."""
        ...

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        """Like sample; job i is cancelled after abort[i] engine steps; only with Ability.ABORT."""
        ...

    def sample_tight(self, jobs: Sequence[Job]) -> list[Sample]:
        """Like sample, with so little KV memory that jobs are preempted; only with Ability.PREEMPT."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class World:
    """A target/draft pair whose laws are known exactly. Both functions map a prefix to float64 logits [vocab].

    `draft` is None where the engine's proposer is not a model, such as n-grams. `impossible` tokens have no mass under
    either, so that one of them in an output proves a fault at once.
    """

    name: str
    vocab: int
    target: Callable[[tuple[int, ...]], Floats]
    draft: Callable[[tuple[int, ...]], Floats] | None
    words: tuple[str, ...] = ()  # text of each token
    eos: tuple[int, ...] = ()
    impossible: tuple[int, ...] = ()


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    UNTESTED = "could not be tested"
    MEASURED = "measured"  # lossy rules and numerics: a figure, no claim


@dataclass(frozen=True, slots=True)
class Result:
    """One check's outcome. `p_value` 0 means proof (something impossible was seen), 1 a check without statistics."""

    name: str
    claim: str
    verdict: Verdict
    samples: int = 0
    p_value: float = 1.0
    detectable_tv: float | None = None
    power: float | None = None
    witness: Mapping[str, Any] | None = None
    note: str = ""
    seconds: float = 0.0
    plots: Mapping[str, Any] = field(default_factory=dict)  # series for the report, by plot name


@dataclass(frozen=True, slots=True)
class Budget:
    """`alpha`: probability that an honest engine fails anywhere in the run. The rest decides sample sizes."""

    alpha: float = 1e-6
    tv: float = 0.02  # smallest total variation distance that must be seen ...
    power: float = 0.99  # ... with this probability
    level: str = "default"  # quick, default, deep
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault: an engine, or a rule within one, that is wrong in one place. `check` must kill it."""

    name: str
    what: str  # the fault in a few words, with its case number if it has one
    check: str
    make: Callable[[World], EngineUnderTest]
    world: str = "tabular"  # name of the world that it is shown on


class Check(Protocol):
    """One claim, tested. `alpha` is this check's share of the budget."""

    @property
    def name(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def needs(self) -> frozenset[Ability]: ...

    def run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result: ...
