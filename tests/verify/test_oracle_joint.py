"""The oracle's joint laws and acceptance against all texts cut by the engine, and against the engine's own rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import worlds
from toys import Words
from verify_params import engines

from draftproof.stops import Ending
from draftproof.types import Law, Request
from draftproof.verify import oracle, toy
from draftproof.verify.contract import Floats, Params, World
from draftproof.verify.enumerate import outcomes, race_joint

Tokens = tuple[int, ...]

TABLE = toy.tabular_world(4, seed=5, eos=(3,))
PROMPT = (0, 1)
Cut = Callable[[Tokens, Params], Tokens]


def engines_cut(raw: Tokens, params: Params) -> Tokens:
    """The output that the engine makes of tokens which its model would go on to say."""
    stop = oracle.stop_ids(TABLE, params)
    ending = Ending(Request(0, PROMPT, engines(params), 0, 0, stop), Words([w.encode() for w in TABLE.words]), 99)
    return raw[: ending.push(raw).kept]


def brute(params: Params, length: int, cut: Cut = engines_cut) -> dict[Tokens, float]:
    """All texts of `length` tokens with the product of their laws, each cut afterwards."""
    law: defaultdict[Tokens, float] = defaultdict(float)
    for raw in product(range(TABLE.vocab), repeat=length):
        chances = [_prob(raw[:n], raw[n], params) for n in range(length)]
        law[cut(raw, params)] += float(np.prod(chances))
    return {output: chance for output, chance in law.items() if chance > 0}


@cache
def _prob(output: Tokens, token: int, params: Params) -> float:
    stop = oracle.stop_ids(TABLE, params)
    return float(oracle.law(TABLE.target(PROMPT + output), params, PROMPT, output, stop)[token])


JOBS = {
    "plain": Params(max_tokens=9),
    "penalties": Params(max_tokens=9, repetition_penalty=1.4, frequency_penalty=0.7, presence_penalty=-0.3),
    "end of sequence": Params(max_tokens=9, ignore_eos=False),
    "stop tokens": Params(max_tokens=9, stop_token_ids=(1, 2), top_k=3),
    "stop tokens held back": Params(max_tokens=9, stop_token_ids=(1, 2), min_tokens=2),
    "max tokens": Params(max_tokens=2, stop_token_ids=(0,)),
    "stop strings": Params(max_tokens=4, stop=("ab", "bca", "d")),
    "stop strings held back": Params(max_tokens=4, stop=("ab", "c"), min_tokens=2),
    "both": Params(max_tokens=4, stop=("ab",), stop_token_ids=(2,), min_tokens=1),
}


@pytest.mark.parametrize("name", JOBS)
def test_joint_law_is_that_of_all_texts_cut_by_the_engine(name: str) -> None:
    law, expected = oracle.joint(TABLE, PROMPT, JOBS[name], 4), brute(JOBS[name], 4)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert law.keys() == expected.keys()
    assert max(abs(law[x] - expected[x]) for x in law) < 1e-12


def _until_stop(raw: Tokens, params: Params, behind: int = 0) -> Tokens:
    ends = [n for n, token in enumerate(raw) if token in oracle.stop_ids(TABLE, params)]
    return raw[: min([params.max_tokens, *(n + behind for n in ends)])]


@pytest.mark.parametrize("name", ["end of sequence", "stop tokens", "max tokens"])
def test_an_end_in_another_place_is_seen(name: str) -> None:
    law = oracle.joint(TABLE, PROMPT, JOBS[name], 4)
    assert worlds.distance(law, brute(JOBS[name], 4, _until_stop)) < 1e-12
    late = brute(JOBS[name], 4, lambda raw, params: _until_stop(raw, params, behind=1))
    long = brute(JOBS[name], 4, lambda raw, params: raw[: params.max_tokens])
    assert min(worlds.distance(law, late), worlds.distance(law, long)) > 0.01


def test_stop_strings_need_the_whole_output() -> None:
    with pytest.raises(ValueError, match="max_tokens <= length"):
        oracle.joint(TABLE, PROMPT, JOBS["stop strings"], 3)


def test_a_step_by_step_law_is_the_joint_law() -> None:
    params = Params(max_tokens=3, frequency_penalty=0.5)
    for output, chance in oracle.joint(TABLE, PROMPT, params, 3).items():
        laws = oracle.teacher(TABLE, PROMPT, output, params)
        assert np.prod([p[t] for p, t in zip(laws, output, strict=True)]) == pytest.approx(chance)


def test_law_of_texts() -> None:
    world = replace(TABLE, words=("a", "b", "ab", "c"))
    texts = oracle.text_law(world, {(0, 1): 0.25, (2,): 0.5, (3,): 0.25})
    assert texts == {"ab": 0.75, "c": 0.25}


def test_logprob_is_of_the_plain_softmax() -> None:
    exact = np.exp(TABLE.target(PROMPT))
    assert [oracle.logprob(TABLE, PROMPT, t) for t in range(4)] == pytest.approx(np.log(exact / exact.sum()))


# acceptance


class Tables(worlds.World):
    """The laws of a table, for the engine's rules."""

    def __init__(self, table: World) -> None:
        super().__init__(table.vocab)
        assert table.draft is not None
        self._pair = lambda at: (_as_law(table.target(at)), _as_law(table.draft(at)))  # type: ignore[misc]


