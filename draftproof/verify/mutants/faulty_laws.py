"""Engines that make the wrong law of the right logits: penalties, filters, masks, at some place inside a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.verify.contract import Floats, World
from draftproof.verify.mutants.cache import Tokens
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.laws import Chain, Law
from draftproof.verify.mutants.live import Live
from draftproof.verify.mutants.rules import Draft, Verdict


class FrozenPenalty(Honest):  # 20
    """Inside a block the history stands still."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        return super().law(live, logits, live.output if live.chain.penalises else output)


class RejectedCounts(Honest):  # 21
    """Rejected drafts stay in the history of the penalties."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rejected: dict[int, list[int]] = {}

    def commit(self, live: Live, draft: Draft, verdict: Verdict, rows: Sequence[Tokens]) -> None:
        super().commit(live, draft, verdict, rows)
        self._rejected.setdefault(id(live), []).extend(draft.tokens[verdict.accepted :])
        if live.finish:
            del self._rejected[id(live)]

    def history(self, live: Live, drafted: Tokens) -> list[int]:
        return [*self._rejected.get(id(live), []), *super().history(live, drafted)]

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> object:
        return (super().law_key(live, prefix, drafted), *self._rejected.get(id(live), []))


class FrozenMinTokens(Honest):
    """Stop tokens are masked in the whole block if they are at its start."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        early = len(live.output) < live.job.params.min_tokens <= len(output)
        if early:
            logits = np.array(logits)
            logits[live.chain.stops] = -np.inf
        return super().law(live, logits, output)


class MaskOnFirstRow(Honest):
    """Rows behind the first of a block know no min-tokens."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        if live.job.params.min_tokens and len(output) > len(live.output):
            output = [*output, *live.job.prompt[:1] * live.job.params.min_tokens]
        return super().law(live, logits, output)


class BiasOnFirstRow(Honest):
    """Rows behind the first of a block know no logit bias."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        if live.job.params.logit_bias and len(output) > len(live.output):
            logits = np.array(logits)
            for token, value in live.job.params.logit_bias:
                logits[token] -= value
        return super().law(live, logits, output)

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> object:
        return (super().law_key(live, prefix, drafted), len(drafted) > 0)


class BonusNeverStops(Honest):
    """A stop token cannot be drawn behind an accepted draft."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        law = super().law(live, logits, output)
        left = np.where(np.isin(np.arange(len(law.p)), live.chain.stops), 0.0, law.array)
        return Law(left / left.sum()) if len(output) > len(live.output) and left.any() else law

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> object:
        return (super().law_key(live, prefix, drafted), len(drafted) > 0)


class _PresenceOfPrompt(Chain):
    def count(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> None:
        super().count(logits, (), [*prompt, *output])


class PresenceOfPrompt(Honest):
    """Presence and frequency are counted in the prompt too."""

    chain_type = _PresenceOfPrompt


class _RepetitionDivides(Chain):
    def repeat(self, logits: Floats, prompt: Sequence[int], output: Sequence[int]) -> None:
        seen = sorted({*prompt, *output})
        logits[seen] /= self.params.repetition_penalty


class RepetitionDivides(Honest):
    """Negative logits are divided, which makes a repetition likelier."""

    chain_type = _RepetitionDivides


class _OneTooMany(Chain):
    def top_k(self) -> int:
        return self.params.top_k + 1 if self.params.top_k else self.vocab


class TopKOneTooMany(Honest):
    chain_type = _OneTooMany


class _TopPTooShort(Chain):
    def top_p(self, falling: Floats) -> int:
        return max(super().top_p(falling) - (self.params.top_p < 1), 1)


class TopPTooShort(Honest):
    """The token that reaches top-p is cut off."""

    chain_type = _TopPTooShort


class _AbsoluteMinP(Chain):
    def least(self, falling: Floats) -> float:
        return min(1.0, float(falling[0]) / self.params.min_p) if self.params.min_p else 1.0


class AbsoluteMinP(Honest):
    """Min-p is taken as a probability, not as a share of the largest."""

    chain_type = _AbsoluteMinP


class UnfilteredBonus(Honest):  # 5
    """Top-k, top-p and min-p are forgotten behind accepted drafts."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        if len(output) == len(live.output) or live.job.params.temperature == 0:
            return super().law(live, logits, output)
        return Law(live.chain.heated(np.array(logits)))

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> object:
        return (super().law_key(live, prefix, drafted), len(drafted) > 0)
