"""The plan: the same for the same seed, complete, refused where it could mislead, whole after a file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from bench.fake import MADE, PROMPTS, a_plan, encode

from draftproof.bench.plan import (
    LEAST_GROUPS,
    PLAIN,
    Wish,
    changed,
    configs,
    groups,
    plan_from_json,
    plan_json,
    plan_of,
)
from draftproof.types import RequestError

WISH = Wish((2, 4, "auto"), batches=(1, 3, 5), short=9, long=17, seed=3)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan_json(a_plan(WISH)) == plan_json(a_plan(WISH))
    other = a_plan(replace(WISH, seed=4))
    assert changed(a_plan(WISH), other) == ["seed", "groups"]


def test_nothing_that_was_asked_for_is_left_out() -> None:
    plan = a_plan(WISH)
    assert [c.name for c in plan.configs] == [PLAIN, "k=2", "k=4", "k=auto"]
    for group in plan.groups:
        assert sorted(group.order) == sorted(c.name for c in plan.configs)
        assert len(set(group.prompts)) == len(group.prompts) == group.batch
    for batch in WISH.batches:
        mine = [g for g in plan.groups if g.batch == batch]
        assert {i for g in mine for i in g.prompts} == set(range(len(PROMPTS)))
        assert len(mine) >= LEAST_GROUPS
    assert len(plan.runs) == 4 * len(plan.groups)


def test_orders_and_sizes_are_mixed() -> None:
    """Any fixed order would put one configuration always behind another one."""
    plan = a_plan(WISH)
    firsts = Counter(g.order[0] for g in plan.groups)
    assert len(firsts) == 4
    sizes = [g.batch for g in plan.groups]
    assert sizes != sorted(sizes)
    assert sizes != sorted(sizes, reverse=True)


def test_few_prompts_are_dealt_until_there_are_enough_groups() -> None:
    assert len(groups(3, [3], ["a", "b"], 1)) == LEAST_GROUPS
    assert len(groups(1, [1], ["a"], 1)) == LEAST_GROUPS
    assert len(groups(16, [1], ["a"], 1)) == 16


def test_a_plan_is_whole_after_a_file() -> None:
    plan = a_plan(WISH, command=("draftproof", "bench", "--k", "2"))
    assert plan_from_json(json.loads(json.dumps(plan_json(plan)))) == plan


def test_what_decides_is_compared_and_nothing_else() -> None:
    plan = a_plan(WISH)
    same = replace(plan, created="later", command=(), environment={**plan.environment, "load": [9.0, 9.0, 9.0]})
    assert changed(plan, same) == []
    group = replace(plan.groups[0], order=plan.groups[0].order[::-1])
    for field, other in {
        "environment": {**plan.environment, "cpu": "another"},
        "groups": (group, *plan.groups[1:]),
        "decision": "whatever looks best",
        "temperature": 1.0,
        "target": replace(plan.target, fingerprint="cd"),
        "prompts": (replace(plan.prompts[0], sha256="0"), *plan.prompts[1:]),
    }.items():
        assert changed(plan, replace(plan, **{field: other})) == [field]


def test_limit_draws_by_the_seed_and_of_both_lengths() -> None:
    drawn = [a_plan(replace(WISH, limit=4, batches=(1,), seed=s)) for s in range(6)]
    for plan in drawn:
        assert Counter((p.kind, p.length) for p in plan.prompts) == {
            (k, n): 2 for k in ("chat", "code") for n in ("short", "long")
        }
    assert len({tuple(p.id for p in plan.prompts) for plan in drawn}) > 1
    assert drawn[0].limit == 4


def test_answers_have_the_length_that_was_fixed_before() -> None:
    plan = a_plan(WISH)
    assert {(p.length, p.max_tokens) for p in plan.prompts} == {("short", 9), ("long", 17)}
    assert plan.output_tokens == {"short": 9, "long": 17}
    assert [p.tokens for p in plan.prompts] == [len(encode(p.text)) for p in PROMPTS]


@pytest.mark.parametrize(
    ("ks", "rules", "said"),
    [
        ((), ("block",), "--k is empty"),
        ((2, 2), ("block",), "each once"),
        ((0, 2), ("block",), "from 1 to 64"),
        ((65,), ("block",), "from 1 to 64"),
        ((2,), ("block", "block"), "each once"),
        ((2,), ("nothing",), "unknown"),
        ((2,), ("block", "lenience:1.5"), "lossy rules"),
        ((2,), ("typical:0.3", "coupled", "lenience:1.5"), "lossy rules"),
    ],
)
def test_configurations_that_could_mislead_are_refused(ks, rules, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError, match=said):
        configs(ks, rules)


def test_lossy_rules_stand_by_themselves_and_say_so() -> None:
    plan = a_plan(replace(WISH, rules=("lenience:1.5", "lenience:2")))
    assert plan.lossy
    assert [(c.name, c.exact) for c in plan.configs[:2]] == [(PLAIN, True), ("k=2 lenience:1.5", False)]
    assert not a_plan(replace(WISH, rules=("block", "coupled"))).lossy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batches": ()}, "--batches"),
        ({"batches": (1, 0)}, "--batches"),
        ({"batches": (4, 4)}, "--batches"),
        ({"batches": (17,)}, "only 16 prompts"),
        ({"short": 1}, "--short"),
        ({"long": 0}, "--long"),
        ({"limit": -1}, "--limit"),
        ({"long": 995}, "prompt chat-1 has 6 tokens"),
    ],
)
def test_work_that_cannot_be_done_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        plan_of(replace(WISH, **change), PROMPTS, encode, 1000, MADE)
