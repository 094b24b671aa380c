"""The exact acceptance rules: pure functions (rows of p, Draft, Noise) -> Verdict.

`rows[i]` is the target law at position i of the block, i = 0 .. k; a rule reads no row that it does not need, because a
row costs a softmax over the vocabulary. Of a tree, `rows[n]` is the law behind node n. Rules know nothing of models,
caches or stop rules, and hold no state.

Sources: token rule, Leviathan et al. 2022 (algorithm 1) and Chen et al. 2023 (algorithm 2); block rule, Sun et al.
2024 ("Block Verification Accelerates Speculative Decoding", algorithm 2); coupled rule, Daliri et al. 2024 (Gumbel
coupling); trees, Miao et al. 2023 ("SpecInfer", multi-step sampling), and without replacement Jeon et al. 2024
("Recursive Speculative Decoding") and Yang et al. 2024 ("Multi-Candidate Speculative Decoding").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from draftproof import arrays, tree
from draftproof.noise import Noise, Purpose
from draftproof.types import Draft, Floats, Ids, Kind, Law, Verdict

Rows = Sequence[Law]
_WIDE, _BLOCK = 4096, 256


class ProposerError(RuntimeError):
    """A proposer broke its contract: the law that it states cannot be the law it drew from (I3)."""


def draw(law: Law, u: float) -> int:
    """Inverse CDF: the token whose share of [0, 1) holds u. Tokens without mass own nothing, whatever u is."""
    at = _pick(law.weights, u)
    return at if law.ids is None else int(law.ids[at])


def _pick(weights: Floats, u: float) -> int:
    """Index whose share of the total holds u. Long rows in two levels: no cumulative sum over the whole vocabulary."""
    if not arrays.is_host(weights):
        return _pick_there(weights, u)
    if len(weights) <= _WIDE:
        sums = np.cumsum(weights, dtype=np.float64)
        return _place(sums, u * sums[-1], weights)
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    sums = np.cumsum(blocks)
    goal = u * float(sums[-1])
    block = _place(sums, goal, blocks)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = float(sums[block - 1]) if block else 0.0
    return block * _BLOCK + _place(np.cumsum(inside, dtype=np.float64), goal - before, inside)


def _pick_there(weights: Floats, u: float) -> int:
    """The same off the host. Sums that are made in parallel need not rise: tokens without mass are left out first."""
    xp, some = arrays.namespace(weights), arrays.where(weights > 0)
    sums = xp.cumulative_sum(weights[some], dtype=xp.float64)
    at = int((sums <= u * sums[-1]).sum())
    return int(some[min(at, len(some) - 1)])


def _place(sums: Floats, goal: float, weights: Floats) -> int:
    at = int(np.searchsorted(sums, goal, side="right"))
    return at if at < len(sums) else int(np.flatnonzero(weights)[-1])  # the goal was rounded up to the total


def excess(p: Law, q: Law, scale: float) -> Floats:
    """(scale * p - q)+ at p's ids; elsewhere it is zero. Shape of p.weights, float64."""
    weights = _shares(p, p.weights)
    if scale != 1.0:
        weights *= scale
    ids, theirs = q.ids, arrays.like(q.weights, weights)
    if ids is None:
        weights -= _shares(q, theirs if p.ids is None else theirs[arrays.like(p.ids, weights)])
    elif p.ids is None:
        weights[arrays.like(ids, weights)] -= _shares(q, theirs)
    else:
        _subtract_shared(weights, p.ids, q, theirs)
    found: Floats = arrays.positive(weights)
    return found


def _subtract_shared(weights: Floats, ids: Ids, q: Law, theirs: Floats) -> None:
    """Take q's shares from the weights of the ids that both have."""
    xp, own = arrays.namespace(weights), arrays.like(q.ids, ids)
    places = xp.searchsorted(own, ids)
    places[places == len(own)] = 0
    both = arrays.where(own[places] == ids)
    weights[both] -= _shares(q, theirs[places[both]])


def _shares(law: Law, weights: Floats) -> Floats:
    """In float64: in float32 two laws that differ little would leave more rounding than residual."""
    xp = arrays.namespace(weights)
    shares: Floats = xp.astype(weights, xp.float64) / law.total
    return shares


