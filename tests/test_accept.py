"""The exact rules: joint laws by enumeration, acceptance by formula, the published numbers, and the ends of [0, 1).

Planted faults that these same checks must catch are in test_accept_faults.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from worlds import FLAVOURS, HONEST, Tokens, World, distance, expected_accepted

from draftproof.accept import RULES, ProposerError, Rule, block_rule, draw, excess, token_rule
from draftproof.noise import StepNoise
from draftproof.types import Draft, Kind, Law, Verdict
from draftproof.verify.enumerate import Fixed, joint_law, law_of, mean_of, race_joint

EXACT = 1e-12
BELOW_ONE = 1 - 2.0**-53
# (vocabulary, k): length of the joint law. Two tokens or more, so that a rejected first draft leads to a second step.
LENGTHS = {(2, 1): 5, (2, 2): 5, (2, 3): 5, (2, 4): 4, (3, 1): 4, (3, 2): 3, (3, 3): 3, (3, 4): 2}
LENGTHS |= {(4, 1): 3, (4, 2): 3, (4, 3): 2}
STOPPING = {
    "after an even sum": lambda x: not x or sum(x) % 2 == 1,
    "after token 0": lambda x: 0 not in x,
    "at once": lambda x: False,
}


def soft(*weights: float) -> Law:
    return Law(len(weights), None, np.array(weights))


def error(rule: str, world: World, k: int, length: int, shared: bool = False) -> float:
    law = joint_law(HONEST[rule].step(world, k), length, shared)
    return distance(law, world.target(length))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("flavour", ["dense", "mixed"])
@pytest.mark.parametrize(("vocab", "k"), LENGTHS, ids=str)
def test_joint_law_is_the_targets(rule: str, flavour: str, vocab: int, k: int) -> None:
    assert error(rule, World(vocab, flavour), k, LENGTHS[vocab, k]) < EXACT


@pytest.mark.parametrize(
    ("rule", "flavour"), [("token", "dense"), ("block", "dense"), ("sampled", "zeros"), ("coupled", "zeros")]
)
def test_joint_law_at_the_largest_size(rule: str, flavour: str) -> None:
    """Vocabulary 4, k = 4. Thinned: laws with zeros have fewer paths."""
    assert error(rule, World(4, flavour), 4, 2) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_joint_law_for_every_kind_of_law(rule: str, flavour: str) -> None:
    assert error(rule, World(3, flavour, seed=2), 2, 3) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stopping", STOPPING)
def test_predictable_stopping_is_exact(rule: str, stopping: str) -> None:
    world = World(3, seed=3, more=STOPPING[stopping])
    assert error(rule, world, 3, 3) < EXACT
    accepted = mean_of(lambda noise: HONEST[rule].judge(world, (1,), 3, noise)[1].accepted)
    assert accepted == pytest.approx(expected_accepted(rule, world, (1,), 3), abs=EXACT)


@pytest.mark.parametrize("rule", ["token", "block", "sampled"])
def test_one_noise_over_all_steps_is_as_good_as_noise_for_each(rule: str) -> None:
    """Steps share one keyed noise in the engine. Nothing that one step looks at may be met again by another."""
    assert error(rule, World(2, "dense"), 2, 3, shared=True) < EXACT


@pytest.mark.parametrize("rule", [name for name in RULES if RULES[name].seed_decides])
@pytest.mark.parametrize("k", [1, 3])
def test_the_seed_decides_the_text(rule: str, k: int) -> None:
    """Bitwise equal with and without speculation, for every draft and draft length, over several steps."""
    for seed in range(50):
        plain, fast = (_text(World(4, "mixed", seed=seed), RULES[rule], n, seed) for n in (0, k))
        other = _text(World(4, "mixed", seed=seed), RULES[rule], k, seed, drafts=World(4, "dense", seed=seed + 99))
        assert plain == fast == other


def _text(world: World, rule: Rule, k: int, seed: int, drafts: World | None = None) -> Tokens:
    text: Tokens = ()
    while len(text) < 8:
        noise, tokens = StepNoise(seed, len(text)), ()
        for i in range(k):
            tokens += (rule.draw((drafts or world).q(text + tokens), noise, i),)
        draft = Draft(tokens, tuple((drafts or world).q(text + tokens[:i]) for i in range(k)))
        verdict = rule.verdict(world.rows(text, tokens), draft, noise)
        text += (*tokens[: verdict.accepted], verdict.token)
    return text[:8]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("flavour", ["dense", "mixed", "zeros", "sparse", "point draft"])
def test_acceptance_follows_its_own_law(rule: str, k: int, flavour: str) -> None:
    world = World(3, flavour, seed=4)
    for prefix in ((), (2,), (0, 1)):
        accepted = mean_of(lambda noise, at=prefix: HONEST[rule].judge(world, at, k, noise)[1].accepted)
        assert accepted == pytest.approx(expected_accepted(rule, world, prefix, k), abs=EXACT)


@pytest.mark.parametrize("flavour", ["dense", "zeros", "sparse", "float32", "point draft"])
def test_block_rule_accepts_at_least_as_much_as_the_token_rule(flavour: str) -> None:
    for seed in range(20):
        world = World(3, flavour, seed=seed)
        token, block = ([expected_accepted(rule, world, (), k) for k in (1, 2, 3)] for rule in ("token", "block"))
        assert all(b >= t - EXACT for b, t in zip(block, token, strict=True))
        assert block[0] == pytest.approx(token[0], abs=EXACT)
        if flavour == "point draft":
            assert block == pytest.approx(token, abs=EXACT)


def test_coupled_acceptance_lies_between_its_bounds() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        p, q = rng.dirichlet(np.full(5, 0.4), size=2)
        joint, tv = race_joint(p, q), np.abs(p - q).sum() / 2
        formula = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(5))
        assert joint.trace() == pytest.approx(formula, abs=EXACT)
        assert (1 - tv) / (1 + tv) - EXACT <= joint.trace() <= 1 - tv + EXACT
        world = World.constant(soft(*p), soft(*q))
        match = mean_of(lambda noise: HONEST["coupled"].judge(world, (), 1, noise)[1].accepted)  # noqa: B023
        assert match == pytest.approx(formula, abs=EXACT)


P4, Q4 = soft(0.5, 0.3, 0.15, 0.05), soft(0.25, 0.25, 0.3, 0.2)


# Numbers of the project's test vectors: worked by hand from Leviathan et al. 2022 and Sun et al. 2024.
@pytest.mark.parametrize(
    ("rule", "p", "q", "k", "accepted"),
    [
        ("token", P4, Q4, 1, 0.7),
        ("block", P4, Q4, 1, 0.7),
        ("sampled", P4, Q4, 1, 0.255),
        ("token", soft(1 / 3, 2 / 3), soft(2 / 3, 1 / 3), 2, 10 / 9),  # 1.1111111111
        ("block", soft(1 / 3, 2 / 3), soft(2 / 3, 1 / 3), 2, 11 / 9),  # 1.2222222222
    ],
)
def test_published_acceptance(rule: str, p: Law, q: Law, k: int, accepted: float) -> None:
    world = World.constant(p, q)
    assert mean_of(lambda noise: HONEST[rule].judge(world, (), k, noise)[1].accepted) == pytest.approx(accepted)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_published_token_rule(rule: str) -> None:
    world = World.constant(P4, Q4)
    paths = law_of(lambda noise: HONEST[rule].step(world, 1)((), 0, noise))
    accepted = [sum(w for x, w in paths.items() if len(x) == 2 and x[0] == t) for t in range(4)]
    residual = [paths.get((t,), 0.0) / 0.3 for t in range(4)]
    assert accepted == pytest.approx([0.25, 0.25, 0.15, 0.05])
    assert residual == pytest.approx([0.8333333333, 0.1666666667, 0, 0])
    assert [a + 0.3 * r for a, r in zip(accepted, residual, strict=True)] == pytest.approx([0.5, 0.3, 0.15, 0.05])
    assert excess(P4, Q4, 1.0) == pytest.approx([0.25, 0.05, 0, 0])


def test_a_point_proposal_is_accepted_as_often_as_the_target_says() -> None:
    """Case 4: an n-gram candidate with p = 0.05 stands 5 times in 100, under every rule."""
    world = World.constant(P4, Law.point(4, 3))
    for decoder in HONEST.values():
        assert mean_of(lambda noise, d=decoder: d.judge(world, (), 1, noise)[1].accepted) == pytest.approx(0.05)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_no_draft_is_plain_decoding(rule: Rule) -> None:
    law = law_of(lambda noise: rule.verdict([P4], Draft(), noise))
    assert {(v.accepted, v.kind, v.numerical) for v in law} == {(0, Kind.BONUS, False)}
    assert {v.token: w for v, w in law.items()} == pytest.approx(dict(enumerate(P4.dense())))


@pytest.mark.parametrize("rule", [token_rule, block_rule])
def test_u_zero_never_accepts_what_the_target_forbids(rule: object) -> None:
    p, q = soft(0.0, 0.4, 0.6), soft(0.5, 0.25, 0.25)
    verdict = rule([p, p], Draft((0,), (q,)), Fixed(0.0))
    assert (verdict.accepted, verdict.kind) == (0, Kind.RESIDUAL)
    assert rule([P4, p, p], Draft((0, 0), (Q4, q)), Fixed(0.0)).token != 0


@pytest.mark.parametrize("u", [0.0, 1e-300, 2.0**-53, BELOW_ONE])
def test_draw_gives_no_token_without_mass(u: float) -> None:
    for weights in ([0.0, 1.0, 0.0], [0.0, 0.1, 0.0, 0.2, 0.0], [0.0, 3e-320, 0.0], [0.0, 1e300, 0.0]):
        law = soft(*weights)
        assert law.prob(draw(law, u)) > 0
        assert draw(Law(99, np.array([5, 7, 8, 30, 31])[: len(weights)], law.weights), u) in (7, 30)
    float32 = Law(3, None, np.array([0.1, 0.7, 0.0], dtype=np.float32))
    assert draw(float32, u) == (1 if u > 0.5 else 0)


@pytest.mark.parametrize("rule", [token_rule, block_rule])
@pytest.mark.parametrize("u", [0.0, 0.5, BELOW_ONE])
def test_equal_one_hot_laws_accept_everything(rule: object, u: float) -> None:
    """Case 17: 0/0 in the residual."""
    law = soft(0.0, 1.0, 0.0)
    verdict = rule([law] * 4, Draft((1, 1, 1), (law,) * 3), Fixed(u))
    assert verdict == Verdict(3, 1, Kind.BONUS)


def test_a_residual_without_mass_falls_back_to_p_and_says_so() -> None:
    """Noise outside its contract (u = 1) forces the rejection that p = q rules out."""
    verdict = token_rule([Q4, Q4], Draft((0,), (Q4,)), Fixed(1.0, 0.3))
    assert verdict == Verdict(0, 1, Kind.RESIDUAL, numerical=True)


@pytest.mark.parametrize("rule", [token_rule, block_rule])
@pytest.mark.parametrize("q", [soft(0.0, 1.0, 0.0, 1.0), Law(4, np.array([1, 3]), np.ones(2)), Law.point(4, 1)])
def test_a_token_its_own_law_forbids_is_the_proposers_fault(rule: object, q: Law) -> None:
    with pytest.raises(ProposerError, match="draft token 0 at offset 0"):
        rule([P4, P4], Draft((0,), (q,)), Fixed(0.0))


def test_tiny_draft_probability_is_no_free_pass() -> None:
    """Case 18: q(x) = 1e-8 would be 0 in half precision."""
    p, q = soft(1e-9, 1.0), soft(1e-8, 1.0)
    for rule in (token_rule, block_rule):
        assert rule([p, p], Draft((0,), (q,)), Fixed(0.2)).accepted == 0
        assert rule([p, p], Draft((0,), (q,)), Fixed(0.05)).accepted == 1


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("flavour", ["dense", "sparse", "sparse draft", "sparse target", "float32"])
def test_inputs_are_not_written_to_and_a_second_call_agrees(rule: Rule, flavour: str) -> None:
    """Case 14. Arrays are read-only, so that writing is an error and not only a difference."""
    for seed in range(40):
        world = World(4, flavour, seed=seed)
        draft = HONEST[rule.name].propose(world, (), 3, StepNoise(seed, 0))
        rows = world.rows((), draft.tokens)
        for law in (*rows, *draft.laws):
            law.weights.flags.writeable = False
        first = rule.verdict(rows, draft, StepNoise(seed, 0))
        assert first == rule.verdict(rows, draft, StepNoise(seed, 0))


def test_rows_behind_a_rejection_are_not_asked_for() -> None:
    """Each row costs a softmax over the vocabulary."""
    asked: list[int] = []

    class Rows(list[Law]):
        def __getitem__(self, i: int) -> Law:  # type: ignore[override]
            asked.append(i)
            return super().__getitem__(i)

    p = soft(0.0, 1.0)
    for name in ("token", "sampled", "coupled"):
        RULES[name].verdict(Rows([p] * 4), Draft((0, 1, 1), (soft(0.5, 0.5),) * 3), StepNoise(0, 0))
    block_rule(Rows([p] * 4), Draft((0, 1, 1), (soft(0.5, 0.5),) * 3), StepNoise(0, 0))
    assert set(asked) == {0}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_large_vocabulary(rule: Rule) -> None:
    rng, vocab = np.random.default_rng(6), 50_000
    laws = [Law(vocab, None, np.exp(rng.normal(size=vocab)).astype(np.float32)) for _ in range(5)]
    few = Law(vocab, np.sort(rng.permutation(vocab)[:40]), rng.dirichlet(np.ones(40)))
    for seed in range(10):
        noise = StepNoise(seed, 0)
        tokens = tuple(rule.draw(q, noise, i) for i, q in enumerate((*laws[:3], few)))
        verdict = rule.verdict([*laws[1:], few], Draft(tokens, (*laws[:3], few)), noise)
        assert 0 <= verdict.token < vocab
        assert not verdict.numerical


@pytest.mark.parametrize("vocab", [5000, 49_152, 50_001])
def test_long_rows_are_drawn_from_like_short_ones(vocab: int) -> None:
    """The two-level search: the token's share of [0, 1) holds u, and tokens without mass own nothing."""
    rng = np.random.default_rng(vocab)
    weights = rng.random(vocab).astype(np.float32)
    weights[rng.random(vocab) < 0.5] = 0.0
    weights[:300] = 0.0  # a whole block without mass
    law, sums = Law(vocab, None, weights), np.cumsum(weights, dtype=np.float64)
    for u in [0.0, 1 - 2.0**-53, *rng.random(500)]:
        x, goal = draw(law, u), u * sums[-1]
        assert weights[x] > 0
        assert sums[x] - weights[x] - 1e-6 <= goal <= sums[x] + 1e-6
