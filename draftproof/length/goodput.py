"""The draft length with the most tokens a second to be expected (goodput), chosen anew in every step.

Expected tokens come from how earlier drafts fared, of this request and, as a prior, of all others; seconds from the
measured profile, corrected by the passes since; k = 0 is a candidate like the others. A length is left only for one
that is clearly better, and plain decoding looks again now and then whether drafts have begun to pay. In the spirit of
SmartSpec (Liu et al. 2024).

A seeded request under a rule whose text depends on the draft length is decided from its own history and the measured
costs of a step of its own, so that neither load nor batch mates change its text (I8). Knows no model and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from draftproof.length.learned import LearnedCosts, Step
from draftproof.length.profile import Line, Profile, on_line
from draftproof.length.record import GUESS, Record, begun
from draftproof.prices import Prices
from draftproof.types import Run, SequenceView

MOST_AUTO = 12  # longest draft that is considered
_FIRST = (0.5,)  # chance of a draft token before anything was seen
_PACED = ((0.5, *[0.4] * 15), tuple(0.5**i for i in range(16)))  # the same, and how often it is proposed, with prices
_BETTER = 1.03  # how much better another length must be
_PROBE, _LONGEST_WAIT = 32, 256  # plain steps between two probes: at first, and at most
_PROBED = 2  # draft length of a probe
_OTHERS = 8.0  # steps that other requests count for: with fewer a text's first steps mislead, with more all are alike
# Steps that the first guess counts for in a new process, fading: one bad text must not decide for the next.
_BEGUN = 24.0
_MOST_ALONE = 3  # draft tokens of a text that must not depend on the load: sixteen fit into a pass of 64 rows
_FREE_RULES = frozenset({"sampled", "coupled"})  # their text does not depend on the draft


Heard = Callable[[dict[str, Any]], None]


class Inputs(NamedTuple):
    """What a decision rests on: all that a replay needs. Lists are by draft position; `costs` is the number of the
    profile, see LearnedCosts."""

    batch: int
    chances: tuple[float, ...]
    proposals: tuple[float, ...]
    held: tuple[int, ...]  # the length of the step before, if there was one
    probe: bool
    costs: int = 0
    paced: bool = False  # the proposer stops by prices: the choice is between no pass at all and as far as it pays


@dataclass(frozen=True, slots=True)
class Decision:
    """Expected tokens a second of every length from 0, and the length chosen: `why` is best, held or probe."""

    inputs: Inputs
    goodputs: tuple[float, ...]
    choice: int
    why: str


def decide(profile: Profile, inputs: Inputs) -> Decision:
    """Deterministic: the same inputs give the same decision."""
    rates = tuple(_goodputs(profile, inputs))
    most = len(rates) - 1
    best = max((0, most) if inputs.paced else range(len(rates)), key=rates.__getitem__)
    choice, why = best, "best"
    for k in (most if inputs.paced and k else k for k in inputs.held):
        if k < len(rates) and rates[best] < _BETTER * rates[k]:
            choice, why = k, "held"
    if inputs.probe and choice == 0 and most:
        choice, why = most if inputs.paced else min(_PROBED, most), "probe"
    return Decision(inputs, rates, choice, why)


def goodput(profile: Profile, inputs: Inputs, k: int) -> float:
    """Tokens a second of one sequence, if the whole batch drafts k tokens."""
    return list(_goodputs(profile, inputs))[k]


def _goodputs(profile: Profile, inputs: Inputs) -> Iterator[float]:
    """For every length from 0, in one go: this runs in every step."""
    tokens, standing, spare, drawn = 1.0, 1.0, profile.min_rows - 1, 0.0
    proposed = float(spare)  # see Profile.proposed
    draft, other = _besides(profile, inputs.batch)
    for k in range(len(inputs.chances) + 1):
        if k:
            standing *= inputs.chances[k - 1]
            tokens += standing
            drawn += inputs.proposals[k - 1] if inputs.paced else 1.0
            proposed += inputs.proposals[k - 1] if k > spare else 0.0
        rest = other.at(drawn) + (draft.at(drawn) if k else 0.0)
        yield tokens / (profile.verified(inputs.batch, proposed) + rest)


@lru_cache(maxsize=256)
def _besides(profile: Profile, batch: int) -> tuple[Line, Line]:
    """Drafting and the rest."""
    return profile.draft_line(batch), profile.other_line(batch)


def prices(profile: Profile, decision: Decision) -> Prices:
    """Of a step of this decision; plain decoding makes no pass of a draft. What others propose is taken to be as much
    as this sequence does on average; a pass is shared by all."""
    given = decision.inputs
    rate = max(decision.goodputs[0], decision.goodputs[decision.choice])
    others = (given.batch - 1) * (1.0 + profile.proposed(given.proposals[: decision.choice]))
    draft, worth = _besides(profile, given.batch)[0], rate * given.batch
    rows = tuple(max(worth * s, 0.0) for s in _rises(profile, others, len(given.chances)))
    if not decision.choice:
        return Prices(rows, math.inf, math.inf)
    return Prices(rows, rate * draft.base, rate * draft.each)


@lru_cache(maxsize=256)
def _rises(profile: Profile, others: float, most: int) -> tuple[float, ...]:
    """Seconds that n draft tokens add to a pass which has `others` rows beside this sequence's, n = 0 .. most."""
    passes = [on_line(profile.verify, others + max(1 + n, profile.min_rows)) for n in range(most + 1)]
    return tuple(seconds - passes[0] for seconds in passes)