def _after_rejection(accepted: int, p: Law, q: Law, scale: float, noise: Noise) -> Verdict:
    """The token that follows `accepted` draft tokens, from norm((scale * p - q)+)."""
    weights = excess(p, q, scale)
    u = noise.uniform(accepted, Purpose.NEXT)
    if not weights.any():  # p = q up to rounding: a rejection "cannot" happen; p is the right law then
        return Verdict(accepted, draw(p, u), Kind.RESIDUAL, numerical=True)
    return Verdict(accepted, draw(Law(p.vocab, p.ids, weights), u), Kind.RESIDUAL)


def _bonus(rows: Rows, k: int, noise: Noise) -> Verdict:
    return Verdict(k, draw(rows[k], noise.uniform(k, Purpose.NEXT)), Kind.BONUS)


def claimed(draft: Draft, i: int) -> float:
    """q(x) of draft token i."""
    q = draft.laws[i].prob(draft.tokens[i])
    if not q > 0.0:
        raise ProposerError(
            f"draft token {draft.tokens[i]} at offset {i} has probability {q} under the law it is said to be drawn from"
        )
    return q


def token_rule(rows: Rows, draft: Draft, noise: Noise) -> Verdict:
    """Accept token i iff u * q(x) < p(x), strictly, so that p(x) = 0 is never accepted, not even with u = 0."""
    if draft.parents:
        return _walk(rows, draft, noise, _child_by_rejection)
    for i, x in enumerate(draft.tokens):
        q = claimed(draft, i)
        if not noise.uniform(i, Purpose.ACCEPT) * q < rows[i].prob(x):
            return _after_rejection(i, rows[i], draft.laws[i], 1.0, noise)
    return _bonus(rows, len(draft.tokens), noise)


def block_rule(rows: Rows, draft: Draft, noise: Noise) -> Verdict:
    """Verify the block as a whole; the last passed test counts. Never accepts less than the token rule on average.

    For point masses the token rule accepts as much and reads fewer rows, so it stands in. So it does for trees, even
    for those that came out as chains: a rule that is chosen by what was drawn would not be exact.
    """
    if draft.parents or all(q.is_point for q in draft.laws):
        return token_rule(rows, draft, noise)
    k = len(draft.tokens)
    ratios = [1.0]  # r_0 .. r_i: probability scale that is left after i tokens
    for i, x in enumerate(draft.tokens):
        ratios.append(min(ratios[i] * rows[i].prob(x) / claimed(draft, i), 1.0))
        if ratios[-1] == 0.0:  # all later ratios, and so all later tests, are 0
            break
    for n in range(len(ratios) - 1, 0, -1):
        if noise.uniform(n, Purpose.ACCEPT) < _block_threshold(rows, draft, ratios[n], n):
            return _bonus(rows, k, noise) if n == k else _after_rejection(n, rows[n], draft.laws[n], ratios[n], noise)
    return _after_rejection(0, rows[0], draft.laws[0], 1.0, noise)


def _block_threshold(rows: Rows, draft: Draft, ratio: float, n: int) -> float:
    """h_n: the probability that the block is cut at n or later, given that it was not cut later than n."""
    if n == len(draft.tokens) or ratio == 0.0:
        return ratio
    left = float(excess(rows[n], draft.laws[n], ratio).sum())
    whole = left + (1.0 - ratio)  # in this order it equals `left` when the ratio is 1, however small `left` is
    return 1.0 if whole == 0.0 else left / whole


def sampled_rule(rows: Rows, draft: Draft, noise: Noise) -> Verdict:
    """Emit the target's own samples, and go on only while they equal the draft. Exact for any proposer at all."""
    if draft.parents:
        return _walk(rows, draft, noise, _child_by_sample)
    for i, x in enumerate(draft.tokens):
        y = draw(rows[i], noise.sample(i))
        if y != x:
            return Verdict(i, y, Kind.RESIDUAL)
    k = len(draft.tokens)
    return Verdict(k, draw(rows[k], noise.sample(k)), Kind.BONUS)


def coupled_rule(rows: Rows, draft: Draft, noise: Noise) -> Verdict:
    """Like the sampled rule, with the race that the draft's own token was drawn with, so that they agree more often."""
    if draft.parents:
        return _walk(rows, draft, noise, _child_by_race)
    for i, x in enumerate(draft.tokens):
        y = noise.race(i).winner(rows[i])
        if y != x:
            return Verdict(i, y, Kind.RESIDUAL)
    k = len(draft.tokens)
    return Verdict(k, noise.race(k).winner(rows[k]), Kind.BONUS)


