"""The honest decoder keeps its world's law exactly, token by token and in its acceptance.

Laws are compared without sampling: the whole engine runs on symbolic noise, and every path is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftproof.verify import oracle
from draftproof.verify.contract import Job, Params
from draftproof.verify.enumerate import PathNoise, joint_law, law_of, mean_of
from draftproof.verify.mutants import Honest, faulty_drafts, faulty_ends, faulty_laws, faulty_rules
from draftproof.verify.mutants.live import Live
from draftproof.verify.mutants.noise import ACCEPT, DRAFT, NEXT, Noise, scramble
from draftproof.verify.mutants.rules import Rules
from draftproof.verify.toy import tabular_world

EXACT, VISIBLE = 1e-9, 1e-4  # honest laws differ by less than the first, faulty ones by more than the second
Law = dict[tuple[int, ...], float]
WORLD = tabular_world(3, seed=5)


def enumerated(kind: type[Honest], job: Job, mates: Sequence[Job] = ()) -> Law:
    """The exact law of a job's tokens, in a batch with others. All noise is symbolic."""

    class Symbolic(kind):  # type: ignore[valid-type, misc]
        path: PathNoise

        def noise(self, live: Live) -> Any:
            return self.path.at(100 * self.lives.index(live) + len(live.context))

        def run(self, lives: Any, abort: Any) -> Any:
            self.lives = list(lives)
            return super().run(lives, abort)

    def once(noise: PathNoise) -> tuple[int, ...]:
        engine = Symbolic(WORLD)
        engine.rules = (*engine.rules, "list")
        engine.path = noise
        return tuple(engine.sample([*mates, job])[-1].tokens)

    return law_of(once)


def distance(seen: Law, wanted: Law) -> float:
    return max(abs(seen.get(x, 0.0) - wanted.get(x, 0.0)) for x in seen.keys() | wanted.keys())


def off(kind: type[Honest], params: Params, prompt: tuple[int, ...] = (1, 2)) -> float:
    """How far a kind of engine is from the target's law of whole outputs."""
    return distance(enumerated(kind, Job(prompt, params)), oracle.joint(WORLD, prompt, params, params.max_tokens))


