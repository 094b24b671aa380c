"""A bench without a clock: plans of a few prompts, and a runner that makes its seconds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftproof.bench.measure import Asked, Source
from draftproof.bench.plan import Config, Plan, Weights, Wish, plan_of
from draftproof.bench.results import Decode, RequestRecord, Result, RunRecord
from draftproof.bench.workloads import Prompt

PROMPTS = [
    Prompt(f"{kind}-{n}", kind, length, f"{kind} {n}")
    for kind in ("chat", "code")
    for n, length in enumerate(("short", "long") * 4)
]
MADE = {
    "created": "2026-01-02T03:04:05+00:00",
    "command": ("draftproof", "bench"),
    "draftproof": "0.1.0",
    "environment": {"cpu": "none", "cores": 2, "load": [0.1, 0.1, 0.1]},
    "target": Weights("toy", "ab", {"precision": "f32"}),
    "draft": Weights("ngram", "", {}),
}
PARTS = {"draft": 0.001, "verify": 0.010, "accept": 0.001, "kv": 0.001, "schedule": 0.001, "other": 0.001}


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def a_plan(wish: Wish = Wish((2, 4), short=9, long=17), prompts: Sequence[Prompt] = PROMPTS, **made: object) -> Plan:  # noqa: B008
    return plan_of(wish, prompts, encode, 1000, {**MADE, **made})


def sources(plan: Plan) -> list[Source]:
    return [Source(p.id, (1, 2, 3)) for p in plan.prompts]


@dataclass
class FakeRunner:
    """A step takes `parts` seconds, times `slow(prompt)`, and emits 1 + `stand(config, prompt)` tokens.

    All requests of a group go through the same steps. The prompt's step takes ten times as long as others.
    """

    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of a configuration, where not PARTS
    stand: Callable[[Config, str], int] = lambda config, prompt: 1 if config.k else 0
    slow: Callable[[str], float] = lambda prompt: 1.0
    unseen: float = 0.0  # seconds of a step that no part accounts for
    calls: list[tuple[int, str]] = field(default_factory=list)
    asked: list[Sequence[Asked]] = field(default_factory=list)

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        self.calls.append((group, config.name))
        self.asked.append(asked)
        slow = max(self.slow(a.prompt) for a in asked)
        parts = {name: slow * s for name, s in self.parts.get(config.name, PARTS).items()}
        step = sum(parts.values()) + self.unseen
        requests = [self._request(a, config, step) for a in asked]
        steps = max(r.steps for r in requests)
        pure = Decode(
            steps - 1,
            sum(r.steps - 1 for r in requests),
            sum(r.tokens - r.first for r in requests),
            {name: s * (steps - 1) for name, s in parts.items()},
        )
        wall = step * (steps + 9)
        return RunRecord(
            group=group,
            config=config.name,
            wall=wall,
            peak_bytes=1 << 20,
            load1=0.5,
            requests=tuple(requests),
            steps=steps,
            seconds={name: s * (steps + 9) for name, s in parts.items()},
            loop=wall,
            decode=pure,
            rows=((len(asked) * (1 + int(config.k or 0)), parts["verify"] * steps, steps),),
            tokens_per_step=sum(r.tokens for r in requests) / sum(r.steps for r in requests),
        )

    def _request(self, asked: Asked, config: Config, step: float) -> RequestRecord:
        most, each, at = asked.params.max_tokens, 1 + self.stand(config, asked.prompt), 10 * step
        chunks, k = [(at, 1)], int(config.k or 0)
        while (done := sum(n for _, n in chunks)) < most:
            at += step
            chunks.append((at, min(each, most - done)))
        drafts = len(chunks) - 1 if k else 0
        return RequestRecord(
            prompt=asked.prompt,
            ttft=10 * step,
            end=at,
            chunks=tuple(chunks),
            tokens=most,
            finish="length",
            proposed=k * drafts,
            accepted=(each - 1) * drafts,
            accepted_at=tuple(drafts if i < each - 1 else 0 for i in range(k)),
            reached_at=tuple(drafts if i < each else 0 for i in range(k)),
            steps=len(chunks),
            first=1,
        )


def result_of(plan: Plan, runner: FakeRunner | None = None) -> Result:
    """As if every run of the plan had been measured, without a file."""
    from draftproof.bench.measure import requests

    runner = runner or FakeRunner()
    runs = [
        runner.run(n, plan.config(name), requests(plan, sources(plan), plan.groups[n], plan.config(name)))
        for n, name in plan.runs
    ]
    return Result(plan, tuple(runs), ended=True)


def changed_run(result: Result, at: int, **fields: object) -> Result:
    runs = list(result.runs)
    runs[at] = replace(runs[at], **fields)
    return replace(result, runs=tuple(runs))