class _Choice(NamedTuple):
    """The child that stands, or the token that is emitted because none does."""

    child: int  # 0: none
    token: int
    numerical: bool = False


_Chooser = Callable[[Law, Draft, Sequence[int], int, Noise], _Choice]


def _walk(rows: Rows, draft: Draft, noise: Noise, choose: _Chooser) -> Verdict:
    """From node to node of a tree, while one of the children stands."""
    below, path, node = tree.children(draft.parents), list[int](), 0
    while True:
        choice = choose(rows[node], draft, below[node], len(path), noise)
        if not choice.child:
            kind = Kind.RESIDUAL if below[node] else Kind.BONUS
            return Verdict(len(path), choice.token, kind, choice.numerical, tuple(path))
        node = choice.child
        path.append(node)


def _carrier(draft: Draft, siblings: Sequence[int], token: int) -> _Choice:
    return _Choice(next((n for n in siblings if draft.tokens[n - 1] == token), 0), token)


def _child_by_sample(p: Law, draft: Draft, siblings: Sequence[int], depth: int, noise: Noise) -> _Choice:
    return _carrier(draft, siblings, draw(p, noise.sample(depth)))


def _child_by_race(p: Law, draft: Draft, siblings: Sequence[int], depth: int, noise: Noise) -> _Choice:
    return _carrier(draft, siblings, noise.race(depth).winner(p))


def _child_by_rejection(p: Law, draft: Draft, siblings: Sequence[int], depth: int, noise: Noise) -> _Choice:
    """The token rule for one sibling after the other, each against what its elder siblings left of p.

    A point mass stands with what is left of its token, and otherwise takes that away: point masses together are one
    sample of p. An accept uniform belongs to its node, the last draw to the depth, at which a step visits one node.
    """
    shares = [claimed(draft, n - 1) for n in siblings]
    left, numerical = p, False
    if not all(draft.laws[n - 1].is_point for n in siblings):
        for at, n in enumerate(siblings):
            _check_removed(draft, siblings[:at], n)
            if noise.uniform(n - 1, Purpose.ACCEPT) * shares[at] < left.prob(draft.tokens[n - 1]):
                return _Choice(n, draft.tokens[n - 1])
            weights = excess(left, draft.laws[n - 1], 1.0)
            numerical = not bool(weights.any())  # see _after_rejection
            if numerical:
                break
            left = Law(p.vocab, p.ids, weights)
        siblings = ()
    choice = _carrier(draft, siblings, draw(left, noise.uniform(depth, Purpose.NEXT)))
    return choice._replace(numerical=numerical)


def _check_removed(draft: Draft, elder: Sequence[int], n: int) -> None:
    for e in elder:
        if draft.laws[n - 1].prob(draft.tokens[e - 1]) > 0.0:
            raise ProposerError(
                f"the law of node {n} gives mass to token {draft.tokens[e - 1]} of its elder sibling, node {e}: "
                "siblings are distinct, so state the law without it"
            )


def _draw_apart(q: Law, noise: Noise, offset: int) -> int:
    return draw(q, noise.uniform(offset, Purpose.DRAFT))


def _draw_coupled(q: Law, noise: Noise, offset: int) -> int:
    return noise.race(offset).winner(q)


@dataclass(frozen=True, slots=True)
class Rule:
    """How draft tokens are drawn from q, and how they are judged. `seed_decides`: the text depends on the seed and the
    target alone, so it is bitwise equal with and without speculation."""

    name: str
    draw: Callable[[Law, Noise, int], int]
    verdict: Callable[[Rows, Draft, Noise], Verdict]
    seed_decides: bool = False

    def tv(self, rows: Rows, draft: Draft, verdict: Verdict) -> float:
        """The distance from the target's law that the rule caused in this step: none."""
        del rows, draft, verdict
        return 0.0


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "token": Rule("token", _draw_apart, token_rule),
        "block": Rule("block", _draw_apart, block_rule),
        "sampled": Rule("sampled", _draw_apart, sampled_rule, seed_decides=True),
        "coupled": Rule("coupled", _draw_coupled, coupled_rule, seed_decides=True),
    }
)
