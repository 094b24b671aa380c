"""Small worlds for exact tests: a target and a draft whose laws differ at every prefix, and decoders to run in them.

Knows the rules only through a decoder's `propose` and `verdict`, so that a planted fault fits where a rule does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from draftproof.accept import RULES, Rule
from draftproof.types import Draft, Law, Verdict
from draftproof.verify.enumerate import race_joint

Tokens = tuple[int, ...]
Pair = tuple[Law, Law]
Maker = Callable[[np.random.Generator, int], Pair]


def _dense(rng: np.random.Generator, vocab: int) -> Law:
    return Law(vocab, None, rng.dirichlet(np.ones(vocab)))


def _zeros(rng: np.random.Generator, vocab: int) -> Law:
    weights = rng.dirichlet(np.ones(vocab))
    weights[rng.permutation(vocab)[: rng.integers(1, vocab)]] = 0.0
    return Law(vocab, None, weights)


def _sparse(rng: np.random.Generator, vocab: int) -> Law:
    ids = np.sort(rng.permutation(vocab)[: rng.integers(1, vocab + 1)])
    return Law(vocab, ids, 7.0 * rng.dirichlet(np.ones(len(ids))))


def _float32(rng: np.random.Generator, vocab: int) -> Law:
    return Law(vocab, None, np.exp(rng.normal(size=vocab)).astype(np.float32))


def _one_hot(rng: np.random.Generator, vocab: int) -> Law:
    return Law(vocab, None, np.eye(vocab)[rng.integers(vocab)])


def _point(rng: np.random.Generator, vocab: int) -> Law:
    return Law.point(vocab, int(rng.integers(vocab)))


def _disjoint(rng: np.random.Generator, vocab: int) -> Pair:
    border, weights = int(rng.integers(1, vocab)), rng.dirichlet(np.ones(vocab))
    left = np.arange(vocab) < border
    return Law(vocab, None, weights * left), Law(vocab, None, weights * ~left)


def _equal(rng: np.random.Generator, vocab: int) -> Pair:
    law = _zeros(rng, vocab)
    return law, law


FLAVOURS: dict[str, Maker] = {
    "dense": lambda r, v: (_dense(r, v), _dense(r, v)),
    "zeros": lambda r, v: (_zeros(r, v), _zeros(r, v)),
    "sparse": lambda r, v: (_sparse(r, v), _sparse(r, v)),
    "sparse target": lambda r, v: (_sparse(r, v), _dense(r, v)),
    "sparse draft": lambda r, v: (_dense(r, v), _sparse(r, v)),
    "float32": lambda r, v: (_float32(r, v), _float32(r, v)),
    "one-hot target": lambda r, v: (_one_hot(r, v), _dense(r, v)),
    "one-hot draft": lambda r, v: (_dense(r, v), _one_hot(r, v)),
    "point draft": lambda r, v: (_dense(r, v), _point(r, v)),
    "equal": _equal,
    "disjoint": _disjoint,
}


def _mixed(rng: np.random.Generator, vocab: int) -> Pair:
    return list(FLAVOURS.values())[rng.integers(len(FLAVOURS))](rng, vocab)


class World:
    """Laws by prefix, made from the prefix alone. `more(tokens)`: whether to draft on after these draft tokens."""

    def __init__(self, vocab: int, flavour: str = "mixed", seed: int = 1, more: Callable[[Tokens], bool] | None = None):
        self.vocab, self.more = vocab, more or (lambda tokens: True)
        maker = _mixed if flavour == "mixed" else FLAVOURS[flavour]
        self._pair = cache(lambda at: maker(np.random.default_rng([seed, vocab, len(at), *at]), vocab))

    @classmethod
    def constant(cls, p: Law, q: Law) -> World:
        """The same laws at every prefix."""
        world = cls(p.vocab)
        world._pair = lambda at: (p, q)
        return world

    def p(self, prefix: Tokens) -> Law:
        return self._pair(prefix)[0]

    def q(self, prefix: Tokens) -> Law:
        return self._pair(prefix)[1]

    def rows(self, prefix: Tokens, tokens: Tokens) -> list[Law]:
        return [self.p(prefix + tokens[:i]) for i in range(len(tokens) + 1)]

    def target(self, length: int) -> dict[Tokens, float]:
        """The product of p's: what every exact decoder must emit."""
        texts = product(range(self.vocab), repeat=length)
        return {x: float(np.prod([self.p(x[:i]).prob(x[i]) for i in range(length)])) for x in texts}


