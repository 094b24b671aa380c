"""From logits to a law, in float64, for the honest decoder: what the checks' oracle computes, written once more.

Order: logit bias; repetition penalty (prompt and output); frequency and presence penalty (output); stop tokens masked
until `min_tokens` are out; temperature; top-k; top-p; min-p. Of equals the lower token counts as the larger.
Knows no model, no draft and no rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from draftproof.verify.contract import Floats, Params


class Law:
    """Probabilities of the next token. Made once, read often."""

    __slots__ = ("_sums", "array", "p")

    def __init__(self, probs: Floats | Sequence[float]) -> None:
        self.array: Floats = np.asarray(probs, dtype=np.float64)
        self.p: list[float] = self.array.tolist()
        self._sums: list[float] | None = None

    @classmethod
    def of(cls, probs: Floats) -> Law:
        """From outside: refused unless it is a law."""
        total = float(probs.sum())
        if not (np.isfinite(total) and total > 0 and (probs >= 0).all()):
            raise ValueError(f"not a law: {probs}")
        return cls(probs / total)

    @classmethod
    def point(cls, vocab: int, token: int) -> Law:
        return cls(np.eye(vocab)[token])

    def dense(self) -> Floats:
        return self.array

    def pick(self, u: float) -> int:
        """Inverse CDF. Tokens without mass own nothing."""
        if self._sums is None:
            self._sums = list(accumulate(self.p))
        return pick(self._sums, u)


def pick(sums: Sequence[float], u: float) -> int:
    """The token that holds the share u of the whole; `sums` are cumulative weights, not all zero."""
    at = bisect_right(sums, u * sums[-1])
    while at == len(sums) or (at and sums[at] == sums[at - 1]):
        at -= 1  # u times the whole was rounded up to the whole
    return at


class Chain:
    """One request's processing. Each step is a method of its own, so that one can be wrong alone."""

    def __init__(self, params: Params, stops: frozenset[int], vocab: int) -> None:
        self.params, self.vocab = params, vocab
        self.stops = sorted(s for s in stops if s < vocab)
        p = params
        self.penalises = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
        self.needs_history = self.penalises or p.min_tokens > 0

    def law(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> Law:
        logits = np.array(logits, dtype=np.float64)
        self.bias(logits)
        if self.penalises:
            self.repeat(logits, prompt, output)
            self.count(logits, prompt, output)
        self.mask(logits, len(output))
        if self.params.temperature == 0:
            return Law.point(self.vocab, int(logits.argmax()))
        return Law(self.filtered(self.heated(logits)))

    def bias(self, logits: Floats) -> None:
        for token, value in self.params.logit_bias:
            logits[token] += value

    def repeat(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> None:
        seen = sorted({*prompt, *output})
        penalty = self.params.repetition_penalty
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)

    def count(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> None:
        del prompt
        for token in set(output):
            logits[token] -= self.params.frequency_penalty * output.count(token) + self.params.presence_penalty

    def mask(self, logits: Floats, length: int) -> None:
        if length < self.params.min_tokens:
            logits[self.stops] = -np.inf

    def heated(self, logits: Floats) -> Floats:
        """Probabilities at the request's temperature."""
        weights = np.exp((logits - logits.max()) / self.params.temperature)
        return np.asarray(weights / weights.sum())

    def filtered(self, probs: Floats) -> Floats:
        order = np.argsort(-probs, kind="stable")
        order = order[: self.top_k()]
        order = order[: self.top_p(probs[order])]
        order = order[probs[order] >= self.params.min_p * self.least(probs[order])]
        kept = np.zeros_like(probs)
        kept[order] = probs[order]
        return np.asarray(kept / kept.sum())

    def top_k(self) -> int:
        return self.params.top_k or self.vocab

    def top_p(self, falling: Floats) -> int:
        """How many of the falling probabilities stay: the fewest that reach top-p of their sum."""
        if self.params.top_p >= 1:
            return len(falling)
        sums = np.cumsum(falling)
        return int(np.searchsorted(sums, self.params.top_p * sums[-1])) + 1

    def least(self, falling: Floats) -> float:
        """What min-p is relative to."""
        return float(falling[0])
