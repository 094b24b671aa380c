"""Which draft length is chosen, when, and from what."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from toys import Letters, drafting, finished, random_table

from draftproof.cost import expected_by_position
from draftproof.engine import Engine
from draftproof.length.goodput import _BEGUN, MOST_AUTO, GoodputLength, Inputs, decide, goodput
from draftproof.length.learned import Step
from draftproof.length.profile import Line, Profile
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.types import Finish, Kind, Request, RequestError, Run, SamplingParams

FLAT = Profile(((1.0, 1.0),), ((1, Line(0.0, 0.1)),), ((1, Line(0.0, 0.0)),))  # the cost model: 1 + k c, c = 0.1
STEEP = Profile(((1.0, 1.0), (2.0, 2.0)), ((1, Line(0.0, 0.1)),), ((1, Line(0.0, 0.0)),))  # each row costs a step


def inputs(alpha: float, most: int = 12, held: tuple[int, ...] = (), probe: bool = False, batch: int = 1) -> Inputs:
    return Inputs(batch, (alpha,) * most, (1.0,) * most, held, probe)


@pytest.mark.parametrize(
    ("alpha", "k", "speedup"), [(0.2, 1, 1.0909), (0.4, 2, 1.3), (0.6, 3, 1.6738), (0.8, 6, 2.4696)]
)
def test_the_cost_models_best_lengths(alpha: float, k: int, speedup: float) -> None:
    """Values of the analytical model at c = 0.1."""
    found = decide(FLAT, inputs(alpha))
    assert (found.choice, found.why) == (k, "best")
    assert found.goodputs[k] == pytest.approx(speedup, abs=1e-4)


def test_plain_decoding_is_a_candidate() -> None:
    assert decide(STEEP, inputs(0.9)).choice == 0
    assert decide(FLAT, inputs(0.05)).choice == 0


def test_a_length_is_held_unless_another_is_clearly_better() -> None:
    assert decide(FLAT, inputs(0.65, held=(4,))) == replace(
        decide(FLAT, inputs(0.65)), choice=4, why="held", inputs=inputs(0.65, held=(4,))
    )
    assert decide(FLAT, inputs(0.6, held=(12,))).choice == 3


def test_a_probe_drafts_where_plain_decoding_looks_best() -> None:
    assert (decide(FLAT, inputs(0.01, probe=True)).choice, decide(FLAT, inputs(0.01, probe=True)).why) == (2, "probe")
    assert decide(FLAT, inputs(0.6, probe=True)).why == "best"
    near = 0.11  # a little better than plain decoding, which is held
    assert decide(FLAT, inputs(near, held=(0,))).why == "held"
    assert decide(FLAT, inputs(near, held=(0,), probe=True)).why == "probe"
    assert decide(FLAT, inputs(0.01, most=0, probe=True)).choice == 0  # no room for a draft


def test_rows_that_are_not_proposed_cost_nothing() -> None:
    rare = Inputs(1, (0.2, 0.95, 0.95), (0.2, 0.2, 0.2), (), False)
    assert decide(STEEP, rare).choice == 0
    half = replace(STEEP, verify=((1.0, 1.0), (2.0, 1.4)))
    assert decide(half, rare).choice == 2
    assert decide(half, rare._replace(proposals=(1.0, 1.0, 1.0))).choice == 0


def test_rows_of_look_ups_that_seldom_find_something_are_not_free() -> None:
    """Where a sequence takes two rows anyhow: one step in five proposes four tokens, five rows; the mean of 0.8 tokens
    would fit into two. On average it is 2.6 rows."""
    costs = Profile(((2.0, 2.0), (3.0, 3.0)), ((1, Line(0.0, 0.0)),), ((1, Line(0.0, 0.0)),), min_rows=2)
    seldom = Inputs(1, (0.2, 0.9, 0.9, 0.9), (0.2,) * 4, (), False)
    assert 1.0 / goodput(costs, seldom, 0) == pytest.approx(2.0)
    tokens = expected_by_position(seldom.chances)
    assert tokens / goodput(costs, seldom, 4) == pytest.approx(2.6)
    assert costs.proposed(seldom.proposals) == pytest.approx(1.6)
    assert costs.verified(1, sum(seldom.proposals)) == pytest.approx(2.0)  # what was taken before


def test_expected_tokens() -> None:
    assert expected_by_position((0.8,) * 4) == pytest.approx(3.3616)
    assert expected_by_position((0.5, 0.0, 1.0)) == pytest.approx(1.5)
    assert expected_by_position(()) == 1.0
    assert goodput(FLAT, inputs(0.8), 4) == pytest.approx(3.3616 / 1.4)


class View:
    def __init__(self, name: int = 0, **params: Any) -> None:
        asked = SamplingParams(**params)
        self.request = Request(name, (1, 2), asked, asked.seed or 0, MOST_AUTO, frozenset(), auto=True)
        self.tokens = [1, 2, 3]  # the prompt has been read

    def step(self, policy: GoodputLength, alpha: float, rng: random.Random, batch: int = 1) -> int:
        k = policy.choose(self, batch, 12)
        accepted = next((i for i in range(k) if rng.random() >= alpha), k)
        kinds = (Kind.ACCEPTED,) * accepted + (Kind.BONUS if accepted == k else Kind.RESIDUAL,)
        self.tokens += [0] * (accepted + 1)
        policy.observe(self, Run((0,) * (accepted + 1), kinds, k, accepted, len(self.tokens) - 2))
        return k


def run(alpha: float, steps: int = 300, profile: Profile = FLAT, policy: GoodputLength | None = None) -> list[int]:
    rng, view, policy = random.Random(1), View(), policy or GoodputLength(profile)
    return [view.step(policy, alpha, rng) for _ in range(steps)]


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.9, 6, 12), (0.6, 2, 5), (0.0, 0, 0)])
def test_it_finds_the_length(alpha: float, low: int, high: int) -> None:
    late = run(alpha)[200:230]
    assert low <= sorted(late)[len(late) // 2] <= high


def test_probes_become_rarer_where_nothing_helps() -> None:
    chosen = run(0.0, 1000)
    start = chosen.index(0)
    probes = [n for n, k in enumerate(chosen) if k and n > start]
    assert 3 <= len(probes) <= 6
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps == sorted(gaps)
    assert all(k <= 2 for k in chosen[start:])


def test_drafts_come_back_when_they_begin_to_pay() -> None:
    policy, rng, view = GoodputLength(FLAT), random.Random(2), View()
    for _ in range(100):
        view.step(policy, 0.0, rng)
    assert [view.step(policy, 0.95, rng) for _ in range(300)][-1] >= 4


def test_the_same_answer_until_the_step_is_done() -> None:
    policy, view = GoodputLength(FLAT), View()
    first = policy.choose(view, 1, 12)
    assert policy.choose(view, 7, 12) == first
    assert policy.choose(view, 1, 12) == first


def test_a_new_request_learns_from_others_unless_it_is_seeded() -> None:
    policy = GoodputLength(FLAT)
    run(0.0, 200, policy=policy)
    first = GoodputLength(FLAT).choose(View(8, seed=1), 1, 12)
    assert first >= 3
    assert policy.choose(View(5), 1, 12) < first
    assert policy.choose(View(6, seed=1, rule="coupled"), 1, 12) < first  # its text does not depend on drafts
    assert policy.choose(View(7, seed=1, temperature=0.0), 1, 12) < first
    assert policy.choose(View(8, seed=1), 1, 12) == first


def dearer(policy: GoodputLength) -> GoodputLength:
    """Once it was told that passes of three rows and more take half as long again as was measured."""
    for n in range(320):
        rows = 1 + n % 6
        policy.timed(Step(rows, GENTLE.verified(1, rows - 1) * (1.5 if rows > 2 else 1.0)))
    return policy


GENTLE = Profile(tuple((r, 1.0 + 0.05 * r) for r in range(1, 14)), FLAT.draft, FLAT.other)


def test_costs_that_were_seen_decide_unless_a_request_is_seeded() -> None:
    before = GoodputLength(GENTLE).choose(View(), 1, 12)
    policy = dearer(GoodputLength(GENTLE))
    assert policy.choose(View(1), 1, 12) != before
    assert policy.choose(View(2, seed=1, rule="coupled"), 1, 12) != before
    assert policy.choose(View(3, seed=1), 1, 12) == before


def test_planted_corrections_for_seeded_requests_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.length.goodput._alone", lambda _: False)
    assert dearer(GoodputLength(GENTLE)).choose(View(3, seed=1), 1, 12) != GoodputLength(GENTLE).choose(View(), 1, 12)


def test_the_step_that_reads_the_prompt_teaches_nothing() -> None:
    """A head has no states to draft from then: that nothing was proposed is not the draft's fault."""
    policy, view = GoodputLength(FLAT), View()
    view.tokens = [1, 2]
    first = policy.choose(view, 1, 12)
    view.tokens = [1, 2, 3]
    policy.observe(view, Run((3,), (Kind.BONUS,), 0, 0, 1))
    assert policy.choose(view, 1, 12) == first
    assert policy._all.stood[0].seen == _BEGUN