@dataclass(slots=True)
class _State:
    """Of one request. `plain`: steps since the last draft; `wait`: plain steps until the next probe."""

    record: Record = field(default_factory=Record)
    held: tuple[int, ...] = ()
    plain: int = 0
    wait: int = _PROBE
    at: int = 0  # tokens when `decision` was made
    decision: Decision | None = None


class GoodputLength:
    """Args: costs of this machine; each of `heard` gets them, every correction of them, and every decision once its
    step is done, as JSON objects. `paced`: the proposer heeds prices."""

    adapts = True

    def __init__(self, profile: Profile, heard: Sequence[Heard] = (), paced: bool = False) -> None:
        self._costs, self._heard, self._paced = LearnedCosts(profile), heard, paced
        self._tell({"profile": profile.as_json()})
        chances, proposals = _PACED if paced else (_FIRST, (1.0,))
        self._all = begun(chances, proposals, _BEGUN)
        self._states: dict[int, _State] = {}

    def choose(self, view: SequenceView, batch: int, most: int) -> int:
        request = view.request
        if not request.auto:
            return min(request.k, most)
        state = self._states.setdefault(request.id, _State())
        if state.decision is None or state.at != len(view.tokens):
            state.at = len(view.tokens)
            state.decision = decide(
                self._profile(view), self._inputs(view, state, batch, self._most(view, batch, most))
            )
        if self._paced and not state.decision.choice:  # what is looked up may pay even so
            return len(state.decision.inputs.chances)
        return state.decision.choice

    def _most(self, view: SequenceView, batch: int, most: int) -> int:
        """Rows that are not used in the end take room in the pass all the same: all sequences must fit into it."""
        if self._paced:
            rows = self._costs.measured.verify[-1][0]
            most = min(most, _MOST_ALONE if _alone(view) else max(int(rows / batch) - 1, 1))
        return min(view.request.k, most)

    def prices(self, view: SequenceView) -> Prices | None:
        state = self._states.get(view.request.id)
        if not self._paced or state is None or state.decision is None:
            return None
        return prices(self._profile(view), state.decision)

    def _profile(self, view: SequenceView) -> Profile:
        return self._costs.measured if _alone(view) else self._costs.profile

    def _inputs(self, view: SequenceView, state: _State, batch: int, most: int) -> Inputs:
        others, weight = (Record(), GUESS) if _alone(view) else (self._all, _OTHERS)
        first, given = (_PACED[0][:most], _PACED[1][:most]) if self._paced else (_FIRST, (1.0,))
        chances = state.record.chances(most, others.chances(most, first), weight)
        proposals = state.record.proposals(most, others.proposals(most, given), weight)
        probe = state.plain >= state.wait
        batch, costs = (1, 0) if _alone(view) else (batch, self._costs.number)
        return Inputs(batch, tuple(chances), tuple(proposals), state.held, probe, costs, self._paced)

    def timed(self, step: Step) -> None:
        if self._costs.note(step):
            self._tell({"costs": self._costs.number, "profile": self._costs.profile.as_json()})

    def _tell(self, line: dict[str, Any]) -> None:
        for heard in self._heard:
            heard(line)

    def observe(self, view: SequenceView, run: Run) -> None:
        state = self._states.get(view.request.id)
        if state is None or state.decision is None:
            return
        decision, state.decision = state.decision, None
        if self._heard:  # building the line takes as long as the decision
            self._tell(_line(view, state.at, decision, run))
        if state.at > len(view.request.prompt):  # the step that reads the prompt has no states to draft from
            _learn(state, decision, run)
            if decision.choice and not _alone(view):
                self._all.note(_asked(decision, run), run.proposed, run.accepted)
        if run.finish is not None:
            del self._states[view.request.id]

    def forget(self, request: int) -> None:
        self._states.pop(request, None)


def _alone(view: SequenceView) -> bool:
    """Whether the text depends on the draft lengths, and somebody may want it again."""
    params = view.request.params
    return params.seed is not None and params.temperature > 0 and params.rule not in _FREE_RULES


def _learn(state: _State, decision: Decision, run: Run) -> None:
    if decision.choice:
        state.record.note(_asked(decision, run), run.proposed, run.accepted)
    paid = decision.why == "probe" and run.accepted > 0
    if decision.why == "probe":
        state.wait = _PROBE if paid else min(2 * state.wait, _LONGEST_WAIT)
    else:
        state.held = (decision.choice,)
    state.plain = state.plain + 1 if decision.choice == 0 else 0
    if paid:
        state.plain = state.wait  # look again at once


def _asked(decision: Decision, run: Run) -> int:
    """A run that was cut short says nothing of what lies behind its cut."""
    return run.accepted if run.finish is not None else decision.choice


def _line(view: SequenceView, at: int, decision: Decision, run: Run) -> dict[str, Any]:
    return {
        "request": view.request.id,
        "tokens": at,
        "inputs": decision.inputs._asdict(),
        "goodputs": decision.goodputs,
        "choice": decision.choice,
        "why": decision.why,
        "proposed": run.proposed,
        "accepted": run.accepted,
        "emitted": len(run.tokens),
    }