def _as_law(logits: Floats) -> Law:
    return Law(len(logits), None, np.exp(logits))


def enumerated(rule: str, table: World, k: int) -> tuple[float, ...]:
    """P(at least i accepted) of the engine's rule, over all its noise."""
    world, counts = Tables(table), np.zeros(k + 1)
    for (_, verdict), chance in outcomes(lambda noise: worlds.HONEST[rule].judge(world, PROMPT, k, noise)):
        counts[: verdict.accepted + 1] += chance
    return tuple(counts[1:])


@pytest.mark.parametrize("rule", oracle.ACCEPTANCE)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_acceptance_is_that_of_the_engines_rule(rule: str, zeros: float) -> None:
    table = toy.tabular_world(3, seed=7, zeros=zeros)
    ours = oracle.accepted(table, PROMPT, (), Params(), rule, k=2)
    assert ours == pytest.approx(enumerated(rule, table, 2), abs=1e-12)
    assert oracle.acceptance(table, PROMPT, (), Params(), rule) == pytest.approx(ours[0])


def test_rules_accept_differently() -> None:
    """One rule's acceptance would not pass for another's."""
    table = toy.tabular_world(3, seed=7)
    seen = {rule: sum(oracle.accepted(table, PROMPT, (), Params(), rule, k=2)) for rule in oracle.ACCEPTANCE}
    assert seen["sampled"] + 0.02 < seen["coupled"] < seen["token"] - 0.02
    assert seen["token"] + 0.001 < seen["block"]
    with pytest.raises(ValueError, match="no formula"):
        oracle.acceptance(table, PROMPT, (), Params(), "typical")


def test_coupled_formula_is_the_race() -> None:
    p, q = (oracle.law(z, Params(), (), (), frozenset()) for z in (TABLE.target(PROMPT), TABLE.target((1,))))
    np.testing.assert_allclose(oracle.standing(p, q, "coupled"), np.diag(race_joint(p, q)))


def test_proposals_without_a_law_stand_as_often_as_the_target_says_them() -> None:
    params = Params(max_tokens=3, presence_penalty=0.5)
    law = oracle.joint(TABLE, PROMPT, params, 3)
    stands = oracle.accepted_points(TABLE, PROMPT, (2,), params, (1, 0))
    first = sum(chance for x, chance in law.items() if x[0] == 2)
    second = sum(chance for x, chance in law.items() if x[:2] == (2, 1))
    assert stands == pytest.approx((second / first, law[2, 1, 0] / first))


def test_what_is_drafted_behind_a_stop_token_does_not_count() -> None:
    params, table = Params(stop_token_ids=(0,)), toy.tabular_world(3, seed=7)
    p, q = (of(table, PROMPT, (), params) for of in (oracle.law_at, oracle.draft_law))
    ours = oracle.accepted(table, PROMPT, (), params, "token", k=2)
    assert ours[0] == pytest.approx(np.minimum(p, q)[1:].sum())
    assert oracle.accepted(table, PROMPT, (), replace(params, min_tokens=2), "token", k=2)[1] > ours[1]


def test_a_world_without_a_draft_says_so() -> None:
    with pytest.raises(ValueError, match="no draft model"):
        oracle.acceptance(replace(TABLE, draft=None), PROMPT, (), Params(), "token")


@pytest.mark.parametrize("name", toy.RECIPES)
def test_joint_laws_of_toys_are_laws_without_special_tokens(name: str) -> None:
    world = toy.world(toy.pair(name))
    for prompt in ((4, 5), (9, 17, 6)):
        law = oracle.joint(world, prompt, Params(max_tokens=3), 3)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
        assert len(law) == len(toy.VISIBLE) ** 3
        assert not any(t in world.impossible for x in law for t in x)
    assert oracle.words(world) == tuple(toy.VISIBLE)
