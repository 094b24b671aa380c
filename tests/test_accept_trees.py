"""The exact rules on trees: joint laws over several steps by enumeration, acceptance by formula, refusals.

Planted faults that these checks must catch are in test_accept_trees_faults.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trees import (
    SHAPES,
    STYLES,
    TREE,
    Shape,
    Taken,
    TreeDecoder,
    drafts_of,
    expected_accepted,
    grow,
    rows_of,
    styled,
    text_of,
    without,
)
from worlds import HONEST, Tokens, World, distance

from draftproof.accept import RULES, ProposerError, Rule
from draftproof.draft.base import Ask, draw_siblings
from draftproof.lossy import Lenience
from draftproof.noise import Purpose, StepNoise
from draftproof.types import Draft, Kind, Law, Verdict
from draftproof.verify.enumerate import joint_law, mean_of

EXACT, VISIBLE = 1e-12, 1e-6


def error(decoder: TreeDecoder, shape: str, flavour: str = "dense", seed: int = 1, shared: bool = False) -> float:
    vocab, nodes, length = SHAPES[shape]
    world = World(vocab, flavour, seed)
    return distance(joint_law(decoder.step(world, nodes), length, shared), world.target(length))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_joint_law_is_the_targets(rule: str, style: str, shape: str) -> None:
    assert error(styled(rule, style), shape) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("flavour", ["zeros", "sparse", "float32", "one-hot target", "point draft", "equal", "mixed"])
def test_joint_law_for_every_kind_of_law(rule: str, style: str, flavour: str) -> None:
    assert error(styled(rule, style), "second child deeper", flavour, 2) < EXACT
    assert error(styled(rule, style), "whole vocabulary", flavour, 3) < EXACT


@pytest.mark.parametrize("rule", ["token", "sampled"])
def test_one_noise_over_all_steps_is_as_good_as_noise_for_each(rule: str) -> None:
    assert error(TREE[rule], "two levels", shared=True) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_acceptance_follows_its_own_law(rule: str, style: str, shape: str) -> None:
    vocab, nodes, _ = SHAPES[shape]
    for flavour in ("dense", "zeros"):
        world = World(vocab, flavour, seed=4)
        decoder = styled(rule, style)
        accepted = mean_of(lambda noise, d=decoder, w=world: d.judge(w, (), nodes, noise)[1].accepted)
        wanted = sum(c * expected_accepted(rule, world, d) for d, c in drafts_of(world, nodes, STYLES[style]))
        assert accepted == pytest.approx(wanted, abs=EXACT)


def test_more_siblings_are_accepted_more_often() -> None:
    """Published: Yang et al. 2024, Jeon et al. 2024. All of the vocabulary is accepted always."""
    world = World(3, "dense", seed=5)
    for rule in ("token", "sampled"):
        accepted = [
            mean_of(lambda z, b=b, r=rule: TREE[r].judge(world, (), [(0, b)], z)[1].accepted) for b in (1, 2, 3)
        ]
        assert accepted[0] < accepted[1] < accepted[2] == pytest.approx(1.0, abs=EXACT)


@pytest.mark.parametrize("rule", ["token", "block", "sampled"])
def test_a_tree_that_is_a_chain_is_judged_as_the_token_rule_judges_a_chain(rule: str) -> None:
    world = World(3, "dense", seed=6)
    chain = "token" if rule == "block" else rule
    for seed in range(50):
        draft = HONEST[rule].propose(world, (), 3, StepNoise(seed, 0))
        verdict = RULES[rule].verdict(
            world.rows((), draft.tokens), draft._replace(parents=(0, 1, 2)), StepNoise(seed, 0)
        )
        wanted = RULES[chain].verdict(world.rows((), draft.tokens), draft, StepNoise(seed, 0))
        assert verdict == wanted._replace(path=tuple(range(1, wanted.accepted + 1)))


@pytest.mark.parametrize("rule", [r for r in RULES.values() if r.seed_decides], ids=lambda r: r.name)
def test_the_seed_decides_the_text(rule: Rule) -> None:
    """Bitwise equal with and without trees, whatever the tree."""
    for seed in range(60):
        world = World(4, "mixed", seed=seed)
        plain = _text(world, rule, (), seed)
        for shape in ([(0, 3)], [(0, 2), (1, 2), (2, 1), (4, 2)], [(0, 1), (1, 3)]):
            assert _text(world, rule, shape, seed) == plain


def _text(world: World, rule: Rule, shape: Shape, seed: int) -> Tokens:
    text: Tokens = ()
    while len(text) < 8:
        noise = StepNoise(seed, len(text))
        draft = grow(world, text, shape, noise, drawn_by(rule))
        verdict = rule.verdict(rows_of(world, text, draft), draft, noise)
        nodes = verdict.path if draft.parents else ()
        text += (*(draft.tokens[n - 1] for n in nodes), verdict.token)
    return text[:8]


def drawn_by(rule: Rule) -> Any:
    """Siblings as the engine's own helper draws them, all at depth 0: that decides only how often they agree."""

    def siblings(q: Law, first: int, most: int, noise: Any) -> Taken:
        ask: Any = Ask(None, 9, None, noise, rule.draw, 99)  # type: ignore[arg-type]
        return draw_siblings(ask, q, 0, first, most)

    return siblings