RULES_AND_K = [(rule, k) for rule in (*Honest.rules, "list") for k in (1, 2) if (rule, k) != ("coupled", 2)]
PARAMS = {
    "plain": Params(max_tokens=3),
    "penalties": Params(max_tokens=3, frequency_penalty=0.9, presence_penalty=0.4, repetition_penalty=1.5),
    "masks": Params(max_tokens=3, min_tokens=2, stop_token_ids=(0,), logit_bias=((1, 1.0), (2, -0.5))),
    "filters": Params(max_tokens=3, temperature=0.7, top_k=2),
    "top-p": Params(max_tokens=3, temperature=1.3, top_p=0.7),
    "min-p": Params(max_tokens=3, min_p=0.5),
    "greedy": Params(max_tokens=3, temperature=0.0),
    "stop token": Params(max_tokens=3, stop_token_ids=(1,)),
    "stop string": Params(max_tokens=3, stop=("ab", "c")),
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize(("rule", "k"), RULES_AND_K)
def test_exact_law_of_whole_outputs(params: str, rule: str, k: int) -> None:
    length = 2 if (rule, k) == ("sampled", 2) else 3  # two tokens have fewer paths
    assert off(Honest, replace(PARAMS[params], rule=rule, k=k, max_tokens=length)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block", "list"])
def test_exact_law_with_long_and_short_last_drafts(rule: str) -> None:
    class Short(Honest):
        shortens = True

    for kind in (Honest, Short):
        assert off(kind, Params(max_tokens=2, k=3, rule=rule)) < EXACT


@pytest.mark.parametrize("rule", [*Honest.rules, "list"])
def test_exact_law_of_looked_up_drafts(rule: str) -> None:
    class LooksUp(Honest):
        looks_up = True

    assert off(LooksUp, Params(max_tokens=3, k=1, rule=rule)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block", "sampled", "coupled"])
def test_exact_law_in_a_ragged_batch(rule: str) -> None:
    job, mates = Job((1, 2, 0), Params(max_tokens=2, k=1, rule=rule)), [Job((0,), Params(max_tokens=1, k=0))]
    wanted = oracle.joint(WORLD, job.prompt, job.params, 2)
    assert distance(enumerated(Honest, job, mates), wanted) < EXACT
    like = [Job((0,), Params(max_tokens=1, k=1, rule=rule))]
    assert distance(enumerated(faulty_drafts.RowsOfNextSequence, job, like), wanted) > VISIBLE


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (faulty_drafts.RowAfter, "plain"),
        (faulty_drafts.BonusRowBefore, "plain"),
        (faulty_drafts.KeepsRejected, "plain"),
        (faulty_laws.FrozenPenalty, "penalties"),
        (faulty_laws.MaskOnFirstRow, "masks"),
        (faulty_laws.TopKOneTooMany, "filters"),
        (faulty_laws.TopPTooShort, "top-p"),
        (faulty_laws.AbsoluteMinP, "min-p"),
        (faulty_ends.KeepsStopToken, "stop token"),
        (faulty_ends.StringsWithinSteps, "stop string"),
    ],
)
def test_the_exact_comparison_sees_planted_faults(kind: type[Honest], params: str) -> None:
    assert off(kind, replace(PARAMS[params], rule="token", k=2)) > VISIBLE


def rule_off(parts: Rules, rule: str, k: int, length: int) -> float:
    """A rule as a function, over several steps, against the product of p's."""
    assert WORLD.draft is not None
    tested, draft = parts.under_test(rule), WORLD.draft

    def step(prefix: tuple[int, ...], origin: int, noise: PathNoise) -> tuple[int, ...]:
        del origin
        tokens: tuple[int, ...] = ()
        laws = []
        for i in range(k):
            laws.append(tested.law(np.exp(draft(prefix + tokens))))
            tokens += (tested.draw(laws[-1], noise, i),)
        rows = [tested.law(np.exp(WORLD.target(prefix + tokens[:i]))) for i in range(k + 1)]
        verdict = tested.verdict(rows, tested.draft(tokens, laws), noise)
        return (*tokens[: verdict.accepted], verdict.token)

    return distance(joint_law(step, length), oracle.joint(WORLD, (), Params(max_tokens=length), length))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", [*Honest.rules, "list"])
def test_rules_as_functions_are_exact(rule: str, k: int) -> None:
    assert rule_off(Rules(), rule, k, 4) < EXACT


@pytest.mark.parametrize(
    "parts", [faulty_rules.ThreePercentMore, faulty_rules.CoarseDraft, faulty_rules.BonusFromDraft]
)
def test_faulty_rules_as_functions_are_not(parts: type[Rules]) -> None:
    assert rule_off(parts(), "token", 2, 3) > VISIBLE


def test_case_43_argmax_drafts_are_exact_under_the_sampled_rule() -> None:
    assert rule_off(faulty_rules.ArgmaxSampledDraft(), "sampled", 2, 4) < EXACT


@pytest.mark.parametrize("rule", Honest.rules)
def test_first_token_is_accepted_by_its_own_law(rule: str) -> None:
    """The mean of reported acceptances of one step, from the engine's books."""

    class Symbolic(Honest):
        path: PathNoise

        def noise(self, live: Live) -> Any:
            return self.path.at(len(live.context))

    def accepted(noise: PathNoise) -> float:
        engine = Symbolic(WORLD)
        engine.path = noise
        return float(engine.sample([job])[0].accepted or 0)

    job = Job((2, 0), Params(max_tokens=1, k=1, rule=rule))
    wanted = oracle.acceptance(WORLD, job.prompt, (), job.params, rule)
    assert mean_of(accepted) == pytest.approx(wanted, abs=EXACT)


# noise


def chi_square(counts: np.ndarray[Any, Any], probs: np.ndarray[Any, Any]) -> float:
    expected = counts.sum() * probs
    return float(((counts - expected) ** 2 / expected).sum())


def test_noise_is_uniform_and_independent_between_neighbours() -> None:
    """256 cells of 40,000 neighbouring pairs. Above 420 with probability 1e-9 for fair noise (255 degrees of freedom);
    a correlation of 0.05 would add about 100 and more than twice that is needed to fail: this finds gross faults."""
    for second in ((0, ACCEPT), (1, DRAFT), (0, NEXT)):
        pairs = [
            (n.uniform(0, DRAFT), n.uniform(*second))
            for n in (Noise(scramble(seed), origin) for seed in range(200) for origin in range(200))
        ]
        cells = np.histogram2d(*np.array(pairs).T, bins=16, range=((0, 1), (0, 1)))[0].ravel()
        assert chi_square(cells, np.full(256, 1 / 256)) < 420


def test_races_are_won_by_law() -> None:
    """20,000 races over 5 tokens. Above 55 with probability 1e-10 (4 degrees of freedom); with two tokens' shares
    swapped it is in the thousands."""
    law = Rules().law(np.array([0.4, 0.05, 0.0, 0.3, 0.25]))
    wins = np.bincount([Noise(scramble(n), 3).race(1).winner(law) for n in range(20_000)], minlength=5)
    keep = law.array > 0
    assert wins[2] == 0
    assert chi_square(wins[keep], law.array[keep]) < 55
    assert chi_square(wins[keep], np.array([0.05, 0.4, 0.3, 0.25])) > 1000


def test_position_noise_does_not_depend_on_the_step() -> None:
    a, b = Noise(7, 3), Noise(7, 5)
    law = Rules().law(np.full(50, 0.02))
    assert a.sample(4) == b.sample(2)
    assert a.race(4).winner(law) == b.race(2).winner(law)
    assert a.uniform(4, ACCEPT) != b.uniform(2, ACCEPT)
