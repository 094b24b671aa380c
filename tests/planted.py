"""Planted faults: each a small change to an honest rule or proposer.

Numbers in the names are those of the fault catalogue: faults seen in released speculative decoders. Knows no check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from worlds import HONEST, Decoder, Tokens, World, proposing

from draftproof.accept import draw, excess, sampled_rule, token_rule
from draftproof.noise import Purpose
from draftproof.types import Draft, Kind, Law, Verdict

TOKEN, BLOCK, SAMPLED, COUPLED = (HONEST[name] for name in ("token", "block", "sampled", "coupled"))
Rows = Sequence[Law]


class Rewired:
    """Noise with some of its keys changed before they are looked up."""

    def __init__(self, noise: Any, wires: Callable[[int, Purpose], tuple[int, Purpose]]) -> None:
        self._noise, self._wires = noise, wires

    def uniform(self, offset: int, purpose: Purpose) -> Any:
        return self._noise.uniform(*self._wires(offset, purpose))


def rewired(base: Decoder, wires: Callable[[int, Purpose], tuple[int, Purpose]]) -> Decoder:
    return replace(base, verdict=lambda rows, draft, noise: base.verdict(rows, draft, Rewired(noise, wires)))


def next_from(purpose: Purpose) -> Decoder:
    return rewired(TOKEN, lambda offset, asked: (offset, purpose if asked is Purpose.NEXT else asked))


def draw_apart(q: Law, noise: Any, i: int) -> int:
    return draw(q, noise.uniform(i, Purpose.DRAFT))


def drawing(change: Callable[[Law], Law], base: Decoder = TOKEN) -> Decoder:
    """Draws from change(q), and states q."""
    return replace(base, propose=proposing(lambda q, noise, i: draw_apart(change(q), noise, i)))


def powered(q: Law, power: float) -> Law:
    return Law(q.vocab, None, q.dense() ** power)


def top(q: Law, n: int) -> Law:
    dense = q.dense()
    return Law(q.vocab, None, np.where(dense >= np.sort(dense)[-n], dense, 0.0))


def bfloat16(q: Law) -> Law:
    """Logits cut to 8 bits of mantissa before the softmax."""
    logits = np.log(q.dense()).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return Law(q.vocab, None, np.exp(logits.view(np.float32).astype(np.float64)))


def argmax(q: Law, noise: Any, i: int) -> int:
    return int(q.dense().argmax())


def confident(q: Law) -> Law:
    """A made-up law for an argmax proposal that is nearly sure of another token."""
    weights = np.full(q.vocab, 1.0)
    weights[int(q.dense().argmax())] = 0.01
    return Law(q.vocab, None, weights)


def discarding(world: World, prefix: Tokens, k: int, noise: Any) -> Draft:
    """Case 16: a token is drawn, found unlikely and thrown away."""
    draft = TOKEN.propose(world, prefix, k, noise)
    sure = [q.prob(x) > 0.3 for x, q in zip(draft.tokens, draft.laws, strict=True)] + [False]
    n = sure.index(False)
    return Draft(draft.tokens[:n], draft.laws[:n])


def token_with(
    stands: Callable[[Any, float, float], bool] = lambda u, p, q: u * q < p,
    next_token: Callable[[Law, Law, Any], int] = lambda p, q, u: draw(Law(p.vocab, None, excess(p, q, 1.0)), u),
) -> Decoder:
    """The token rule, written once more, with a test or a residual to be replaced."""

    def verdict(rows: Rows, draft: Draft, noise: Any) -> Verdict:
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            if not stands(noise.uniform(i, Purpose.ACCEPT), rows[i].prob(x), q.prob(x)):
                return Verdict(i, next_token(rows[i], q, noise.uniform(i, Purpose.NEXT)), Kind.RESIDUAL)
        k = len(draft.tokens)
        return Verdict(k, draw(rows[k], noise.uniform(k, Purpose.NEXT)), Kind.BONUS)

    return replace(TOKEN, verdict=verdict)


def residual(weights: Callable[[Any, Any], Any]) -> Decoder:
    """The token rule with another residual, from the dense p and q."""
    return token_with(next_token=lambda p, q, u: draw(Law(p.vocab, None, weights(p.dense(), q.dense())), u))


def unnormalised(p: Law, q: Law, u: Any) -> int:
    return min(int(np.searchsorted(np.cumsum(excess(p, q, 1.0)), u, side="right")), p.vocab - 1)


def eager(rows: Rows, draft: Draft, noise: Any) -> Verdict:
    """Case 17: all residuals are normalised beforehand, needed or not."""
    for p, q in zip(rows, draft.laws, strict=False):
        left = excess(p, q, 1.0)
        left /= left.sum()
    return token_rule(rows, draft, noise)


def in_place(rows: Rows, draft: Draft, noise: Any) -> Verdict:
    """Case 14: the rejected token is struck out of the target's own row."""
    verdict = token_rule(rows, draft, noise)
    if verdict.accepted < len(draft.tokens):
        rows[verdict.accepted].weights[draft.tokens[verdict.accepted]] = 0.0
    return verdict


