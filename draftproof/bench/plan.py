"""What a bench is going to measure, settled before it measures: configurations, prompts, groups, orders, seeds.

The same wish gives the same plan. Knows no clock, no model and no file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.accept import RULES
from draftproof.admission import rule_named
from draftproof.bench.groups import LEAST_GROUPS, Group, Load, group_from_json, groups, load_from_json
from draftproof.bench.workloads import LENGTHS, Prompt
from draftproof.types import MOST_K, DraftLength, RequestError, SamplingParams

VERSION = 1
PLAIN = "plain"
DECISION = (
    "The unit is a request's seconds a token behind its first chunk. The ratio is the sum over prompts with plain "
    "decoding divided by the sum with the configuration, on the same prompts; its 95 % interval is Student's over "
    f"groups, which were measured side by side. Below {LEAST_GROUPS} groups: too few to say. Faster if the low end is "
    "above 1, slower if the high end is below 1, else no difference. Each interval stands for itself: where nothing "
    "differs, about one row in twenty says otherwise. Before all runs of the plan are done nothing is decided."
)


@dataclass(frozen=True, slots=True)
class Config:
    """One way to decode. `k` 0 is plain decoding. `engine` is "" for ours; others have a draft length of their own."""

    name: str
    k: DraftLength
    rule: str
    exact: bool
    engine: str = ""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """`tokens` of the prompt, and the most that its answer may have."""

    id: str
    kind: str
    length: str
    tokens: int
    max_tokens: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. `limit` is the most prompts of a kind, 0 for all. `others` are modes of other engines."""

    ks: tuple[DraftLength, ...]
    rules: tuple[str, ...] = ("block",)
    batches: tuple[int, ...] = (1,)
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    short: int = 32
    long: int = 128
    limit: int = 0
    seed: int = 1
    ignore_eos: bool = False
    load: Load = Load()  # noqa: RUF009
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Weights:
    """A model and the SHA-256 of its weights, "" where that is not known or there are none."""

    name: str
    fingerprint: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Plan:
    """The first line of a result file. `created`, `command` and the load beforehand decide nothing."""

    created: str
    command: tuple[str, ...]
    draftproof: str
    seed: int
    environment: Mapping[str, Any]
    target: Weights
    draft: Weights
    decision: str
    configs: tuple[Config, ...]
    temperature: float
    top_p: float
    top_k: int
    ignore_eos: bool
    batches: tuple[int, ...]
    output_tokens: Mapping[str, int]
    limit: int
    prompts: tuple[PlannedPrompt, ...]
    groups: tuple[Group, ...]
    load: Load = Load()  # noqa: RUF009

    @property
    def speculative(self) -> tuple[Config, ...]:
        return tuple(c for c in self.configs if c.name != PLAIN)

    @property
    def lossy(self) -> bool:
        """Whether what is measured changes the output law; all configurations do, or none."""
        return any(not c.exact for c in self.configs)

    @property
    def runs(self) -> list[tuple[int, str]]:
        """Every (group, configuration) in the order of measuring."""
        return [(n, name) for n, group in enumerate(self.groups) for name in group.order]

    def config(self, name: str) -> Config:
        return next(c for c in self.configs if c.name == name)


def plan_of(
    wish: Wish,
    prompts: Sequence[Prompt],
    encode: Callable[[str], Sequence[int]],
    context: int,
    made: Mapping[str, Any],
) -> Plan:
    """Settle everything.

    Args:
        encode: a prompt's tokens, as they will be fed.
        context: most tokens of prompt and answer.
        made: the other fields of a Plan: created, command, draftproof, environment, target, draft.
    Raises:
        RequestError: nothing can be measured like that; the message names the fix.
    """
    _check(wish)
    ways = (*configs(wish.ks, wish.rules), *(other(*named) for named in wish.others))
    chosen = tuple(_planned(p, encode(p.text), wish, context) for p in choice(prompts, wish.limit, wish.seed))
    return Plan(
        **made,
        seed=wish.seed,
        decision=DECISION,
        configs=ways,
        temperature=wish.temperature,
        top_p=wish.top_p,
        top_k=wish.top_k,
        ignore_eos=wish.ignore_eos,
        batches=wish.batches,
        output_tokens=_output_tokens(wish),
        limit=wish.limit,
        prompts=chosen,
        groups=groups(len(chosen), wish.batches, [c.name for c in ways], wish.seed, wish.load),
        load=wish.load,
    )


