"""The order of measuring: warm up, then every group under every configuration, each written down as it is done.

Knows no engine: whatever runs a group under a configuration is a Runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from draftproof.bench.groups import Group
from draftproof.bench.plan import Config, Plan
from draftproof.bench.results import Results, RunRecord
from draftproof.types import SamplingParams

_WARM_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a group: the prompt's name in the plan, its text and its tokens."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    params: SamplingParams


class Runner(Protocol):
    """Runs requests side by side. It must not remember answers: the same prompts come again."""

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        """All of `asked` begin at once; returns when the last has ended.

        Raises:
            RequestError: a request failed; the run counts as not done.
        """
        ...


class Source(NamedTuple):
    """What a planned prompt stands for."""

    text: str
    tokens: tuple[int, ...]


class Progress(NamedTuple):
    """Tokens asked for in the runs that are done, and in all; what runs now."""

    done: int
    total: int
    what: str


Said = Callable[[Progress], None]


def measure(
    plan: Plan, sources: Sequence[Source], runner: Runner, results: Results, said: Said = lambda _: None
) -> None:
    """Do what is missing in `results`. sources: one for each prompt of the plan, in its order."""
    missing = [run for run in plan.runs if run not in results.done]
    total, done = (sum(_size(plan, plan.groups[n]) for n, _ in runs) for runs in (plan.runs, results.done))
    if missing:
        said(Progress(done, total, "warming up"))
        warm_up(plan, sources, runner)
    for number, name in missing:
        group = plan.groups[number]
        said(Progress(done, total, f"{name}, {plan.load.called(group.batch)}"))
        results.add(runner.run(number, plan.config(name), requests(plan, sources, group, plan.config(name))))
        done += _size(plan, group)
    said(Progress(done, total, "done"))
    results.end()


def warm_up(plan: Plan, sources: Sequence[Source], runner: Runner) -> None:
    """The first group of each size under each configuration, a few tokens long. Not written down."""
    for batch in plan.batches:
        number = next(n for n, group in enumerate(plan.groups) if group.batch == batch)
        for config in plan.configs:
            asked = requests(plan, sources, plan.groups[number], config)
            short = [replace(a, params=replace(a.params, max_tokens=_WARM_TOKENS)) for a in asked]
            runner.run(number, config, short)


def requests(plan: Plan, sources: Sequence[Source], group: Group, config: Config) -> list[Asked]:
    """What a group asks under a configuration: the seeds are the same under each, but for k=auto, which has none.

    A seeded request is decided from its own history alone; a user's is not.
    """
    asked = []
    for place, index in enumerate(group.prompts):
        prompt, source = plan.prompts[index], sources[index]
        params = SamplingParams(
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            max_tokens=prompt.max_tokens,
            ignore_eos=plan.ignore_eos,
            seed=None if config.k == "auto" else (group.seed + place) % 2**64,
            k=config.k,
            rule=config.rule,
        )
        asked.append(Asked(prompt.id, source.text, source.tokens, params))
    return asked


def _size(plan: Plan, group: Group) -> int:
    return sum(plan.prompts[index].max_tokens for index in group.prompts)