def test_a_cut_run_says_nothing_of_what_lies_behind_its_cut() -> None:
    policy, view = GoodputLength(FLAT), View()
    k = policy.choose(view, 1, 12)
    policy.observe(view, Run((0,), (Kind.ACCEPTED,), 1, 1, 1, Finish.STOP))
    assert k > 1
    assert policy._all.stood[0].had == 0.5 * _BEGUN * 0.97 + 1
    assert len(policy._all.stood) == 1
    assert not policy._states


def test_every_decision_can_be_recomputed() -> None:
    heard: list[dict[str, Any]] = []
    run(0.5, 60, policy=GoodputLength(FLAT, [heard.append]))
    assert len(heard) == 61
    assert heard[0] == {"profile": FLAT.as_json()}
    for line in heard[1:]:
        given = line["inputs"]
        again = decide(
            FLAT,
            Inputs(
                given["batch"], tuple(given["chances"]), tuple(given["proposals"]), tuple(given["held"]), given["probe"]
            ),
        )
        assert (again.choice, again.why) == (line["choice"], line["why"])
        assert list(again.goodputs) == list(line["goodputs"])


VOCAB = 6


def engine(**more: Any) -> Engine:
    model = TabularModel(random_table(VOCAB, 1), tabular_info(VOCAB, min_rows=2))
    return Engine(model, Letters(), drafting(random_table(VOCAB, 2), VOCAB), **more)


