"""Accept rules, written apart from the engine's: token, block, sampled, coupled, and a list of candidates.

A rule sees target laws, a draft with the laws it was drawn from, and noise; it returns how many draft tokens stand and
the token that follows. Knows no model, no cache and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from draftproof.verify.contract import RuleUnderTest
from draftproof.verify.mutants.laws import Law, pick
from draftproof.verify.mutants.noise import ACCEPT, DRAFT, NEXT, SECOND


class Draft(NamedTuple):
    tokens: tuple[int, ...] = ()
    laws: tuple[Law, ...] = ()
    parents: tuple[int, ...] = ()  # of a tree


class Verdict(NamedTuple):
    accepted: int
    token: int
    path: tuple[int, ...] = ()  # in a tree


class Rules:
    """All rules by name. Noise is `Any`: the suite enumerates the rules with symbolic uniforms."""

    def under_test(self, name: str) -> RuleUnderTest:
        return RuleUnderTest(
            name=name,
            verdict=lambda rows, draft, noise: self.judged(name, rows, draft, noise),
            draw=lambda law, noise, offset: self.draw(name, law, noise, offset),
            law=self.law,
            draft=self.drafted,
            acceptance=self.acceptance(name),
            trees=name != "list",
        )

    def acceptance(self, name: str) -> str:
        return "" if name == "list" else name

    def law(self, probs: Any) -> Law:
        return Law.of(probs)

    def draw(self, name: str, law: Law, noise: Any, offset: int) -> int:
        """A draft token from q."""
        if name == "coupled":
            return self.draw_coupled(law, noise, offset)
        if name == "list":
            return int(law.array.argmax())
        return self.draw_apart(law, noise, offset)

    def draw_coupled(self, law: Law, noise: Any, offset: int) -> int:
        return int(noise.race(offset).winner(law))

    def draw_apart(self, law: Law, noise: Any, offset: int) -> int:
        return law.pick(noise.uniform(offset, DRAFT))

    def drafted(self, tokens: Sequence[int], laws: Sequence[Law], parents: Sequence[int] = ()) -> Draft:
        return Draft(tuple(tokens), tuple(laws), tuple(parents))

    def judged(self, name: str, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        return self.tree(name, rows, draft, noise) if draft.parents else self.verdict(name, rows, draft, noise)

    def verdict(self, name: str, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        rules = {
            "token": self.token,
            "block": self.block,
            "sampled": self.sampled,
            "coupled": self.coupled,
            "list": self.candidates,
        }
        return rules[name](rows, draft, noise)

    # token rule

    def token(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        for i, x in enumerate(draft.tokens):
            q = self.claimed(draft, i)
            if not self.stands(self.test(noise, i), rows[i].p[x], q):
                return Verdict(i, self.after(rows[i], draft.laws[i], 1.0, noise, i))
        return self.bonus(rows, draft, noise)

    def claimed(self, draft: Draft, i: int) -> float:
        """q of draft token i. A law that gives it no mass is not the law that it was drawn from."""
        q = draft.laws[i].p[draft.tokens[i]]
        if not q > 0:
            raise ValueError(f"draft token {draft.tokens[i]} has probability {q} under its own law")
        return q

    def stands(self, u: Any, p: float, q: float) -> bool:
        return bool(u * q < p)

    def test(self, noise: Any, i: int) -> Any:
        return noise.uniform(i, ACCEPT)

    def after(self, p: Law, q: Law, scale: float, noise: Any, i: int) -> int:
        """The token behind `i` accepted ones after a rejection."""
        weights = self.residual(p, q, scale)
        sums = list(accumulate(weights))
        u = self.next_uniform(noise, i)
        return pick(sums, u) if sums[-1] > 0 else p.pick(u)

    def residual(self, p: Law, q: Law, scale: float) -> list[float]:
        return [scale * a - b if scale * a > b else 0.0 for a, b in zip(p.p, q.p, strict=True)]

    def next_uniform(self, noise: Any, i: int) -> Any:
        return noise.uniform(i, NEXT)

    def bonus(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        k = len(draft.tokens)
        return Verdict(k, rows[k].pick(self.next_uniform(noise, k)))

    # block rule

    def block(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        k, ratios = len(draft.tokens), [1.0]
        for i, x in enumerate(draft.tokens):
            ratios.append(min(ratios[i] * rows[i].p[x] / self.claimed(draft, i), self.cap()))
        n = self.last_passed([self.chance(rows, draft, ratios, n) for n in range(1, k + 1)], noise)
        if n == k:
            return self.bonus(rows, draft, noise)
        return Verdict(n, self.after(rows[n], draft.laws[n], self.scale(ratios[n]), noise, n))

    def cap(self) -> float:
        return 1.0

    def scale(self, ratio: float) -> float:
        return ratio

    def chance(self, rows: Sequence[Law], draft: Draft, ratios: list[float], n: int) -> float:
        if n == len(draft.tokens) or ratios[n] == 0.0:
            return ratios[n]
        left = sum(Rules.residual(self, rows[n], draft.laws[n], ratios[n]))
        whole = left + (1.0 - min(ratios[n], 1.0))
        return left / whole if whole else 1.0

    def last_passed(self, chances: list[float], noise: Any) -> int:
        for n in range(len(chances), 0, -1):
            if self.test(noise, n) < chances[n - 1]:
                return n
        return 0

    # rules that emit the target's own sample

    def sampled(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        for i, x in enumerate(draft.tokens):
            y = rows[i].pick(noise.sample(i))
            if y != x:
                return Verdict(i, self.mismatched(rows[i], y, noise, i))
        k = len(draft.tokens)
        return Verdict(k, rows[k].pick(noise.sample(k)))

    def mismatched(self, p: Law, sample: int, noise: Any, i: int) -> int:
        """What is emitted where the target's sample is not the draft's token."""
        del p, noise, i
        return sample

    def coupled(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        for i, x in enumerate(draft.tokens):
            y = int(noise.race(i).winner(rows[i]))
            if y != x:
                return Verdict(i, y)
        k = len(draft.tokens)
        return Verdict(k, int(noise.race(k).winner(rows[k])))

    # trees

    def tree(self, name: str, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        path: tuple[int, ...] = ()
        while True:
            node, depth = (path[-1] if path else 0), len(path)
            below = [i + 1 for i, parent in enumerate(draft.parents) if parent == node]
            if name in {"sampled", "coupled"}:
                token = self.sample_at(name, rows[node], noise, depth)
                child = next((n for n in below if draft.tokens[n - 1] == token), 0)
            else:
                child, token = self.sibling(rows[node], draft, below, depth, noise)
            if not child:
                return Verdict(depth, token, path)
            path = (*path, child)

    def sample_at(self, name: str, p: Law, noise: Any, depth: int) -> int:
        return int(noise.race(depth).winner(p)) if name == "coupled" else p.pick(noise.sample(depth))

    def sibling(self, p: Law, draft: Draft, below: Sequence[int], depth: int, noise: Any) -> tuple[int, int]:
        """The child that stands, with its token; or 0, with a token from what the children left of p."""
        left = p.p
        for n in below:
            q, x = draft.laws[n - 1].p, draft.tokens[n - 1]
            if self.stands(self.test(noise, self.tree_key(depth, n)), self.judged_by(p, left)[x], q[x]):
                return n, x
            rest = [max(a - b, 0.0) for a, b in zip(left, q, strict=True)]
            left = self.left_over(rest) if any(rest) else left
        return 0, pick(list(accumulate(left)), self.next_uniform(noise, depth))

    def tree_key(self, depth: int, node: int) -> int:
        del depth
        return node - 1

    def judged_by(self, p: Law, left: list[float]) -> list[float]:
        del p
        return left

    def left_over(self, rest: list[float]) -> list[float]:
        return [w / sum(rest) for w in rest]

    # case 44: the two likeliest tokens of q, tried in turn with q = 1; only the first one is drafted on

    def candidates(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        for i, x in enumerate(draft.tokens):
            left = list(rows[i].p)
            if noise.uniform(i, ACCEPT) < left[x]:
                continue
            left[x] = 0.0
            second = int((-draft.laws[i].array).argsort(kind="stable")[1])
            if noise.uniform(i, SECOND) * sum(left) < left[second]:
                return Verdict(i, second)
            left[second] = 0.0
            sums = list(accumulate(left))
            return Verdict(i, pick(sums, noise.uniform(i, NEXT)) if sums[-1] > 0 else x)
        return self.bonus(rows, draft, noise)