def half(u: Any, p: float, q: float) -> bool:
    """Case 18: q kept in half precision."""
    return bool(u * float(np.float16(q)) < p)


def block_with(first_failure: bool = False, own_residual: bool = True, cap: float = 1.0) -> Decoder:
    """The block rule, written once more, with the faults of case 12 to be switched on."""

    def verdict(rows: Rows, draft: Draft, noise: Any) -> Verdict:
        k, ratios, tests = len(draft.tokens), [1.0], []
        for i, x in enumerate(draft.tokens):
            ratios.append(min(ratios[i] * rows[i].prob(x) / draft.laws[i].prob(x), cap))
        for n in range(1, k + 1):
            left = float(excess(rows[n], draft.laws[n], ratios[n]).sum()) if n < k else 0.0
            chance = ratios[n] if n == k else left / (left + 1 - min(ratios[n], 1.0))
            tests.append(bool(noise.uniform(n, Purpose.ACCEPT) < chance))
        passed = [n for n in range(1, k + 1) if tests[n - 1] and (not first_failure or all(tests[:n]))]
        n = max(passed, default=0)
        if n == k:
            return Verdict(k, draw(rows[k], noise.uniform(k, Purpose.NEXT)), Kind.BONUS)
        weights = excess(rows[n], draft.laws[n], ratios[n] if own_residual else 1.0)
        return Verdict(n, draw(Law(rows[n].vocab, None, weights), noise.uniform(n, Purpose.NEXT)), Kind.RESIDUAL)

    return replace(BLOCK, verdict=verdict)


def redraw(rows: Rows, draft: Draft, noise: Any) -> Verdict:
    """The sampled rule that draws afresh after a mismatch."""
    verdict = sampled_rule(rows, draft, noise)
    n = verdict.accepted
    return verdict if n == len(draft.tokens) else verdict._replace(token=draw(rows[n], noise.uniform(n, Purpose.NEXT)))


def shifted(world: World, prefix: Tokens, tokens: Tokens) -> list[Law]:
    rows = world.rows(prefix, tokens)
    return [*rows[1:], rows[-1]]


def wrong_bonus(world: World, prefix: Tokens, tokens: Tokens) -> list[Law]:
    rows = world.rows(prefix, tokens)
    return [*rows[:-1], rows[max(len(tokens) - 1, 0)]]


def batch_mate(world: World, prefix: Tokens, tokens: Tokens) -> list[Law]:
    """The rows of another sequence of the batch."""
    return world.rows((3, *prefix), tokens)


def unfiltered(world: World, prefix: Tokens, tokens: Tokens) -> list[Law]:
    """Case 5: temperature on the draft's side only: the target's rows are those of another temperature."""
    return [powered(p, 0.7) for p in world.rows(prefix, tokens)]