def auto(profile: Profile = FLAT) -> Engine:
    return engine(k="auto", lengths=GoodputLength(profile))


def texts(made: Engine, rule: str, together: bool) -> list[tuple[int, ...]]:
    asked = [SamplingParams(max_tokens=30, seed=n, rule=rule) for n in range(6)]
    prompts = [[1, n % VOCAB] for n in range(6)]
    if together:
        return [o.tokens for o in made.generate(prompts, asked)]
    return [made.generate([p], [a])[0].tokens for p, a in zip(prompts, asked, strict=True)]


@pytest.mark.parametrize("rule", ["token", "block", "sampled", "coupled"])
def test_seeded_texts_do_not_depend_on_load(rule: str) -> None:
    made = auto()
    made.generate([[3, 3]], SamplingParams(max_tokens=200))  # what others showed
    assert texts(made, rule, together=True) == texts(auto(), rule, together=False)


def test_planted_prior_of_others_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.length.goodput._alone", lambda _: False)
    made = auto()
    made.generate([[3, 3]], SamplingParams(max_tokens=200))
    assert texts(made, "block", together=True) != texts(auto(), "block", together=False)


def test_auto_and_fixed_lengths_go_together() -> None:
    made = auto()
    names = [made.add([1, 2], SamplingParams(max_tokens=40, k=k, seed=3)) for k in (0, 2, "auto")]  # type: ignore[arg-type]
    outputs = finished(made)
    longest = [max(len(s.proposed) for s in outputs[n].steps) for n in names]
    assert longest[:2] == [0, 2]
    assert longest[2] > 2


def test_auto_without_costs_is_refused() -> None:
    with pytest.raises(RequestError, match="load the engine with k='auto'"):
        engine().add([1], SamplingParams(k="auto"))
    with pytest.raises(RequestError, match="give 0 to 64, or auto"):
        SamplingParams(k="fast")  # type: ignore[arg-type]
