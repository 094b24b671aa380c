"""Accept rules with one fault each. Numbers in comments are those of the catalogue of faults seen in released decoders.

Each is made to be seen by enumeration alone, so it knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from draftproof.verify.mutants.laws import Law, pick
from draftproof.verify.mutants.noise import ACCEPT, DRAFT, NEXT, SECOND
from draftproof.verify.mutants.rules import Draft, Rules, Verdict


class ArgmaxDraft(Rules):  # 1
    def draw_apart(self, law: Law, noise: Any, offset: int) -> int:
        del noise, offset
        return int(law.array.argmax())


class ShapedDraft(Rules):
    """Draws from another law than the one that is stated."""

    def drawn_from(self, law: Law) -> np.ndarray[Any, np.dtype[np.float64]]:
        return law.array

    def draw_apart(self, law: Law, noise: Any, offset: int) -> int:
        weights = self.drawn_from(law)
        return Law(weights / weights.sum()).pick(noise.uniform(offset, DRAFT))


class TopTwoDraft(ShapedDraft):  # 2
    def drawn_from(self, law: Law) -> np.ndarray[Any, np.dtype[np.float64]]:
        least = np.sort(law.array)[-2:].min()
        return np.where(law.array >= least, law.array, 0.0) if len(law.array) > 2 else law.array**2


class CoarseDraft(ShapedDraft):  # 3
    def drawn_from(self, law: Law) -> np.ndarray[Any, np.dtype[np.float64]]:
        logits = np.log(np.maximum(law.array, 1e-30)).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.where(law.array > 0, np.exp(logits.view(np.float32).astype(np.float64)), 0.0)


class HotDraft(ShapedDraft):  # 5
    def drawn_from(self, law: Law) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.where(law.array > 0, np.sqrt(law.array), 0.0)


class SampledTopDraft(TopTwoDraft):
    """Exact under the sampled rule, which asks nothing of a draft, but not the draft that it says it is."""


class UncoupledDraft(Rules):  # 6
    def draw_coupled(self, law: Law, noise: Any, offset: int) -> int:
        return self.draw_apart(law, noise, offset)


class AcceptsZero(Rules):  # 7
    def stands(self, u: Any, p: float, q: float) -> bool:
        return bool(u * q <= p)


class NextFromDraftNoise(Rules):  # 8
    def next_uniform(self, noise: Any, i: int) -> Any:
        return noise.uniform(i, DRAFT)


class NextFromAcceptUniform(Rules):  # 9
    def next_uniform(self, noise: Any, i: int) -> Any:
        return noise.uniform(i, ACCEPT)


class OneUniformABlock(Rules):  # 11
    def test(self, noise: Any, i: int) -> Any:
        del i
        return noise.uniform(0, ACCEPT)


class FirstFailure(Rules):  # 12
    def last_passed(self, chances: list[float], noise: Any) -> int:
        tests = [bool(self.test(noise, n + 1) < chance) for n, chance in enumerate(chances)]
        return (*tests, False).index(False)


class TokenResidualInBlock(Rules):  # 12
    def scale(self, ratio: float) -> float:
        del ratio
        return 1.0


class Uncapped(Rules):  # 12
    def cap(self) -> float:
        return float("inf")


class BlockForgetsEarlierRatios(Rules):
    def block(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        k = len(draft.tokens)
        ratios = [1.0, *(rows[i].p[x] / self.claimed(draft, i) for i, x in enumerate(draft.tokens))]
        ratios = [min(r, 1.0) for r in ratios]
        n = self.last_passed([self.chance(rows, draft, ratios, n) for n in range(1, k + 1)], noise)
        if n == k:
            return self.bonus(rows, draft, noise)
        return Verdict(n, self.after(rows[n], draft.laws[n], ratios[n], noise, n))


class SoftmaxResidual(Rules):  # 13
    def residual(self, p: Law, q: Law, scale: float) -> list[float]:
        weights: list[float] = np.exp(super().residual(p, q, scale)).tolist()
        return weights


class AbsoluteResidual(Rules):  # 13
    def residual(self, p: Law, q: Law, scale: float) -> list[float]:
        return [abs(scale * a - b) for a, b in zip(p.p, q.p, strict=True)]


class UnnormalisedResidual(Rules):  # 13
    def after(self, p: Law, q: Law, scale: float, noise: Any, i: int) -> int:
        sums = [*accumulate(self.residual(p, q, scale))][:-1]
        return pick([*sums, 1.0], self.next_uniform(noise, i))


class TargetAsResidual(Rules):  # 13
    def residual(self, p: Law, q: Law, scale: float) -> list[float]:
        del q, scale
        return p.p


class ReversedResidual(Rules):
    def residual(self, p: Law, q: Law, scale: float) -> list[float]:
        return super().residual(q, p, scale)


class StrikesOut(Rules):  # 14
    """The rejected token is struck out of the target's own row."""

    def law(self, probs: Any) -> Law:
        law = super().law(probs)
        law.array = probs
        return law

    def token(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        verdict = super().token(rows, draft, noise)
        if verdict.accepted < len(draft.tokens):
            row, token = rows[verdict.accepted], draft.tokens[verdict.accepted]
            row.array[token] = row.p[token] = 0.0
        return verdict


class AsksTwice(Rules):
    """A fault wherever a uniform is not looked up but drawn."""

    def test(self, noise: Any, i: int) -> Any:
        noise.uniform(i, ACCEPT)
        return noise.uniform(i, ACCEPT)


class BonusFromDraft(Rules):  # 15
    def bonus(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        k = len(draft.tokens)
        return Verdict(k, (draft.laws[-1] if k else rows[0]).pick(self.next_uniform(noise, k)))


class BonusFromLastRow(Rules):  # 15
    def bonus(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        k = len(draft.tokens)
        return Verdict(k, rows[max(k - 1, 0)].pick(self.next_uniform(noise, k)))


class EagerResidual(Rules):  # 17
    """All residuals are normalised beforehand, needed or not. What is not a number ends as token 0."""

    def token(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        for i, q in enumerate(draft.laws):
            if sum(self.residual(rows[i], q, 1.0)) == 0:
                return Verdict(i, 0)
        return super().token(rows, draft, noise)


class HalfPrecision(Rules):  # 18
    def claimed(self, draft: Draft, i: int) -> float:
        return float(np.float16(draft.laws[i].p[draft.tokens[i]]))


class NanIsTokenZero(Rules):  # 19
    def law(self, probs: Any) -> Law:
        return Law(probs)

    def after(self, p: Law, q: Law, scale: float, noise: Any, i: int) -> int:
        weights = np.nan_to_num(np.maximum(scale * p.array - q.array, 0.0))
        u = self.next_uniform(noise, i)
        return pick(np.cumsum(weights).tolist(), u) if not np.isnan(q.array).any() and weights.any() else 0

    def claimed(self, draft: Draft, i: int) -> float:
        return draft.laws[i].p[draft.tokens[i]]


class ThreePercentMore(Rules):
    def stands(self, u: Any, p: float, q: float) -> bool:
        return bool(u * q < 1.03 * p)


class ThreePercentMoreBlock(Rules):
    def chance(self, rows: Sequence[Law], draft: Draft, ratios: list[float], n: int) -> float:
        return min(1.03 * super().chance(rows, draft, ratios, n), 1.0)


class ThreePercentLess(Rules):
    """Rejects and then emits the same token: the output is exact, the acceptance is not."""

    def token(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        verdict = super().token(rows, draft, noise)
        for i in range(verdict.accepted):
            if noise.uniform(i, SECOND) < 0.03:
                return Verdict(i, draft.tokens[i])
        return verdict


class RedrawsAfterMismatch(Rules):
    def mismatched(self, p: Law, sample: int, noise: Any, i: int) -> int:
        del sample
        return p.pick(noise.uniform(i, NEXT))


class RacesAgain(Rules):
    """After a mismatch the race of the next position decides."""

    def coupled(self, rows: Sequence[Law], draft: Draft, noise: Any) -> Verdict:
        verdict = super().coupled(rows, draft, noise)
        n = verdict.accepted
        if n == len(draft.tokens):
            return verdict
        left = np.where(np.arange(len(rows[n].p)) == draft.tokens[n], 0.0, rows[n].array)
        return Verdict(n, Law(left / left.sum()).pick(noise.uniform(n, NEXT)) if left.any() else verdict.token)


class ArgmaxSampledDraft(ArgmaxDraft):  # 43: honest, since the sampled rule is exact for any proposer
    def acceptance(self, name: str) -> str:
        del name
        return ""
