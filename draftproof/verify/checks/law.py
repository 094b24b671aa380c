"""The output law: one-sample tests of the joint law of whole short outputs against exact probabilities (I1, I4).

Jobs that differ by prompt, parameters, draft length and rule run in the same batches, so that a row that answers for
another one is seen. Knows the oracle's numbers, no formula of a rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import ClassVar, NamedTuple

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.common import prompts, sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, World
from draftproof.verify.stats import Fit, Looks, detectable_tv, goodness_of_fit

Tokens = tuple[int, ...]
Cell = tuple[int, Tokens]  # group, output
LEVELS = {"quick": 4.0, "default": 1.0, "deep": 0.5}
_SURE = ((14, 8, 9, 15), (13, 15, 2), (9, 14, 15, 1, 1))  # word numbers of prompts, see LawTemperature
_CHUNK = 250  # jobs handed to the engine at a time


class Group(NamedTuple):
    """Jobs of one prompt, parameters and rule, with the exact law of their outputs."""

    job: Job
    law: dict[Tokens, float]


def groups(
    world: World, engine: EngineUnderTest, variants: Sequence[Params], length: int, some: Sequence[Tokens] = ()
) -> list[Group]:
    """Every variant with a prompt, of `some`, and a rule of its own; draft lengths 1, 2, 3 in turn."""
    made = []
    for n, (params, prompt) in enumerate(zip(variants, some or prompts(world, len(variants)), strict=True)):
        rule = engine.rules[n % len(engine.rules)]
        job = Job(prompt, replace(params, k=1 + n % 3, rule=rule))
        made.append(Group(job, oracle.joint(world, prompt, job.params, length)))
    return made


class LawCheck(BaseCheck):
    """All groups are one law over (group, output): each job's group is drawn, so the counts are multinomial."""

    statistical = True
    variants: ClassVar[tuple[Params, ...]]
    coarser: float = 2.0  # the distance that must be seen, in the budget's units
    length: ClassVar[int] = 3  # output tokens that are looked at
    least_tv: ClassVar[float] = 0.0  # where samples are dear, no smaller distance is looked for

    def __init__(self, coarser: float | None = None) -> None:
        self.coarser = coarser or self.coarser

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        every = self._groups(world, engine)
        law = {(n, output): p / len(every) for n, group in enumerate(every) for output, p in group.law.items()}
        looks, tv = Looks(alpha), max(budget.tv * self.coarser * LEVELS[budget.level], self.least_tv)
        draws = _draws(engine, every, self.length, budget.seed)
        seen: Counter[Cell] = Counter()
        lowest = 1.0
        for look, size in enumerate(looks.sizes(looks.samples_for(len(law), budget.power, tv))):
            seen.update(islice(draws, size - seen.total()))
            fit = goodness_of_fit(law, seen)
            lowest = min(lowest, looks.adjusted(look, fit.p_value))
            if fit.p_value <= looks.alpha_at(look):
                return self.fails(size, _witness(every, law, seen, fit), lowest, {"expected_seen": _plot(law, seen)})
        note = f"{len(every)} prompts, parameter sets and rules in mixed batches"
        result = self.holds(size, note, {"expected_seen": _plot(law, seen)})
        seen_tv = detectable_tv(size, len(law), looks.alpha_at(len(looks) - 1), budget.power)
        return replace(result, p_value=lowest, detectable_tv=seen_tv, power=budget.power)

    def _groups(self, world: World, engine: EngineUnderTest) -> list[Group]:
        return groups(world, engine, self._variants(world, engine), self.length)

    def _variants(self, world: World, engine: EngineUnderTest) -> Sequence[Params]:
        """Every variant under every rule: as many groups as rules, at least."""
        del world
        times = -(-len(engine.rules) // len(self.variants))
        return self.variants * times


def _draws(engine: EngineUnderTest, every: Sequence[Group], length: int, seed: int) -> Iterator[Cell]:
    """(group, output) of one job after another, handed to the engine many at a time, in an order of their own."""
    order = random.Random(seed)
    for start in count(0, _CHUNK):
        chosen = [order.randrange(len(every)) for _ in range(_CHUNK)]
        jobs = [replace(every[g].job, seed=seed * 1_000_000_007 + start + n) for n, g in enumerate(chosen)]
        for g, sample in zip(chosen, sound(jobs, engine.sample(jobs)), strict=True):
            yield g, sample.tokens[:length]


def _witness(every: Sequence[Group], law: dict[Cell, float], seen: Counter[Cell], fit: Fit) -> dict[str, object]:
    """The outcome that is furthest from its probability, and how to see it again."""
    group, output = fit.impossible[0] if fit.impossible else fit.worst[0].cell
    samples = seen.total()
    return {
        "prompt": every[group].job.prompt,
        "params": _changed(every[group].job.params),
        "tokens": output,
        "expected": law.get((group, output), 0.0) * len(every),
        "seen": seen[group, output] * len(every) / samples,
        "samples": samples,
        "p_value": fit.p_value,
    }


def _changed(params: Params) -> dict[str, object]:
    plain = Params()
    names = Params.__dataclass_fields__
    return {n: getattr(params, n) for n in names if getattr(params, n) != getattr(plain, n)}


def _plot(law: dict[Cell, float], seen: Counter[Cell]) -> dict[str, object]:
    cells = sorted(law, key=lambda cell: -law[cell])[:40]
    labels = [f"{group}: {' '.join(map(str, output))}" for group, output in cells]
    samples = seen.total()
    shares = [seen[cell] / samples for cell in cells]
    return {"labels": labels, "expected": [law[cell] for cell in cells], "seen": shares, "n": samples}


class LawJoint(LawCheck):
    name = "law/joint"
    claim = "the joint law of two tokens is the target's, for every rule, in mixed batches"
    variants = (Params(max_tokens=3, top_k=8), Params(max_tokens=3, temperature=0.7, top_k=6), Params(max_tokens=3))
    length = 2  # of three tokens, so that a whole block of two can stand
    coarser = 1.0


class LawPenalties(LawCheck):
    name = "law/penalties"
    claim = "penalties count prompt and output as they stand at every position inside a block"
    needs = frozenset({Ability.PENALTIES})
    variants = (
        Params(max_tokens=3, top_k=4, frequency_penalty=1.2),
        Params(max_tokens=3, top_k=4, presence_penalty=1.5),
        Params(max_tokens=3, top_k=4, repetition_penalty=1.8),
    )


class LawRepetition(LawCheck):
    """For engines that have this penalty and no other."""

    name = "law/repetition"
    claim = "the repetition penalty counts prompt and output as they stand at every position inside a block"
    needs = frozenset({Ability.REPETITION})
    variants = tuple(Params(max_tokens=3, top_k=4, repetition_penalty=r) for r in (1.8, 1.2))


class LawFilters(LawCheck):
    name = "law/filters"
    claim = "temperature, top-k, top-p and min-p shape target and draft alike"
    needs = frozenset({Ability.MIN_P})
    variants = (
        Params(max_tokens=2, temperature=0.6, top_p=0.8),
        Params(max_tokens=2, top_k=3),
        Params(max_tokens=2, min_p=0.3),
        Params(max_tokens=2, temperature=1.5, top_k=8, top_p=0.7),
    )


class LawMasks(LawCheck):
    name = "law/masks"
    claim = "logit bias and min-tokens hold at every position inside a block"
    needs = frozenset({Ability.LOGIT_BIAS, Ability.MIN_TOKENS, Ability.STOP_TOKENS})
    variants = ()

    def _variants(self, world: World, engine: EngineUnderTest) -> Sequence[Params]:
        a, b, *_ = oracle.words(world)
        variants = (
            Params(max_tokens=3, top_k=4, logit_bias=((a, 1.5), (b, -2.0))),
            Params(max_tokens=3, min_tokens=2, stop_token_ids=(a, b), top_k=4),
        )
        return variants * max(1, -(-len(engine.rules) // 2))


class LawEnds(LawCheck):
    name = "law/ends"
    claim = "outputs end by their own law: a stop token is drawn as often as the target draws it"
    needs = frozenset({Ability.STOP_TOKENS})
    variants = ()

    def _variants(self, world: World, engine: EngineUnderTest) -> Sequence[Params]:
        a, b, *_ = oracle.words(world)
        variants = (Params(max_tokens=3, stop_token_ids=(a,), top_k=4), Params(max_tokens=2, stop_token_ids=(a, b)))
        return variants * max(1, -(-len(engine.rules) // 2))


class LawBlock(LawCheck):
    """For engines whose first token comes with the prompt and without a draft: what is drafted comes behind it.

    Prompts repeat themselves, so that looked-up drafts are found.
    """

    name = "law/block"
    claim = "the joint law of four tokens, of which a draft may hold the last three, is the target's"
    variants = tuple(Params(max_tokens=6, top_k=3, temperature=t) for t in (1.0, 0.7, 1.5))
    length = 4

    def _groups(self, world: World, engine: EngineUnderTest) -> list[Group]:
        variants = self._variants(world, engine)
        return groups(world, engine, variants, self.length, [p * 3 for p in prompts(world, len(variants))])


class LawTemperature(LawCheck):
    """Nothing but a temperature: what every engine has, and what is left where filters break it.

    Behind these prompts the toys' draft is sure of what follows some tokens and unsure of what follows others, so that
    drafts that are dropped for what they turned out to be move the law of their first token by 0.1 and more.
    """

    name = "law/temperature"
    claim = "the joint law of two tokens, of which a draft may hold the second, is the target's at any temperature"
    variants = tuple(Params(max_tokens=5, temperature=t) for t in (1.0, 0.7, 0.85))
    length = 2

    def _groups(self, world: World, engine: EngineUnderTest) -> list[Group]:
        names, variants = oracle.words(world), self._variants(world, engine)
        some = [tuple(names[w % len(names)] for w in _SURE[n % len(_SURE)]) for n in range(len(variants))]
        return groups(world, engine, variants, self.length, some)


class LawPublic(LawBlock):
    """For servers of which no more is known than OpenAI's public fields: temperature and top-p."""

    name = "law/public"
    claim = "the joint law of three tokens, of which a draft may hold the last two, is the target's"
    variants = tuple(Params(max_tokens=5, temperature=t, top_p=p) for t, p in ((1.0, 0.5), (0.7, 0.6), (0.5, 0.7)))
    length = 3


class LawTruncated(LawCheck):
    """For real vocabularies: a short list of tokens, so that the joint law has few cells."""

    name = "law/truncated"
    claim = "the joint law of two tokens is the target's, with top-k 5, for every rule, in mixed batches"
    variants = (Params(max_tokens=2, top_k=5), Params(max_tokens=2, top_k=5, temperature=1.5))
    least_tv = 0.1


CHECKS = (LawJoint(), LawPenalties(), LawFilters(), LawMasks(), LawEnds())
