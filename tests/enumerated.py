"""One run of the whole engine on one path of symbolic noise, and the target's law in a few lines of float64."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from toys import Table, drafting, random_table, toy_engine

from draftproof.accept import RULES
from draftproof.draft.base import Proposer
from draftproof.step import Job
from draftproof.types import SamplingParams

PROMPT = (1, 0)
Outcome = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class PathJob(Job):
    """A job whose noise is that of one path of the enumeration."""

    path: Any = None

    @property
    def noise(self) -> Any:
        # A coupled race may be asked for three laws over several steps, of which only the step that emits counts:
        # each step gets races of its own. That the engine's are shared is shown by test_order.py.
        origin = len(self.sequence.tokens)
        return self.path.at(1000 * origin if self.rule is RULES["coupled"] else origin)


@dataclass(frozen=True)
class Case:
    vocab: int
    k: int
    params: SamplingParams
    eos: tuple[int, ...] = ()
    nodes: int = 0

    @property
    def table(self) -> Table:
        return random_table(self.vocab, 1)

    def proposer(self) -> Proposer:
        return drafting(random_table(self.vocab, 2), self.vocab)


def case(vocab: int, k: int, eos: tuple[int, ...] = (), **params: Any) -> Case:
    return Case(vocab, k, SamplingParams(k=k, **params), eos)


def emitted(case: Case, rule: str, path: Any, proposer: Proposer | None = None) -> Outcome:
    """One run of the whole engine on one path."""
    engine = toy_engine(case.table, case.vocab, proposer or case.proposer(), case.eos, pages=8, nodes=case.nodes)
    live = engine._live[engine.add(PROMPT, replace(case.params, rule=rule, seed=0))]
    live.job = PathJob(**{f.name: getattr(live.job, f.name) for f in fields(Job)}, path=path)
    while True:
        for event in engine.step():
            if event.output is not None:
                return event.output.tokens, f"{event.output.finish}"


def processed(case: Case, output: tuple[int, ...]) -> NDArray[np.float64]:
    """The target's law in plain float64, written from the description of each parameter."""
    p = case.params
    z = np.log(case.table(PROMPT + output)).astype(np.float32).astype(np.float64)
    for token, bias in p.logit_bias.items():
        z[token] += bias
    for token in {*PROMPT, *output}:
        z[token] = z[token] / p.repetition_penalty if z[token] > 0 else z[token] * p.repetition_penalty
    for token in set(output):
        z[token] -= p.frequency_penalty * output.count(token) + p.presence_penalty
    if len(output) < p.min_tokens:
        z[[*case.eos, *p.stop_token_ids]] = -np.inf
    law = np.exp((z - z.max()) / p.temperature)
    order = np.argsort(-law, kind="stable")
    if p.top_k:
        law[order[p.top_k :]] = 0.0
    law /= law.sum()
    sums = np.cumsum(law[order])
    law[order[int(np.searchsorted(sums, p.top_p)) + 1 :]] = 0.0
    law[law < p.min_p * law.max()] = 0.0
    return np.asarray(law / law.sum())


def target_law(case: Case) -> dict[Outcome, float]:
    law: defaultdict[Outcome, float] = defaultdict(float)
    stops = {*case.eos, *case.params.stop_token_ids}

    def walk(output: tuple[int, ...], chance: float) -> None:
        if len(output) == case.params.max_tokens:
            law[output, "length"] += chance
            return
        for token, p in enumerate(processed(case, output)):
            if token in stops:
                law[output, "stop"] += chance * p
            else:
                walk((*output, token), chance * p)

    walk((), 1.0)
    return dict(law)


def distance(case: Case, law: dict[Outcome, float]) -> float:
    """Largest difference of a probability from the target's."""
    target = target_law(case)
    return max(abs(law.get(x, 0.0) - target.get(x, 0.0)) for x in law.keys() | target.keys())
