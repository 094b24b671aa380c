"""Engines that end an output at the wrong place, or keep wrong books about a right one. Knows nothing of laws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from draftproof.verify.contract import Job, Sample, StepCount
from draftproof.verify.mutants.cache import Tokens
from draftproof.verify.mutants.ends import Cut, Ending
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.live import Book, Live
from draftproof.verify.mutants.rules import Draft, Verdict


class _StopsAtLastOnly(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        for token in tokens[:-1]:
            self.append(token)
            if len(self.ends) >= self.limit:
                return len(self.ends), "length"
        return super().push(tokens[-1:])


class StopsAtLastOnly(Honest):  # 27
    """A stop in mid-block is not seen; only a step's last token is looked at."""

    ending_type = _StopsAtLastOnly


class _LimitFirst(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        left = self.limit - len(self.ends)
        if len(tokens) < left:
            return super().push(tokens)
        for token in tokens[:left]:
            self.append(token)
        return len(self.ends), "length"


class LimitFirst(Honest):  # 28
    """A step that reaches the limit is not searched for stops."""

    ending_type = _LimitFirst


class _LimitBetweenSteps(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        limit, self.limit = self.limit, len(self.ends) + len(tokens) + 1
        kept, finish = super().push(tokens)
        self.limit = limit
        return kept, finish or ("length" if kept >= limit else "")


class LimitBetweenSteps(Honest):  # 30
    """The limit is looked at between steps only, so a block may run over it."""

    ending_type = _LimitBetweenSteps


class ContextBetweenSteps(Honest):
    """The context limit is looked at between steps only, so the last block may run over it."""

    def admit(self, job: Job) -> Live:
        live = super().admit(job)
        live.ending.limit = job.params.max_tokens
        return live

    def draft_length(self, live: Live) -> int:
        return live.job.params.k

    def commit(self, live: Live, draft: Draft, verdict: Verdict, rows: Sequence[Tokens]) -> None:
        super().commit(live, draft, verdict, rows)
        if len(live.context) >= self.context:
            live.finish = live.finish or "length"


class ContextWholeBlocks(Honest):
    """The output ends where no whole block fits into the context any more."""

    def commit(self, live: Live, draft: Draft, verdict: Verdict, rows: Sequence[Tokens]) -> None:
        super().commit(live, draft, verdict, rows)
        if len(live.context) + live.job.params.k >= self.context:
            live.finish = live.finish or "length"


class _StringsWithinSteps(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        self.before = max(self.before, len(self.text))
        return super().push(tokens)


class StringsWithinSteps(Honest):  # 29
    """A stop string that begins in one step and ends in the next is missed."""

    ending_type = _StringsWithinSteps


class _StringsBehindFirst(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        self.skipped = len(self.text) + 1
        return super().push(tokens)

    def searched_from(self) -> int:
        return max(self.before, self.skipped)


class StringsBehindFirst(Honest):  # 29
    """A stop string at the very start of a block is missed."""

    ending_type = _StringsBehindFirst


class _KeepsStopToken(Ending):
    def push(self, tokens: Sequence[int]) -> Cut:
        kept, finish = super().push(tokens)
        if finish == "stop" and kept == len(self.ends) and not self.params.stop:
            return kept + 1, finish
        return kept, finish


class KeepsStopToken(Honest):
    """The stop token itself is part of the output."""

    ending_type = _KeepsStopToken


class _TextOnly(Ending):
    def kept(self, place: int) -> int:
        del place
        return len(self.ends) + 100  # as many as the block has


class KeepsBehindStopString(Honest):  # 31
    """Only the text is cut at a stop string; the rest of the block stays among the tokens."""

    ending_type = _TextOnly


class _StopsOneLate(Ending):
    def stops_at(self, token: int) -> bool:
        return super().stops_at(token) and not len(self.ends) == self.params.min_tokens > 0


class StopsOneLate(Honest):
    """A stop token at the first place where one is allowed is passed."""

    ending_type = _StopsOneLate


class LogprobsBehindStop(Honest):  # 31
    def take_back(self, live: Live, kept: int) -> None:
        super().take_back(live, kept)
        if live.finish == "stop":
            live.logprobs.append(-1.0)


class LogprobsOfBlockStart(Honest):
    """All tokens of a block get their log-probability from its first row."""

    def append(self, live: Live, tokens: Tokens, rows: Sequence[Tokens]) -> None:
        super().append(live, tokens, [rows[0]] * len(rows))


# books


class UsageCountsBlocks(Honest):
    """Usage counts all that the steps brought, cut or not."""

    def reported(self, live: Live) -> Sample:
        return replace(super().reported(live), usage=sum(b.accepted + 1 for b in live.books))


class CountsBehindStop(Honest):  # 38
    """Accepted drafts behind a stop are counted."""

    def counted(self, draft: Draft, verdict: Verdict, emitted: int) -> Book:
        return Book(len(draft.tokens), verdict.accepted, emitted)

    def reported(self, live: Live) -> Sample:
        steps = tuple(StepCount(b.proposed, b.accepted) for b in live.books)
        proposed, accepted = sum(s.proposed for s in steps), sum(s.accepted for s in steps)
        return replace(super().reported(live), proposed=proposed, accepted=accepted, steps=steps)


class CountsBehindRejection(Honest):  # 38
    """Drafts that would have stood behind the first rejection are counted."""

    stood = 0

    def decide(self, live: Live, draft: Draft, rows: Sequence[Tokens], noise: Any) -> None:
        self.stood = 0
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            p = self.target_law(live, rows[i], draft.tokens[:i])
            self.stood += self.parts.stands(self.parts.test(noise, i), p.p[x], q.p[x])
        super().decide(live, draft, rows, noise)

    def counted(self, draft: Draft, verdict: Verdict, emitted: int) -> Book:
        book = super().counted(draft, verdict, emitted)
        return Book(book.proposed, min(self.stood, book.proposed), emitted)


class SumForgetsMixedSteps(Honest):
    """The sums leave out steps in which some drafts stood and some did not."""

    def reported(self, live: Live) -> Sample:
        sample = super().reported(live)
        pure = [s for s in sample.steps or () if s.accepted in (0, s.proposed)]
        return replace(sample, proposed=sum(s.proposed for s in pure), accepted=sum(s.accepted for s in pure))


class MoreAcceptedThanProposed(Honest):  # 34
    """The bonus token is counted as an accepted draft."""

    def counted(self, draft: Draft, verdict: Verdict, emitted: int) -> Book:
        book = super().counted(draft, verdict, emitted)
        return Book(book.proposed, book.accepted + (verdict.accepted == len(draft.tokens)), emitted)


# streams


class StreamsLastToken(Honest):  # 42
    """Of a step with several tokens only the last is streamed."""

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        for tokens, text in super().stream(job):
            yield tokens[-1:], text if len(tokens) == 1 else self._words[tokens[-1]]


class StreamLosesTail(Honest):
    """A token is streamed when the next one is there, so the last one never is."""

    def released(self, live: Live) -> tuple[int, int]:
        n = max(len(live.output) - 1, 0)
        return n, live.ending.ends[n - 1] if n else 0


class StreamHoldsNothing(Honest):  # 42
    """Text that may begin a stop string is streamed at once, and the stop string with it."""

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        text = ""
        for tokens, piece in super().stream(replace(job, params=replace(job.params, stop=()))):
            places = [p for p in ((text + piece).find(stop) for stop in job.params.stop) if p >= 0]
            text += piece
            yield tokens, piece
            if places:
                return


class StreamDrawsAnew(Honest):
    """A streamed request runs on a seed of its own."""

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        yield from super().stream(replace(job, seed=None if job.seed is None else job.seed + 1))