@dataclass(frozen=True)
class Decoder:
    """A rule or a planted fault: how tokens are drafted, which rows judge them, and how."""

    propose: Callable[[World, Tokens, int, Any], Draft]
    verdict: Callable[[Sequence[Law], Draft, Any], Verdict]
    rows: Callable[[World, Tokens, Tokens], Sequence[Law]] = World.rows

    def judge(self, world: World, prefix: Tokens, k: int, noise: Any) -> tuple[Draft, Verdict]:
        draft = self.propose(world, prefix, k, noise)
        return draft, self.verdict(self.rows(world, prefix, draft.tokens), draft, noise)

    def step(self, world: World, k: int) -> Callable[[Tokens, int, Any], Tokens]:
        def step(prefix: Tokens, origin: int, noise: Any) -> Tokens:
            draft, verdict = self.judge(world, prefix, k, noise)
            return (*draft.tokens[: verdict.accepted], verdict.token)

        return step


def proposing(
    pick: Callable[[Law, Any, int], int], claim: Callable[[Law], Law] = lambda q: q
) -> Callable[[World, Tokens, int, Any], Draft]:
    """Draft by `pick` from q at each position in turn, and state claim(q) as the law."""

    def propose(world: World, prefix: Tokens, k: int, noise: Any) -> Draft:
        tokens: Tokens = ()
        while len(tokens) < k and world.more(tokens):
            tokens += (pick(world.q(prefix + tokens), noise, len(tokens)),)
        return Draft(tokens, tuple(claim(world.q(prefix + tokens[:i])) for i in range(len(tokens))))

    return propose


def honest(rule: Rule) -> Decoder:
    return Decoder(proposing(rule.draw), rule.verdict)


HONEST = {name: honest(rule) for name, rule in RULES.items()}


def _drafts(world: World, prefix: Tokens, k: int) -> Iterator[Tokens]:
    """Every beginning, of length 1 .. k, of a draft that the stopping rule allows."""
    for i in range(1, k + 1):
        for x in product(range(world.vocab), repeat=i):
            if all(world.more(x[:j]) for j in range(i)):
                yield x


def expected_accepted(rule: str, world: World, prefix: Tokens, k: int) -> float:
    """Mean accepted tokens of one step, from the formula of each rule (I2): the sum over drafts x of P(x stands)."""
    return sum(_stands(rule, world, prefix, x) for x in _drafts(world, prefix, k))


def _stands(rule: str, world: World, prefix: Tokens, x: Tokens) -> float:
    chance, ratio = 1.0, 1.0
    for i, token in enumerate(x):
        p, q = world.p(prefix + x[:i]), world.q(prefix + x[:i])
        a, b = p.prob(token), q.prob(token)
        if rule == "token":
            chance *= min(a, b)
        elif rule == "sampled":
            chance *= a * b
        elif rule == "coupled":
            chance *= race_joint(p.dense(), q.dense())[token, token]
        else:
            ratio = min(ratio * a / b, 1.0) if b > 0 else 0.0
            chance *= b
    return chance * (ratio if rule == "block" else 1.0)


def distance(law: dict[Tokens, float], target: dict[Tokens, float]) -> float:
    """Largest difference of a probability."""
    return max(abs(law.get(x, 0.0) - target.get(x, 0.0)) for x in law.keys() | target.keys())
