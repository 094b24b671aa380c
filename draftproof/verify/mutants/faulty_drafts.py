"""Engines that are wrong in what they draft, which rows judge it, or what stays in a cache. Rules are honest here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftproof.verify.contract import Floats
from draftproof.verify.mutants.cache import Tokens
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.laws import Law
from draftproof.verify.mutants.live import Live
from draftproof.verify.mutants.noise import DRAFT, Noise
from draftproof.verify.mutants.rules import Draft, Verdict


class MadeUpLaw(Honest):  # 4
    """A looked-up token comes with a law that is nearly sure of others, so it always stands."""

    looks_up = True

    def looked_up_law(self, token: int) -> Law:
        weights = np.ones(self.world.vocab)
        weights[token] = 0.01
        return Law(weights / weights.sum())


class HeatForgotten(Honest):  # 5
    """Drawn at temperature 1, stated at the request's."""

    def draft_law(self, live: Live, prefix: Tokens, drafted: Tokens) -> Law:
        asked = live.chain.params
        live.chain.params = replace(asked, temperature=asked.temperature and 1.0)
        try:
            return super().draft_law(live, prefix, drafted)
        finally:
            live.chain.params = asked

    def propose(self, live: Live, k: int, noise: Any) -> Draft:
        draft = super().propose(live, k, noise)
        return draft._replace(laws=tuple(self._stated(live, q) for q in draft.laws))

    def _stated(self, live: Live, law: Law) -> Law:
        weights = law.array ** (1 / (live.job.params.temperature or 1.0))
        return Law(weights / weights.sum())


class DiscardsUnlikely(Honest):  # 16
    def propose(self, live: Live, k: int, noise: Any) -> Draft:
        draft = super().propose(live, k, noise)
        sure = [q.p[x] >= 0.25 * max(q.p) for x, q in zip(draft.tokens, draft.laws, strict=True)]
        n = (*sure, False).index(False)
        return Draft(draft.tokens[:n], draft.laws[:n])


class MasksStopsSilently(Honest):
    """Stop tokens are never drafted, and the law that is stated does not say so."""

    def propose(self, live: Live, k: int, noise: Any) -> Draft:
        draft = super().propose(live, k, noise)
        tokens: Tokens = ()
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            left = np.where(np.isin(np.arange(len(q.p)), live.chain.stops), 0.0, q.array)
            drawn = Law(left / left.sum()).pick(noise.uniform(i, DRAFT)) if left.any() else x
            tokens += (drawn,)
            if drawn != x:
                break
        return Draft(tokens, draft.laws[: len(tokens)])


# noise


class _Rewired:
    """Draft uniforms from another noise."""

    def __init__(self, own: Noise, other: Noise) -> None:
        self._own, self._other = own, other
        self.sample, self.race = own.sample, own.race

    def uniform(self, offset: int, purpose: int) -> float:
        return (self._other if purpose == DRAFT else self._own).uniform(offset, purpose)


class DraftNoiseOfFirstStep(Honest):  # 10
    def noise(self, live: Live) -> Any:
        return _Rewired(super().noise(live), Noise(live.seed, len(live.job.prompt)))


class NoiseOfFirstStep(Honest):
    """All noise of a step starts anew at every step."""

    def noise(self, live: Live) -> Noise:
        return Noise(live.seed, len(live.job.prompt))


# which draft: exact output, fewer accepted


class StaleDraftCache(Honest):  # 23
    """After an all-accepted step the last draft token is missing in the draft's cache."""

    def catch_up(self, live: Live) -> None:
        live.draft.feed(live.context[-1:] if live.draft.tokens else live.context)


class DraftNeverRollsBack(Honest):
    def roll_back(self, live: Live, origin: int, accepted: int) -> None:
        live.target.roll_back(origin + accepted)

    def catch_up(self, live: Live) -> None:
        live.draft.feed(live.context[-1:] if live.draft.tokens else live.context)


class MappedTooLate(Honest):  # 6
    """The draft's vocabulary is in another order than the target's."""

    def draft_logits(self, prefix: Tokens) -> Floats:
        return np.roll(super().draft_logits(prefix), 1)


class HotDraftLaw(Honest):  # 5
    """The draft runs at another temperature, and says so."""

    def draft_logits(self, prefix: Tokens) -> Floats:
        return super().draft_logits(prefix) * 0.3


class DraftSeesOlderText(Honest):
    """The draft's positions are one behind."""

    def draft_logits(self, prefix: Tokens) -> Floats:
        return super().draft_logits(prefix[:-1] or prefix)


class RejectsOneInTen(Honest):
    """What stood is rejected one time in ten, and emitted as if it were the residual."""

    def commit(self, live: Live, draft: Draft, verdict: Verdict, rows: Sequence[Tokens]) -> None:
        noise = Noise(live.seed ^ 1, len(live.context))
        for i in range(verdict.accepted):
            if noise.uniform(i, DRAFT) < 0.1:
                verdict = Verdict(i, draft.tokens[i])
                break
        super().commit(live, draft, verdict, rows)


# rows


class RowAfter(Honest):  # 15
    """Row i + 1 judges draft token i."""

    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        return [[*rows[1:], rows[-1]] for rows in super().split(flat, sizes)]


class BonusRowBefore(Honest):  # 15
    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        return [[*rows[:-1], rows[max(len(rows) - 2, 0)]] for rows in super().split(flat, sizes)]


class RowsOfNextSequence(Honest):  # 15
    """Sequences with as many rows as their neighbour get the neighbour's."""

    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        rows = super().split(flat, sizes)
        return [b if len(a) == len(b) else a for a, b in zip(rows, [*rows[1:], rows[0]], strict=True)]


class RowsAsIfEven(Honest):  # 15
    """Every sequence is taken to have as many rows as the first."""

    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        starts = [min(i * sizes[0], len(flat) - size) for i, size in enumerate(sizes)]
        return [flat[start : start + size] for start, size in zip(starts, sizes, strict=True)]


class KeepsRejected(Honest):  # 22
    """The target's cache keeps the rejected token in place of the one that was emitted."""

    def roll_back(self, live: Live, origin: int, accepted: int) -> None:
        live.target.roll_back(origin + accepted + 1)
        live.draft.roll_back(origin + accepted)


class LosesWord(Honest):  # 22
    """A first token that follows a rejection is part of the context and is not shown."""

    def append(self, live: Live, tokens: Tokens, rows: Sequence[Tokens]) -> None:
        lost = len(tokens) == 1 < len(rows) and not live.output and not live.finish
        super().append(live, tokens, rows)
        if lost:
            live.output.pop()
            live.logprobs.pop()
            live.ending.ends.pop()
            live.ending.text = ""


# far into a text only

_FAR = 8


class PreviousRowFarOn(Honest):
    """Behind some tokens the rows are those of the position before."""

    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        return super().split([row[:-1] if len(row) > 2 * _FAR else row for row in flat], sizes)


class ColdFarOn(Honest):
    """Behind some tokens the target is sharper than was asked for."""

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        law = super().law(live, logits, output)
        if len(output) <= _FAR:
            return law
        weights = law.array**1.6
        return Law(weights / weights.sum())

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> Any:
        return (prefix, len(live.output) + len(drafted) > _FAR, super().law_key(live, prefix, drafted))


class DraftAlwaysStandsFarOn(Honest):
    def decide(self, live: Live, draft: Draft, rows: Sequence[Tokens], noise: Any) -> None:
        if len(live.output) <= _FAR or not draft.tokens:
            super().decide(live, draft, rows, noise)
        else:
            self.commit(live, draft, Verdict(len(draft.tokens) - 1, draft.tokens[-1]), rows)
