"""From logits to a law: one order of operations for target and draft.

Order (each step is skipped when its parameter is neutral):

1. logit bias is added;
2. repetition penalty on tokens of prompt and output (positive logits divided, others multiplied; Keskar et al. 2019);
3. frequency penalty (times count) and presence penalty, on tokens of the output only (OpenAI's definition);
4. EOS and stop tokens are masked until `min_tokens` tokens are out;
5. temperature (0: point mass on the largest logit);
6. top-k; 7. top-p on the renormalised survivors; 8. min-p relative to the largest probability.

Ties: the lower token id is the larger one, everywhere. So greedy takes the lowest id among equals, and exactly
top_k tokens survive. Top-p keeps the shortest prefix of the sorted tokens whose sum reaches top_p; it sorts the
float32 weights, in which close logits at a high temperature may be equal.

Works where the logits lie (see arrays.py). Knows nothing of models, drafts or rules; never changes an array that it is
given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays, tree
from draftproof.types import Floats, Ids, Law, RequestError, SamplingParams, total

_FIRST_LOOK = 1024  # tokens sorted at first when top-p looks for its prefix


class LawMaker:
    """Makes a sequence's laws. Fixed for one request; the history is an argument."""

    def __init__(self, params: SamplingParams, stop_ids: frozenset[int], vocab: int) -> None:
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            if any(i >= vocab for i in ids):
                raise RequestError(
                    f"{name} names token {max(ids)}, but the model has {vocab} tokens (0 .. {vocab - 1})"
                )
        self._params, self._vocab = params, vocab
        self._stops = np.array(sorted(i for i in stop_ids if i < vocab), dtype=np.int64)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        with np.errstate(over="ignore"):
            self._bias = np.array(list(params.logit_bias.values()), dtype=np.float32)
        p = params
        self.needs_history = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def law(self, logits: Floats, prompt: Sequence[int], output: Sequence[int], ids: Ids | None = None) -> Law:
        """The law of the token that follows `prompt + output`.

        Args:
            logits: [vocab], as the model gave them; with `ids` those of these tokens alone, the others being -inf.
            ids: rising token ids.
        Raises:
            RequestError: NaN or +inf among the logits, or no token left possible.
        """
        if ids is not None:
            return self._law_of(ids, logits, prompt, output)
        top = float(logits.max())  # NaN if any logit is
        if not math.isfinite(top):
            raise RequestError(f"the model returned logits whose largest is {top}: no law can be made of them")
        logits = self._processed(logits, prompt, output)
        best = int(logits.argmax())
        largest = float(logits[best])
        if not math.isfinite(largest):
            raise RequestError(
                f"with bias and penalties the largest logit is {largest}: every token is masked, or a value is too"
                " large for float32; weaken logit_bias, penalties, min_tokens or the stop tokens"
            )
        if self._params.temperature == 0:
            return Law.point(self._vocab, best)
        return self._filtered(logits, largest)

    def _law_of(self, ids: Ids, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> Law:
        """Where nothing but temperature and filters applies, the other tokens are never written down."""
        p = self._params
        early = len(output) < p.min_tokens and len(self._stops) > 0
        top = float(logits.max())
        if len(self._bias_ids) or self.needs_history or early or p.temperature == 0 or not math.isfinite(top):
            whole = np.full(self._vocab, -np.inf, dtype=logits.dtype)
            whole[ids] = logits
            return self.law(whole, prompt, output)
        law = self._filtered(logits, top)
        return Law(self._vocab, ids if law.ids is None else ids[law.ids], law.weights)

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")  # the caller refuses what comes of it
    def _processed(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> Floats:
        """Steps 1 to 4, on a copy if anything changes."""
        p = self._params
        early = len(output) < p.min_tokens and len(self._stops) > 0
        if not (len(self._bias_ids) or self.needs_history or early):
            return logits
        xp = arrays.namespace(logits)
        logits = xp.asarray(logits, copy=True)
        if len(self._bias_ids):
            logits[self._bias_ids] += arrays.like(self._bias, logits)
        if p.repetition_penalty != 1:
            seen = _distinct([*prompt, *output])
            old = logits[seen]
            logits[seen] = xp.where(old > 0, old / p.repetition_penalty, old * p.repetition_penalty)
        if (p.presence_penalty or p.frequency_penalty) and output:
            counts = Counter(output)
            ids = np.array(list(counts), dtype=np.int64)
            times = np.array(list(counts.values()), dtype=np.float32)
            logits[ids] -= arrays.like(p.frequency_penalty * times + p.presence_penalty, logits)
        if early:
            logits[self._stops] = -np.inf
        return logits

    def _filtered(self, logits: Floats, top: float) -> Law:
        """Steps 5 to 8. `top` is the largest logit."""
        p = self._params
        ids: Ids | None = None
        if 0 < p.top_k < len(logits):
            ids = top_k(logits, p.top_k)
            logits = logits[ids]
        weights = logits - top
        with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf, which is right
            weights *= min(max(1 / p.temperature, 1e-30), 1e30)
            weights = arrays.exponentiate(weights)
        if p.top_p < 1:
            keep = _top_p(weights, p.top_p)
            ids, weights = (keep if ids is None else ids[keep]), weights[keep]
        if p.min_p > 0:
            keep = arrays.where(weights >= p.min_p * weights.max())
            ids, weights = (keep if ids is None else ids[keep]), weights[keep]
        return Law(self._vocab, ids, weights)


class LawRows(Sequence[Law]):
    """The laws at the positions of one block, each made when first asked for.

    Row i is the law after draft tokens 0 .. i-1, of a tree with `parents` the law after node i along its own path, with
    penalties and min-tokens advanced by them (I4).
    """

    def __init__(
        self,
        maker: LawMaker,
        logits: Floats,
        prompt: Sequence[int],
        output: Sequence[int],
        draft: Sequence[int],
        parents: Sequence[int] = (),
    ) -> None:
        self._maker, self._logits, self._prompt = maker, logits, prompt
        self._output, self._draft, self._parents = list(output), list(draft), parents or range(len(draft))
        self._made: dict[int, Law] = {}

    def __len__(self) -> int:
        return len(self._draft) + 1

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]  # rows are never sliced
        if not 0 <= i < len(self):
            raise IndexError(i)
        if i not in self._made:
            drafted = [self._draft[node - 1] for node in tree.path(self._parents, i)]
            self._made[i] = self._maker.law(self._logits[i], self._prompt, self._output + drafted)
        return self._made[i]


def _distinct(tokens: Sequence[int]) -> Ids:
    return np.unique(np.array(tokens, dtype=np.int64))


def top_k(logits: Floats, k: int) -> Ids:
    """Ids, in their own order, of the k largest; of equals at the border the lowest ids."""
    xp, border = arrays.namespace(logits), arrays.kth_largest(logits, k)
    above = arrays.where(logits > border)
    equal = arrays.where(logits == border)[: k - len(above)]
    ids: Ids = xp.sort(xp.concat([above, equal]))
    return ids


def _top_p(weights: Floats, top_p: float) -> Ids:
    """Sorted indices of the shortest descending prefix whose sum reaches top_p of the whole."""
    xp = arrays.namespace(weights)
    goal = top_p * total(weights)
    look = min(_FIRST_LOOK, len(weights))
    while True:
        ids = top_k(weights, look)
        order = ids[xp.argsort(-weights[ids], stable=True)]  # ids ascend, so ties keep the lower id first
        sums = xp.cumulative_sum(weights[order], dtype=xp.float64)
        if sums[-1] >= goal or look == len(weights):
            kept: Ids = xp.sort(order[: int((sums < goal).sum()) + 1])
            return kept
        look = min(8 * look, len(weights))


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Natural log-probabilities of one row. Shape [vocab]."""
    xp = arrays.namespace(logits)
    shifted = xp.astype(logits, xp.float64) - float(logits.max())
    found: NDArray[np.float64] = shifted - xp.log(xp.exp(shifted).sum())
    return found
