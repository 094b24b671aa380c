"""I1, I4 on the whole engine: the law of (tokens, finish) over several steps equals the target's, by enumeration.

The noise of every step is symbolic, and every way that it can fall out is followed through add, propose, verify, cut,
commit and the next step. The target's law is worked out here from the same float32 logits with a few lines of float64.
The engine's weights are float32 exponentials, off by a few 2**-24 each; over four tokens that is below 1e-6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from enumerated import Case, Outcome, PathJob, case, distance, emitted
from toys import drafting, random_table

from draftproof.accept import RULES
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.skeleton import SkeletonProposer
from draftproof.law import LawRows
from draftproof.stops import Cut, Ending
from draftproof.types import Draft, Law
from draftproof.verify.enumerate import law_of

EXACT = 1e-6

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


def error(case: Case, rule: str, proposer: type[ModelProposer] = ModelProposer) -> float:
    def run(path: Any) -> Outcome:
        made = proposer(drafting(random_table(case.vocab, 2), case.vocab).model, case.vocab)
        return emitted(case, rule, path, made)

    return distance(case, law_of(run))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CASES)
def test_law_of_the_engine_is_the_targets(name: str, rule: str) -> None:
    assert error(CASES[name], rule) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", [lambda: NgramProposer(3, 1, 2), lambda: SkeletonProposer(3)], ids=["ngram", "copy"])
def test_other_proposers_are_exact(make: Any, rule: str) -> None:
    case = replace(CASES["presence and repetition"], k=3)
    assert distance(case, law_of(lambda path: emitted(case, rule, path, make()))) < EXACT


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
    place = {"Ending": "draftproof.engine.Ending", "PathJob": "enumerated.PathJob"}.get(what, f"draftproof.step.{what}")
    monkeypatch.setattr(place, fault)
    assert error(CASES[at], rule) > 1000 * EXACT
