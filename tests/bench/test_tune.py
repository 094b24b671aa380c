"""What is recommended, from made-up seconds: sleeps that were planted change it, and measuring ends when it may."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from bench.fake import PARTS, FakeRunner
from bench.tuning import MANY, WISH, profile, runner, tuning

from draftproof.bench import advice
from draftproof.bench.advice import ERROR, Advice, Looks, Outcome, advise, least, looks
from draftproof.bench.measure import Asked
from draftproof.bench.plan import PLAIN, Config
from draftproof.bench.results import RunRecord
from draftproof.bench.tune import LEARNED, Tuning, seconds
from draftproof.types import RequestError

K2, K3 = Config("k=2", 2, "block", True), Config("k=3", 3, "block", True)
STEP = sum(PARTS.values())
SLEEP = 0.05


def ran(made: FakeRunner, **more: object) -> tuple[Tuning, Advice]:
    told = tuning(made, **more)  # type: ignore[arg-type]
    told.run()
    return told, told.conclude()[0]


def test_the_length_that_pays_is_found_and_measuring_ends_early() -> None:
    made = runner(most=2)
    told, found = ran(made)
    assert (found.outcome, found.best.k, found.best.rule) == (Outcome.SPECULATE, 2, "block")
    assert found.ratio.ratio == pytest.approx(3 * (STEP - PARTS["draft"]) / (STEP + PARTS["draft"]))
    assert found.settled
    assert found.groups == told.trials[0].looks.groups[0] < len(told.trials[0].plan.groups)


def test_a_prediction_is_what_costs_and_acceptance_make_it() -> None:
    told, _ = ran(runner(most=2))
    assert told.seen[0].alpha_cond[:2] == (1.0, 1.0)
    two = next(p for p in told.promises if p.k == 2)
    assert (two.tokens, two.seconds) == (pytest.approx(3.0), pytest.approx(STEP + PARTS["draft"]))
    assert [c.k for c in told.trials[0].plan.speculative] == [2, 3]


@pytest.mark.parametrize("part", ["draft", "kv", "schedule"])
def test_a_planted_sleep_says_do_not_speculate(part: str) -> None:
    """The costs were profiled before the sleep came: what was measured counts, not what was predicted."""
    told, found = ran(runner(most=2, more={part: SLEEP}))
    assert max(p.speedup for p in told.promises) > 2.0
    assert (found.outcome, found.settled) == (Outcome.PLAIN, True)
    assert found.ratio.high < 1.0
    assert found.groups == told.trials[0].looks.groups[0]


def test_dear_draft_tokens_change_what_is_measured_and_what_is_said() -> None:
    """Every token stands: cheap drafts are long, and profiled ones of three steps a token do not even promise."""
    assert ran(runner(8))[1].best.k >= 7
    told, found = ran(runner(8, SLEEP), costs=profile(SLEEP))
    assert max(told.promises, key=lambda p: p.speedup).k == 0
    assert [c.k for c in told.trials[0].plan.speculative] == [1, 2]  # they lose least
    assert found.outcome is Outcome.PLAIN


def test_measuring_goes_on_where_the_answer_is_not_clear() -> None:
    """A gain of a tenth under noise of a third takes longer than one of 2.5."""
    slow = {"verify": PARTS["verify"] + 1.65 * STEP}
    told, found = ran(runner(2, noise=0.3, more=slow))
    assert len(told.trials[0].said) > 1
    assert found.groups > ran(runner(2))[1].groups


def test_what_stays_unclear_uses_the_prompts_up_and_says_so() -> None:
    told, found = ran(runner(2, noise=0.3, more={"verify": PARTS["verify"] + 2.0 * STEP - PARTS["draft"]}))
    assert not found.settled
    assert found.outcome is Outcome.PLAIN
    assert told.trials[0].done == len(told.trials[0].plan.groups) == len(MANY)
    assert len(told.trials[0].said) == len(told.trials[0].looks.groups)
    assert not told.stopped


def test_each_batch_size_has_its_own_end() -> None:
    made = runner(2)
    told = tuning(made, replace(WISH, batches=(1, 4), rules=("block", "token")))
    told.run()
    one, four = told.conclude()
    assert (one.batch, four.batch) == (1, 4)
    assert {c.name for c in told.trials[0].plan.configs} == {PLAIN, "k=2", "k=3", "k=2 token", "k=3 token"}
    assert {len(told.trials[1].plan.groups[0].prompts)} == {4}


def test_configurations_are_interleaved_and_have_the_same_seeds() -> None:
    made = runner(2)
    told, _ = ran(made)
    trial = told.trials[0]
    measured = made.calls[-len(trial.runs) :]
    assert measured == [(n, name) for n in range(trial.done) for name in trial.plan.groups[n].order]
    assert len({trial.plan.groups[n].order for n in range(trial.done)}) > 1
    for at in range(0, len(measured), len(trial.plan.configs)):
        asked = made.asked[-len(trial.runs) :][at : at + len(trial.plan.configs)]
        assert len({tuple((a.prompt, a.params.seed) for a in group) for group in asked}) == 1


def test_the_same_seed_gives_the_same_plan() -> None:
    def calls(seed: int) -> list[object]:
        made = runner(2)
        told, _ = ran(made, wish=replace(WISH, seed=seed))
        return [made.calls, told.trials[0].plan, [[(a.prompt, a.params.seed) for a in asked] for asked in made.asked]]

    assert calls(1) == calls(1)
    assert calls(1)[2] != calls(2)[2]


def test_acceptance_is_seen_on_a_part_of_many_prompts() -> None:
    told, _ = ran(runner(2))
    assert len(told.learned) == told.seen[0].prompts == LEARNED < len(MANY)


class Clock:
    """A tick at each look at it."""

    def __init__(self) -> None:
        self.now = -1.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(("ticks", "groups", "outcome"), [(8, 5, Outcome.FEW), (23, 16, Outcome.PLAIN)])
def test_when_time_is_up_it_says_what_is_known(ticks: int, groups: int, outcome: Outcome) -> None:
    made = runner(2, noise=0.3, more={"verify": PARTS["verify"] + 2.0 * STEP - PARTS["draft"]})
    told, found = ran(made, minutes=ticks / 60, clock=Clock())
    assert "minutes are used up" in told.stopped
    assert (found.outcome, found.settled, found.groups) == (outcome, False, groups)
    assert told.trials[0].done == groups < len(MANY)
    assert len(told.learned) == -(-ticks // 4)  # a quarter of the time


def test_time_that_ends_while_learning_leaves_a_prediction() -> None:
    told = tuning(runner(2), minutes=1 / 60, clock=Clock())
    told.run()
    assert len(told.learned) == 1
    assert [a.outcome for a in told.conclude()] == [Outcome.FEW]
    assert told.promises


def tired(made: FakeRunner, calls: int) -> FakeRunner:
    """Somebody presses Ctrl-C in that call."""
    real = made.run

    def run(group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        if len(made.calls) == calls - 1:
            raise KeyboardInterrupt
        return real(group, config, asked)

    made.run = run  # type: ignore[method-assign]
    return made


def test_whoever_stops_it_may_still_ask() -> None:
    unclear = runner(2, noise=0.3, more={"verify": PARTS["verify"] + 2.0 * STEP - PARTS["draft"]})
    told = tuning(tired(unclear, LEARNED + 50))
    with pytest.raises(KeyboardInterrupt):
        told.run()
    (found,) = told.conclude()
    assert found.groups == told.trials[0].done > 12
    assert len(told.trials[0].runs) % 3 == 0  # no half of a group


def test_who_stops_it_while_it_learns_gets_a_prediction() -> None:
    told = tuning(tired(runner(2), 5))
    with pytest.raises(KeyboardInterrupt):
        told.run()
    assert told.conclude() == ()
    assert max(told.promises, key=lambda p: p.speedup).k == 2


def test_few_prompts_are_dealt_again_until_there_is_a_look() -> None:
    told, found = ran(runner(2), prompts=MANY[:3])
    assert found.outcome is Outcome.SPECULATE
    assert found.groups >= told.trials[0].looks.least


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"most": 0}, "--most-k 0"),
        ({"most": 39}, "--short 20"),
        ({"minutes": 0.0}, "--minutes 0"),
        ({"minutes": float("nan")}, "--minutes nan"),
        ({"wish": replace(WISH, rules=("lenience:1.5",))}, "exact rules"),
        ({"wish": replace(WISH, batches=())}, "--batches"),
        ({"wish": replace(WISH, batches=(61,))}, "--batches 61"),
    ],
)
def test_what_cannot_be_recommended_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tuning(runner(2), **changes)  # type: ignore[arg-type]


LOOKS = Looks((40,), 0.01)


def prompts_of_all_sizes(gain: float) -> dict[str, list[float]]:
    """Seconds that differ by orders between prompts and little between configurations."""
    rng = random.Random(5)
    base = [10.0 ** rng.uniform(-3, 0) for _ in range(40)]
    return {PLAIN: base, "k=2": [s / gain * rng.uniform(0.99, 1.01) for s in base]}


def test_pairs_show_what_prompts_hide() -> None:
    found = advise(1, [K2], prompts_of_all_sizes(1.1), LOOKS)
    assert (found.outcome, found.settled) == (Outcome.SPECULATE, True)


def test_planted_unpaired_comparison_is_seen() -> None:
    told = prompts_of_all_sizes(1.1)
    told["k=2"] = told["k=2"][1:] + told["k=2"][:1]  # each against another prompt's
    found = advise(1, [K2], told, LOOKS)
    assert not found.settled
    assert found.outcome is Outcome.PLAIN


def test_groups_find_each_other_in_any_order() -> None:
    made = runner(2, noise=0.5)
    trial = ran(made)[0].trials[0]
    assert seconds(trial.plan, trial.runs[::-1]) == seconds(trial.plan, trial.runs)
    torn = trial.runs[:-1]
    assert len(seconds(trial.plan, torn)[PLAIN]) == trial.done - 1
    assert len({len(column) for column in seconds(trial.plan, torn).values()}) == 1


def table(gain2: float, gain3: float, noise: float = 0.001) -> dict[str, list[float]]:
    rng = np.random.default_rng(1)
    made = {PLAIN: 1.0, "k=2": 1 / gain2, "k=3": 1 / gain3}
    return {name: list(s * np.exp(rng.normal(0.0, noise, 40))) for name, s in made.items()}


@pytest.mark.parametrize(
    ("gains", "noise", "outcome", "best", "settled"),
    [
        ((1.5, 1.51), 0.001, Outcome.SPECULATE, "k=3", True),  # they cannot differ by more than 2 %
        ((1.5, 1.6), 0.001, Outcome.SPECULATE, "k=3", True),
        ((1.5, 1.51), 0.1, Outcome.SPECULATE, "k=2", False),  # either may be the better one
        ((1.005, 0.8), 0.001, Outcome.PLAIN, "k=2", True),  # within 2 % of plain decoding
        ((0.7, 0.8), 0.001, Outcome.PLAIN, "k=3", True),
        ((1.1, 0.8), 0.5, Outcome.PLAIN, "k=2", False),
    ],
)
def test_what_is_said(gains: tuple[float, float], noise: float, outcome: Outcome, best: str, settled: bool) -> None:
    found = advise(1, [K2, K3], table(*gains, noise), LOOKS)
    assert (found.outcome, found.best.name, found.settled) == (outcome, best, settled)


@pytest.mark.parametrize("ways", [1, 2, 4])
@pytest.mark.parametrize("groups", [7, 20, 60, 480])
def test_the_error_is_split_over_looks_and_comparisons(groups: int, ways: int) -> None:
    told = looks(groups, ways)
    assert told.error * len(told.groups) * ways * (ways + 1) / 2 == pytest.approx(ERROR)
    assert told.groups[-1] == groups
    assert len(told.groups) == 1 or told.groups[0] >= told.least == least(told.error)
    assert 2 * 0.5**told.least <= told.error


def claims(told: Looks, same: Callable[[np.random.Generator], np.ndarray]) -> float:
    """How often some look says that something is faster, where nothing is."""
    rng, wrong = np.random.default_rng(11), 0
    for _ in range(400):
        columns = {name: same(rng) for name in (PLAIN, "k=2", "k=3")}
        found = [advise(1, [K2, K3], {n: list(c[:groups]) for n, c in columns.items()}, told) for groups in told.groups]
        wrong += any(a.ratio.low > 1.0 for f in found for a in f.against)
    return wrong / 400


def noisy(rng: np.random.Generator) -> np.ndarray:
    return np.exp(rng.normal(0.0, 0.3, 60))


def test_all_looks_together_err_as_often_as_they_say() -> None:
    assert claims(looks(60, 2), noisy) <= ERROR


def test_planted_looks_with_the_whole_error_each_are_seen() -> None:
    assert claims(replace(looks(60, 2), error=ERROR), noisy) > 1.5 * ERROR


def test_planted_bootstrap_intervals_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few groups, small errors: there a percentile bootstrap claims more than it may."""

    def bootstrap(base: list[float], other: list[float], error: float) -> advice.Ratio:
        a, b = np.array(base), np.array(other)
        picks = np.random.default_rng(1).integers(0, len(a), (1000, len(a)))
        low, high = np.quantile(a[picks].sum(axis=1) / b[picks].sum(axis=1), [error / 2, 1 - error / 2])
        return advice.Ratio(a.sum() / b.sum(), low, high)

    few = replace(looks(8, 2), groups=(8,))
    honest = claims(few, noisy)
    monkeypatch.setattr(advice, "paired_ratio", bootstrap)
    assert honest <= ERROR / 2 < claims(few, noisy)
