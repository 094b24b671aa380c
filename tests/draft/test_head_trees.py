"""A head's trees: their numbers are the head's own on every path, and their acceptance follows the target's law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from heads import OPTIONS, PROMPTS, Watching, engine, head_path, laws, random_head, states_of, target

from draftproof import accept, loading, tree
from draftproof.draft.growth import Growth
from draftproof.engine import Engine
from draftproof.length.profile import Line, Profile
from draftproof.model import headfile, paged
from draftproof.types import Chunk, Draft, SamplingParams
from draftproof.verify.stats import bernoulli_sum_test, detectable_bias

FREE = SamplingParams(max_tokens=24, seed=5, ignore_eos=True, rule="token")
Nodes = list[tuple[int, int, float]]  # token, parent, worth


def prompts() -> list[list[int]]:
    return [list(p) for p in PROMPTS]


# the numbers


def grown(made: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], Nodes]]:
    """Committed tokens, and all nodes of the tree that grew behind them."""
    honest, found = Growth.draft, list[Nodes]()

    def draft(self: Growth, most: int, worth: float, vocab: int) -> Draft:
        found.append([(n.token, n.parent, n.worth) for n in self._nodes])
        return honest(self, most, worth, vocab)

    monkeypatch.setattr(Growth, "draft", draft)
    watch = Watching(made)
    made.generate(prompts(), FREE)
    made.audit()
    watch.inner.audit()
    return list(zip([tokens for _, tokens, d in watch.drafts if d.tokens], found, strict=True))


def check_numbers(made: Engine, trees: Sequence[tuple[tuple[int, ...], Nodes]]) -> int:
    """Each node is worth the product of the head's probabilities along its path; children are the four likeliest."""
    head, count = headfile.read(head_path()), 0
    for tokens, nodes in trees[:: max(len(trees) // 15, 1)]:
        states, parents = states_of(made, tokens)[1][:-1], [parent for _, parent, _ in nodes]
        for node in sorted(set(parents)):
            text = [nodes[n - 1][0] for n in tree.path(parents, node)]
            law = laws(head, tokens, states, text)[-1]
            below = [(token, worth) for token, parent, worth in nodes if parent == node]
            above = nodes[node - 1][2] if node else 1.0
            np.testing.assert_allclose([w for _, w in below], [above * law[t] for t, _ in below], atol=2e-4)
            assert min(law[t] for t, _ in below) >= np.sort(law)[-4] - 2e-4
            count += 1
    return count


def test_every_node_is_worth_what_the_head_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(k=4, nodes=10)
    assert check_numbers(made, grown(made, monkeypatch)) > 100


def mask_off_by_one(self: Growth) -> Chunk:
    """A row sees the row before its parent in place of its parent."""
    honest = chunk(self)
    visible = tuple((*seen[:-2], max(seen[-2] - 1, 0), seen[-1]) if len(seen) > 1 else seen for seen in honest.visible)
    return replace(honest, visible=visible)


def everything_before(chunk: Chunk) -> np.ndarray:
    return np.tril(np.ones((len(chunk.tokens), len(chunk.tokens)), dtype=np.uint8)).ravel()


def flat(self: Growth) -> Chunk:
    return replace(chunk(self), depths=tuple(range(len(self.fed))))


def states_of_the_row_before(self: Growth) -> np.ndarray:
    return np.roll(given.fget(self), 1, axis=0)  # type: ignore[misc]


chunk, given = Growth.chunk, Growth.states
FAULTS: list[tuple[Any, str, Any]] = [
    (Growth, "chunk", mask_off_by_one),
    (paged, "_tree_mask", everything_before),
    (Growth, "chunk", flat),
    (Growth, "states", property(states_of_the_row_before)),
]


@pytest.mark.parametrize(("where", "name", "fault"), FAULTS, ids=["mask", "no mask", "positions", "states"])
def test_faults_in_growing_are_seen(where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, fault)
    made = engine(k=4, nodes=10)
    trees = grown(made, monkeypatch)
    with pytest.raises(AssertionError):
        check_numbers(made, trees)


# acceptance


def visits(draft: Draft, emitted: Sequence[int]) -> Iterator[tuple[list[int], bool]]:
    """(tokens of the children, whether the emitted token is one of them) of every node that was visited."""
    below, node = tree.children(draft.parents), 0
    for token in emitted:
        if not below[node]:
            return
        carriers = [n for n in below[node] if draft.tokens[n - 1] == token]
        yield [draft.tokens[n - 1] for n in below[node]], bool(carriers)
        if not carriers:
            return
        node = carriers[0]


def acceptance(made: Engine, rule: str) -> tuple[int, list[float], bool]:
    """How often the walk went on to a child, the chance of it each time, and whether the counts of accepted tokens and
    the emitted ones agree."""
    watch = Watching(made)
    params = [replace(FREE, max_tokens=50, seed=n, rule=rule) for n in range(24)]
    outputs = made.generate([prompts()[n % 4] for n in range(24)], params)
    steps = {(o.request, s.origin): s for o in outputs for s in o.steps}
    hits, chances, agree = 0, list[float](), True
    for name, tokens, draft in watch.drafts:
        emitted = steps[name, len(tokens)].emitted
        walked = list(visits(draft, emitted)) if draft.tokens else []
        logits = states_of(made, [*tokens, *emitted[:-1]])[0][len(tokens) - 1 :] if walked else []
        for (children, hit), row in zip(walked, logits, strict=False):
            p = np.exp(row - row.max())
            chances.append(float(p[children].sum() / p.sum()))
            hits += hit
        agree &= steps[name, len(tokens)].accepted == sum(hit for _, hit in walked)
    return hits, chances, agree


@pytest.mark.parametrize("rule", ["token", "sampled"])
def test_acceptance_follows_its_law(rule: str) -> None:
    """I2: the target's sample is among the children as often as these have mass. False alarm 1e-7 a rule; a bias of
    0.15 would be seen with power 0.99. All noise is fixed by the seeds."""
    hits, chances, agree = acceptance(engine(k=3, nodes=6, bitwise=False), rule)
    assert len(chances) > 900
    assert detectable_bias([0.5] * len(chances), 1e-7, 0.99) < 0.15
    assert bernoulli_sum_test(hits, chances) > 1e-7
    assert agree


def test_a_rule_that_overlooks_younger_siblings_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text stays exact: the count of accepted tokens tells."""

    def elder_only(draft: Draft, siblings: Sequence[int], token: int) -> Any:
        return carrier(draft, siblings[:1], token)

    carrier = accept._carrier
    monkeypatch.setattr(accept, "_carrier", elder_only)
    assert not acceptance(engine(k=3, nodes=6, bitwise=False), "sampled")[2]


def test_trees_that_know_too_much_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that goes on to the likeliest child whatever the sample says accepts too much."""

    def generous(p: Any, draft: Draft, siblings: Sequence[int], depth: int, noise: Any) -> Any:
        choice = honest(p, draft, siblings, depth, noise)
        first = siblings[0] if siblings and noise.uniform(depth, accept.Purpose.ACCEPT) < 0.3 else 0
        return accept._Choice(first, draft.tokens[first - 1]) if first else choice

    honest = accept._child_by_rejection
    monkeypatch.setattr(accept, "_child_by_rejection", generous)
    hits, chances, _ = acceptance(engine(k=3, nodes=6), "token")
    assert bernoulli_sum_test(hits, chances) < 1e-7


def texts(made: Engine, k: int, rule: str = "sampled") -> list[tuple[int, ...]]:
    params = replace(FREE, rule=rule, k=k, max_tokens=40)
    return [o.tokens for o in made.generate(prompts(), params)]


def test_one_draw_a_node_is_plain_decoding_and_one_a_path_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(k=3, nodes=10, bitwise=False)  # else the sampled rule has trees only where their rows keep every bit
    watch = Watching(made)
    plain = texts(made, 0)
    assert texts(made, 3) == plain
    assert texts(made, 3, "coupled") == texts(made, 0, "coupled")
    assert any(len(d.parents) > 3 for _, _, d in watch.drafts)

    def one_a_path(p: Any, draft: Draft, siblings: Sequence[int], depth: int, noise: Any) -> Any:
        return accept._carrier(draft, siblings, accept.draw(p, noise.sample(0)))

    monkeypatch.setattr(accept, "_child_by_sample", one_a_path)
    assert texts(made, 3) != plain


def test_another_head_grows_another_tree() -> None:
    """So that what is compared above is not the same for any head."""
    a, b = random_head(1), random_head(2)
    states = np.random.default_rng(0).standard_normal((3, 2, a.sizes.width))
    assert np.abs(laws(a, [4, 5, 6, 7], states, [])[-1] - laws(b, [4, 5, 6, 7], states, [])[-1]).max() > 0.05


@pytest.mark.parametrize(("rise", "few"), [(0.0, False), (0.5, True)])
@pytest.mark.parametrize("draft", ["head", "combined"])
def test_the_node_budget_follows_the_cost_of_rows(
    draft: str, rise: float, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a row costs half a plain step, nodes that stand less often than every other time are left out."""
    costs = Profile(((2.0, 1.0), (22.0, 1.0 + 20 * rise)), ((1, Line(0.0, 0.0)),), ((1, Line(0.0, 0.0)),), min_rows=2)
    monkeypatch.setattr(loading, "profile", lambda made, progress: costs)
    made = loading.load(
        str(target()), f"{draft}:{head_path()}", k="auto", nodes=10, options=OPTIONS, draft_options=OPTIONS
    )
    head: Any = made.proposer if draft == "head" else made.proposer.head  # type: ignore[attr-defined]
    assert head.worth == pytest.approx(rise)
    sizes: list[int] = []
    honest = Growth.draft

    def counted(self: Growth, most: int, worth: float, vocab: int) -> Draft:
        found = honest(self, most, worth, vocab)
        sizes.append(len(found.tokens))
        return found

    monkeypatch.setattr(Growth, "draft", counted)
    made.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=30, k=4))
    assert sizes
    assert (max(sizes) < 6) == few