@pytest.mark.parametrize("rule", ["token", "sampled"])
@pytest.mark.parametrize("flavour", ["dense", "zeros", "sparse"])
def test_siblings_of_the_helper_follow_the_laws_they_state(rule: str, flavour: str) -> None:
    """Without replacement: the law of (first, second) is q(x) q(y) / (1 - q(x)), and it is the one that is stated."""
    world = World(3, flavour, seed=8)
    q, seen = world.q(()), {}
    for tree, chance in drafts_of(world, [(0, 2)], drawn_by(RULES[rule])):
        seen[tree.tokens] = seen.get(tree.tokens, 0.0) + chance
        assert [law.dense()[x] for x, law in zip(tree.tokens[:1], tree.laws, strict=False)] == [q.prob(tree.tokens[0])]
        for law in tree.laws[1:]:
            rest = without(q, tree.tokens[:1])
            assert law.dense() == pytest.approx(rest / rest.sum(), abs=EXACT)
    for tokens, chance in seen.items():
        x, *more = tokens
        wanted = q.prob(x) * (q.prob(more[0]) / (1 - q.prob(x)) if more else 1.0)
        assert chance == pytest.approx(wanted, abs=EXACT)
    assert sum(seen.values()) == pytest.approx(1.0)


def test_coupled_siblings_are_the_first_of_one_race() -> None:
    """If draft and target agree, the target's token is the first sibling, at any depth."""
    q = World(4, "dense", seed=9).q(())
    for seed in range(30):
        noise = StepNoise(seed, 7)
        for depth in (0, 3):
            ask: Any = Ask(None, 9, None, noise, RULES["coupled"].draw, 99)  # type: ignore[arg-type]
            drawn = draw_siblings(ask, q, depth, 1, 4)
            assert sorted(x for x, _ in drawn) == [0, 1, 2, 3]
            assert drawn[0][0] == noise.race(depth).winner(q)


# what is refused


def test_a_lossy_rule_refuses_a_tree() -> None:
    p = Law(2, None, np.array([0.5, 0.5]))
    with pytest.raises(ProposerError, match="lenience"):
        Lenience(2.0).verdict([p, p], Draft((0,), (p,), None, (0,)), StepNoise(0, 0))


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_sibling_law_with_the_elder_sibling_in_it_is_the_proposers_fault(rule: str) -> None:
    p, q = Law(3, None, np.array([0.0, 0.1, 0.9])), Law(3, None, np.array([0.5, 0.3, 0.2]))
    with pytest.raises(ProposerError, match="node 2 gives mass to token 0"):
        RULES[rule].verdict([p, p, p], Draft((0, 1), (q, q), None, (0, 0)), StepNoise(0, 0))


@pytest.mark.parametrize("laws", [(Law.point(3, 1), Law.point(3, 1)), (Law(3, None, np.array([0.0, 0.5, 0.5])),) * 2])
def test_a_token_its_own_law_forbids_is_the_proposers_fault(laws: tuple[Law, ...]) -> None:
    p = Law(3, None, np.array([0.2, 0.2, 0.6]))
    with pytest.raises(ProposerError, match="draft token 0 at offset 0"):
        RULES["token"].verdict([p, p, p], Draft((0, 1), laws, None, (0, 0)), StepNoise(0, 0))


def test_rows_off_the_path_are_not_asked_for() -> None:
    asked: list[int] = []

    class Rows(list[Law]):
        def __getitem__(self, i: int) -> Law:  # type: ignore[override]
            asked.append(i)
            return super().__getitem__(i)

    laws = [Law.point(4, x) for x in (0, 1, 2, 3)]
    tree = Draft((0, 1, 2, 3), tuple(laws), None, (0, 0, 1, 2))
    for rule in RULES.values():
        asked.clear()
        verdict = rule.verdict(Rows([laws[1], laws[0], laws[3], laws[0], laws[2]]), tree, StepNoise(0, 0))
        assert verdict == Verdict(2, 2, Kind.BONUS, path=(2, 4))
        assert asked == [0, 2, 4]


def test_an_emptied_residual_falls_back_and_says_so() -> None:
    """Noise outside its contract (u = 1) forces rejections that equal laws rule out."""
    p = Law(3, None, np.array([0.5, 0.3, 0.2]))

    class One:
        def uniform(self, offset: int, purpose: Purpose) -> float:
            return 1.0 if purpose is Purpose.ACCEPT else 0.1

    verdict = RULES["token"].verdict([p] * 3, Draft((0, 1), (p, Law.point(3, 1)), None, (0, 0)), One())  # type: ignore[arg-type]
    assert verdict == Verdict(0, 0, Kind.RESIDUAL, numerical=True)


def test_greedy_goes_down_the_tree() -> None:
    """A point-mass target: the child that is the largest stands, under every rule, whatever q says."""
    for seed in range(20):
        world = World(4, "one-hot target", seed=seed)
        tree = grow(world, (), [(0, 3), (1, 2), (2, 2), (3, 2)], StepNoise(seed, 0), STYLES["sampled"])
        want: Tokens = ()
        while any(text_of(tree, n) == want for n in range(len(tree.tokens) + 1)):
            want += (int(world.p(want).dense().argmax()),)
        for name, decoder in TREE.items():
            verdict = decoder.verdict(rows_of(world, (), tree), tree, StepNoise(seed, 0))
            assert (*decoder.emit(tree, verdict), verdict.token) == want, name


def test_no_uniform_is_asked_for_twice() -> None:
    """I5, over the drafting and the judging of one step."""

    class Once:
        def __init__(self) -> None:
            self.asked: list[tuple[int, Purpose]] = []

        def uniform(self, offset: int, purpose: Purpose) -> float:
            self.asked.append((offset, purpose))
            return StepNoise(len(self.asked), offset).uniform(offset, purpose)

    for seed in range(30):
        once: Any = Once()
        TREE["token"].judge(World(4, "dense", seed=seed), (), [(0, 3), (1, 2), (2, 2), (4, 1)], once)
        assert len(set(once.asked)) == len(once.asked)
