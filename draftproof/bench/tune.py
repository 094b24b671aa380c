"""How a draft length is recommended: costs and acceptance say what to measure, measuring says what to do.

Runs with the longest draft show the acceptance by position; with the profiled costs it promises a speed-up for every
length and batch size. The two lengths that promise most are measured against plain decoding as `draftproof bench` does,
in rounds, until nothing more can change the advice. Knows runners; knows no engine, terminal or file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from draftproof.accept import RULES
from draftproof.bench.advice import Advice, Looks, advise, looks
from draftproof.bench.groups import Group, groups
from draftproof.bench.measure import Progress, Runner, Said, Source, requests, warm_up
from draftproof.bench.plan import PLAIN, Plan, Wish, configs
from draftproof.bench.promise import Promise, Seen, promises, seen, shortlist
from draftproof.bench.results import RunRecord
from draftproof.bench.speedups import decode_seconds
from draftproof.length.profile import Profile
from draftproof.types import MOST_K, RequestError

FINALISTS = 2  # lengths that are measured
LEARNED, LEARNING = 24, 0.25  # groups, and share of the time, at most, that show the acceptance
Planned = Callable[[Wish], tuple[Plan, Sequence[Source]]]


@dataclass(frozen=True, slots=True)
class Task:
    """`wish` has no draft lengths; its batches are looked at one by one. `minutes` are for all of it.

    Raises:
        RequestError: nothing can be recommended like that; the message names the fix.
    """

    wish: Wish
    most: int
    minutes: float = math.inf

    def __post_init__(self) -> None:
        _check(self)
        configs((self.most,), self.wish.rules)


@dataclass(slots=True)
class Trial:
    """One batch size: what is measured, and what was said at every look so far."""

    plan: Plan
    sources: Sequence[Source]
    looks: Looks
    runs: list[RunRecord] = field(default_factory=list)
    said: list[Advice] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return self.plan.batches[0]

    @property
    def done(self) -> int:
        """Groups that ran under every configuration."""
        return len(self.runs) // len(self.plan.configs)

    @property
    def over(self) -> bool:
        return self.done == len(self.plan.groups) or any(a.settled for a in self.said)

    def look(self) -> None:
        """Say what follows from the groups that are done."""
        self.said.append(advise(self.batch, self.plan.speculative, seconds(self.plan, self.runs), self.looks))


class Tuning:
    """The procedure and what it knows so far: whoever stops `run` may still call `conclude`.

    Args:
        planned: settles a wish, as `plan_of`.
        clock: seconds, from wherever.
    Raises:
        RequestError: the prompts do not do; the message names the fix.
    """

    def __init__(
        self, task: Task, profile: Profile, planned: Planned, runner: Runner, clock: Callable[[], float], said: Said
    ) -> None:
        self.task, self.profile = task, profile
        self._planned, self._runner, self._clock, self._said = planned, runner, clock, said
        began, minutes = clock(), 60.0 * task.minutes
        self._until, self._learn_until = began + minutes, began + minutes * LEARNING
        self.learning, self._sources = planned(replace(task.wish, ks=(task.most,), batches=(1,)))
        self.learned: list[RunRecord] = []
        self.seen: tuple[Seen, ...] = ()
        self.promises: tuple[Promise, ...] = ()
        self.trials: list[Trial] = []
        self.stopped = ""
        self._done, self._total = 0, self._work()

    def run(self) -> None:
        """All of it. Raises: RequestError: a request failed."""
        self._learn()
        for batch in self.task.wish.batches:
            self.trials.append(self._trial(batch))
        while not self.stopped and (open_ := [t for t in self.trials if not t.over]):
            for trial in open_:
                self._round(trial)

    def conclude(self) -> tuple[Advice, ...]:
        """Look once more where groups came in since the last look, and give what is known of every batch size."""
        if self.learned and not self.seen:
            with suppress(RequestError):  # too little for a prediction
                self._understand()
        for trial in self.trials:
            if not trial.said or (not trial.said[-1].settled and trial.said[-1].groups < trial.done):
                trial.look()
        return tuple(t.said[-1] for t in self.trials)

    def _learn(self) -> None:
        rules = [c.name for c in self.learning.speculative]
        for number, group in enumerate(self.learning.groups[:LEARNED]):
            for name in filter(rules.__contains__, group.order):
                self._tell(f"acceptance, {name}")
                self.learned.append(self._measured(self.learning, self._sources, number, name))
            if self._clock() >= self._learn_until:
                break
        self._understand()

    def _understand(self) -> None:
        """Acceptance and predictions from what was learned so far."""
        names = [c.name for c in self.learning.speculative if any(r.config == c.name for r in self.learned)]
        self.seen = tuple(seen(self.learning, self.learned, name) for name in names)
        self.promises = tuple(
            p for b in self.task.wish.batches for s in self.seen for p in promises(self.profile, s, b)
        )

    def _trial(self, batch: int) -> Trial:
        ks = shortlist([p for p in self.promises if p.batch == batch], FINALISTS)
        plan, sources = self._planned(replace(self.task.wish, ks=ks, batches=(batch,)))
        plan = replace(plan, groups=dealt(plan, batch, [c.name for c in plan.configs]))
        trial = Trial(plan, sources, looks(len(plan.groups), len(plan.speculative)))
        if not self.stopped:
            self._tell(f"warming up, batch {batch}")
            warm_up(plan, sources, self._runner)
        return trial

    def _round(self, trial: Trial) -> None:
        """Measure up to the next look, and look."""
        until = next(n for n in trial.looks.groups if n > trial.done)
        while trial.done < until and not self._late():
            number = trial.done
            ran = []
            for name in trial.plan.groups[number].order:
                self._tell(f"{name}, batch {trial.batch}")
                ran.append(self._measured(trial.plan, trial.sources, number, name))
            trial.runs += ran
        if trial.done == until:
            trial.look()
        if trial.over:
            self._done += (len(trial.plan.groups) - trial.done) * len(trial.plan.configs)  # spared

    def _measured(self, plan: Plan, sources: Sequence[Source], number: int, name: str) -> RunRecord:
        config = plan.config(name)
        run = self._runner.run(number, config, requests(plan, sources, plan.groups[number], config))
        self._done += 1
        return run

    def _late(self) -> bool:
        if self._clock() >= self._until:
            self.stopped = f"the {self.task.minutes:g} minutes are used up"
        return bool(self.stopped)

    def _tell(self, what: str) -> None:
        self._said(Progress(self._done, self._total, what))

    def _work(self) -> int:
        """Runs of all of it, if nothing settles early. Raises: RequestError: a batch is larger than the prompts."""
        rules = len(self.task.wish.rules)
        names = [PLAIN] * (1 + rules * min(FINALISTS, self.task.most))
        trials = sum(len(names) * len(dealt(self.learning, b, names)) for b in self.task.wish.batches)
        return rules * min(LEARNED, len(self.learning.groups)) + trials


def dealt(plan: Plan, batch: int, names: Sequence[str]) -> tuple[Group, ...]:
    """Groups as a bench deals them, dealt again until there are enough for a look. names: of the configurations."""
    found, enough, turn = list[Group](), looks(0, len(names) - 1).least, 0
    while len(found) < enough:
        found += groups(len(plan.prompts), (batch,), names, plan.seed + turn * 2**64)
        turn += 1
    return tuple(found)


def seconds(plan: Plan, runs: Sequence[RunRecord]) -> dict[str, list[float]]:
    """Seconds a token of every configuration, summed over the prompts of a group, group by group.

    A prompt that has no seconds a token under one of them counts under none, and so does an unfinished group.
    """
    done = {(r.group, r.config): [decode_seconds(q) for q in r.requests] for r in runs}
    names = [c.name for c in plan.configs]
    table: dict[str, list[float]] = {name: [] for name in names}
    for number in sorted({g for g, _ in done}):
        rows = list(_complete([done[number, name] for name in names if (number, name) in done], len(names)))
        for name, column in zip(names, zip(*rows, strict=True), strict=False):
            table[name].append(math.fsum(column))
    return table


def _complete(columns: Sequence[Sequence[float | None]], count: int) -> Iterator[tuple[float, ...]]:
    """Prompt by prompt, the seconds under all of `count` configurations."""
    for row in zip(*columns, strict=True):
        told = tuple(value for value in row if value is not None)
        if len(told) == count:
            yield told


def _check(task: Task) -> None:
    wish = task.wish
    if not 1 <= task.most <= MOST_K:
        raise RequestError(f"--most-k {task.most}: give the longest draft to consider, from 1 to {MOST_K}")
    if min(wish.short, wish.long) < task.most + 2:
        raise RequestError(
            f"--short {wish.short} --long {wish.long}: drafts of {task.most} tokens need answers of at least "
            f"{task.most + 2}; give more, or a smaller --most-k"
        )
    if not task.minutes > 0.0:
        raise RequestError(f"--minutes {task.minutes:g}: give more than 0, or leave it out")
    for rule in wish.rules:
        if rule not in RULES:
            raise RequestError(f"--rule {rule}: only exact rules are recommended: {', '.join(RULES)}")
    if not wish.batches or min(wish.batches) < 1 or len(set(wish.batches)) < len(wish.batches):
        raise RequestError(f"--batches {','.join(map(str, wish.batches))}: give sizes from 1 up, each once")
