"""I1, I4 on the whole engine: the law of (tokens, finish) over several steps equals the target's, by enumeration.

The noise of every step is symbolic, and every way that it can fall out is followed through add, propose, verify, cut,
commit and the next step. The target's law is worked out here from the same float32 logits with a few lines of float64.
The engine's weights are float32 exponentials, off by a few 2**-24 each; over four tokens that is below 1e-6.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toys import Table, drafting, random_table, toy_engine

from draftproof.accept import RULES
from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.skeleton import SkeletonProposer
from draftproof.law import LawRows
from draftproof.step import Job
from draftproof.stops import Cut, Ending
from draftproof.types import Draft, Law, SamplingParams
from draftproof.verify.enumerate import law_of

EXACT = 1e-6
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

    @property
    def table(self) -> Table:
        return random_table(self.vocab, 1)

    def proposer(self) -> Proposer:
        return drafting(random_table(self.vocab, 2), self.vocab)


def case(vocab: int, k: int, eos: tuple[int, ...] = (), **params: Any) -> Case:
    return Case(vocab, k, SamplingParams(k=k, **params), eos)


CASES = {
    "plain": case(2, 1, max_tokens=4),
    "two drafts": case(2, 2, max_tokens=3),
    "three drafts": case(2, 3, max_tokens=3),
    "three tokens": case(3, 1, max_tokens=3),
    "frequency penalty": case(2, 2, max_tokens=4, frequency_penalty=1.5),
    "presence and repetition": case(3, 2, max_tokens=2, presence_penalty=0.7, repetition_penalty=1.8),
    "stop token": case(3, 3, max_tokens=3, stop_token_ids=(2,)),
    "eos after min_tokens": case(3, 2, eos=(0,), max_tokens=3, min_tokens=2, temperature=0.7),
    "top-k": case(3, 3, max_tokens=3, top_k=2),
    "top-p": case(3, 2, max_tokens=3, top_p=0.7),
    "min-p and bias": case(3, 2, max_tokens=3, min_p=0.5, logit_bias={1: 0.5}),
    "draft longer than the rest": case(3, 3, max_tokens=2),
}


def emitted(case: Case, rule: str, path: Any, proposer: Proposer | None = None) -> Outcome:
    """One run of the whole engine on one path."""
    engine = toy_engine(case.table, case.vocab, proposer or case.proposer(), case.eos, pages=8)
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


def error(case: Case, rule: str, proposer: type[ModelProposer] = ModelProposer) -> float:
    def run(path: Any) -> Outcome:
        made = proposer(drafting(random_table(case.vocab, 2), case.vocab).model, case.vocab)
        return emitted(case, rule, path, made)

    law, target = law_of(run), target_law(case)
    return max(abs(law.get(x, 0.0) - target.get(x, 0.0)) for x in law.keys() | target.keys())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CASES)
def test_law_of_the_engine_is_the_targets(name: str, rule: str) -> None:
    assert error(CASES[name], rule) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", [lambda: NgramProposer(3, 1, 2), lambda: SkeletonProposer(3)], ids=["ngram", "copy"])
def test_other_proposers_are_exact(make: Any, rule: str) -> None:
    case = replace(CASES["presence and repetition"], k=3)
    law, target = law_of(lambda path: emitted(case, rule, path, make())), target_law(case)
    assert max(abs(law.get(x, 0.0) - target.get(x, 0.0)) for x in law.keys() | target.keys()) < EXACT


class FrozenRows(LawRows):
    """Case 20: penalties and min_tokens stand still inside the block."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return self._maker.law(self._logits[i], self._prompt, self._output)


class FullRows(LawRows):
    """Case 21: rejected drafts are counted too."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return self._maker.law(self._logits[i], self._prompt, self._output + self._draft)


class ShiftedRows(LawRows):
    """Case 15: row i + 1 for draft i."""

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        return super().__getitem__(min(i + 1, len(self) - 1))


class LateEnding(Ending):
    """Case 27: only the last token of a step is looked at."""

    def push(self, tokens: Any) -> Cut:
        stops, self._stop_ids = self._stop_ids, frozenset[int]()
        for token in tokens[:-1]:
            super().push((token,))
        self._stop_ids = stops
        return super().push(tokens[-1:])


class OtherLaw(ModelProposer):
    """Cases 2 and 5: states a law that it did not draw from."""

    def propose(self, asks: Any) -> list[Draft]:
        drafts = super().propose(asks)
        return [d._replace(laws=tuple(Law(q.vocab, None, q.dense() ** 2) for q in d.laws)) for d in drafts]


class Replayed(PathJob):
    """Case 10: every step meets the noise of the first one again."""

    @property
    def noise(self) -> Any:
        return self.path.at(0)


FAULTS: dict[str, tuple[str, str, str, Any]] = {  # what is replaced, the case and the rule that must see it, by what
    "penalty frozen in the block": ("LawRows", "frequency penalty", "token", FrozenRows),
    "min_tokens frozen in the block": ("LawRows", "eos after min_tokens", "block", FrozenRows),
    "rejected drafts counted": ("LawRows", "frequency penalty", "sampled", FullRows),
    "row of the next position": ("LawRows", "two drafts", "token", ShiftedRows),
    "stop seen at the end of a step only": ("Ending", "stop token", "block", LateEnding),
    "q is not the law drawn from": ("proposer", "two drafts", "token", OtherLaw),
    "noise of the first step in every step": ("PathJob", "two drafts", "token", Replayed),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, at, rule, fault = FAULTS[name]
    if what == "proposer":
        assert error(CASES[at], rule, fault) > 1000 * EXACT
        return
    place = {"Ending": "draftproof.engine.Ending", "PathJob": f"{__name__}.PathJob"}.get(
        what, f"draftproof.step.{what}"
    )
    monkeypatch.setattr(place, fault)
    assert error(CASES[at], rule) > 1000 * EXACT