def configs(ks: Sequence[DraftLength], rules: Sequence[str]) -> tuple[Config, ...]:
    """Plain decoding, and every draft length under every rule.

    Raises:
        RequestError: a list is empty, names something twice, or mixes exact and lossy rules.
    """
    if not ks:
        raise RequestError("--k is empty: give at least one draft length, as in --k 2,4")
    for name, values in (("--k", ks), ("--rule", rules)):
        if len(set(values)) < len(values):
            raise RequestError(f"{name} {','.join(map(str, values))}: name each once")
    for k in ks:
        if k != "auto" and not 1 <= k <= MOST_K:
            raise RequestError(
                f"--k {k}: give draft lengths from 1 to {MOST_K}, or auto; plain decoding is always there"
            )
    for rule in rules:
        rule_named(rule)
    exact, lossy = ([r for r in rules if (r in RULES) is kind] for kind in (True, False))
    if exact and lossy:
        raise RequestError(
            f"lossy rules ({', '.join(lossy)}) change the output and do not stand in one table with exact ones "
            f"({', '.join(exact)}): bench them by themselves"
        )
    made = [Config(_name(k, rule), k, rule, rule in RULES) for rule in rules for k in ks]
    return (Config(PLAIN, 0, "block", True), *made)


def other(engine: str, mode: str) -> Config:
    """A mode of another engine, as a configuration."""
    return Config(f"{engine} {mode}", 0, "block", True, engine)


def _name(k: DraftLength, rule: str) -> str:
    return f"k={k}" if rule == "block" else f"k={k} {rule}"


def choice(prompts: Sequence[Prompt], limit: int, seed: int) -> list[Prompt]:
    """At most `limit` prompts of each kind, as many short as long ones where there are, in the order of the file."""
    if not limit:
        return list(prompts)
    rng, kept = random.Random(f"prompts {seed}"), set[str]()
    for kind in dict.fromkeys(p.kind for p in prompts):
        mine = [p for p in prompts if p.kind == kind]
        drawn = rng.sample(mine, len(mine))
        lengths = [p.length for p in drawn]
        turns = [(lengths[:i].count(p.length), p.id) for i, p in enumerate(drawn)]
        kept |= {name for _, name in sorted(turns, key=lambda turn: turn[0])[:limit]}
    return [p for p in prompts if p.id in kept]


def _planned(prompt: Prompt, tokens: Sequence[int], wish: Wish, context: int) -> PlannedPrompt:
    most = _output_tokens(wish)[prompt.length]
    if len(tokens) + most > context:
        raise RequestError(
            f"prompt {prompt.id} has {len(tokens)} tokens, and {most} for its answer exceed the context of {context}: "
            "leave it out, or lower --short and --long"
        )
    digest = hashlib.sha256(prompt.text.encode()).hexdigest()
    return PlannedPrompt(prompt.id, prompt.kind, prompt.length, len(tokens), most, digest)


def _output_tokens(wish: Wish) -> dict[str, int]:
    return dict(zip(LENGTHS, (wish.short, wish.long), strict=True))


def _check(wish: Wish) -> None:
    SamplingParams(temperature=wish.temperature, top_p=wish.top_p, top_k=wish.top_k, seed=wish.seed)
    if not wish.batches or min(wish.batches) < 1 or len(set(wish.batches)) < len(wish.batches):
        raise RequestError(f"--batches {','.join(map(str, wish.batches))}: give sizes from 1 up, each once")
    for name, value in (("--short", wish.short), ("--long", wish.long)):
        if value < 2:
            raise RequestError(f"{name} {value}: give at least 2 tokens, the time between tokens is measured")
    if wish.limit < 0:
        raise RequestError(f"--limit {wish.limit}: give a number of prompts a kind, or 0 for all")


def plan_json(plan: Plan) -> dict[str, Any]:
    return {"kind": "plan", "version": VERSION, **asdict(plan)}


def plan_from_json(told: Mapping[str, Any]) -> Plan:
    """The inverse of `plan_json`, also after a file.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    fields = {name: value for name, value in told.items() if name not in {"kind", "version"}}
    if told["version"] != VERSION:
        raise ValueError(f"version {told['version']}, this draftproof reads {VERSION}")
    lists = {name: tuple(fields[name]) for name in ("command", "batches")}
    return Plan(
        **{
            **fields,
            **lists,
            "target": Weights(**fields["target"]),
            "draft": Weights(**fields["draft"]),
            "load": load_from_json(fields["load"]) if "load" in fields else Load(),
            "configs": tuple(Config(**c) for c in fields["configs"]),
            "prompts": tuple(PlannedPrompt(**p) for p in fields["prompts"]),
            "groups": tuple(group_from_json(**g) for g in fields["groups"]),
        }
    )


def changed(stored: Plan, wanted: Plan) -> list[str]:
    """Names of what decides the measurement and differs."""
    a, b = (_deciding(p) for p in (stored, wanted))
    return [name for name in a if a[name] != b[name]]


def _deciding(plan: Plan) -> dict[str, Any]:
    told = plan_json(plan)
    environment = {name: value for name, value in told.pop("environment").items() if name != "load"}
    kept = {name: value for name, value in told.items() if name not in {"kind", "created", "command"}}
    return {**kept, "environment": environment}