# name: decoder, the rule it claims to be, the check that must see it
FAULTS: dict[str, tuple[Decoder, str, str]] = {
    "1 argmax draft, softmax claimed": (replace(TOKEN, propose=proposing(argmax)), "token", "joint"),
    "1 the same under the block rule": (replace(BLOCK, propose=proposing(argmax)), "block", "joint"),
    "2 draft from the top 2, raw q claimed": (drawing(lambda q: top(q, 2)), "token", "joint"),
    "3 draft through bfloat16 logits": (drawing(bfloat16), "token", "joint"),
    "4 made-up law of an n-gram": (replace(TOKEN, propose=proposing(argmax, confident)), "token", "joint"),
    "5 q at another temperature": (drawing(lambda q: powered(q, 2.0)), "token", "joint"),
    "5 q at another temperature, block": (drawing(lambda q: powered(q, 2.0), BLOCK), "block", "joint"),
    "5 p at another temperature": (replace(TOKEN, rows=unfiltered), "token", "joint"),
    "6 draft worse than its law, sampled rule": (drawing(lambda q: top(q, 2), SAMPLED), "sampled", "acceptance"),
    "6 draft drawn apart, coupled rule": (replace(COUPLED, propose=proposing(draw_apart)), "coupled", "acceptance"),
    "7 u <= p/q": (token_with(lambda u, p, q: u * q <= p), "token", "zero"),
    "8 residual from the draft's noise": (next_from(Purpose.DRAFT), "token", "joint"),
    "9 residual from the accept uniform": (next_from(Purpose.ACCEPT), "token", "joint"),
    "10 draft noise of the first step in every step": (
        replace(TOKEN, propose=proposing(lambda q, noise, i: draw_apart(q, noise.at(0), i))), "token", "steps",
    ),
    "11 one accept uniform a block": (
        rewired(TOKEN, lambda i, asked: (0 if asked is Purpose.ACCEPT else i, asked)), "token", "joint",
    ),
    "11 one uniform for all tests of the block rule": (
        rewired(BLOCK, lambda i, asked: (0 if asked is Purpose.ACCEPT else i, asked)), "block", "joint",
    ),
    "11 one uniform for all requests": (
        replace(TOKEN, verdict=lambda rows, draft, noise: TOKEN.verdict(rows, draft, noise.at(0))), "token", "requests",
    ),
    "12 block rule stops at the first failure": (block_with(first_failure=True), "block", "joint"),
    "12 block rule with the token rule's residual": (block_with(own_residual=False), "block", "joint"),
    "12 block rule without a cap": (block_with(cap=np.inf), "block", "joint"),
    "13 residual by softmax": (residual(lambda p, q: np.exp(np.maximum(p - q, 0))), "token", "joint"),
    "13 residual by absolute value": (residual(lambda p, q: np.abs(p - q)), "token", "joint"),
    "13 residual unnormalised": (token_with(next_token=unnormalised), "token", "joint"),
    "13 residual is p": (residual(lambda p, q: p), "token", "joint"),
    "14 target row written to": (replace(TOKEN, verdict=in_place), "token", "twice"),
    "15 row i + 1 for draft i": (replace(TOKEN, rows=shifted), "token", "joint"),
    "15 bonus from the row before": (replace(TOKEN, rows=wrong_bonus), "token", "joint"),
    "15 rows of a batch mate": (replace(TOKEN, rows=batch_mate), "token", "joint"),
    "16 unlikely draft token discarded": (replace(TOKEN, propose=discarding), "token", "joint"),
    "17 residual normalised when empty": (replace(TOKEN, verdict=eager), "token", "one_hot"),
    "18 q in half precision": (token_with(half), "token", "tiny"),
    "sampled rule redraws after a mismatch": (replace(SAMPLED, verdict=redraw), "sampled", "joint"),
}  # fmt: skip
