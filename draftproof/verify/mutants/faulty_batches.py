"""Engines in which one request changes another, or the past changes the present. Laws of single requests are right."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from draftproof.verify.contract import Job, Sample, World
from draftproof.verify.mutants.cache import Prefixes, Slot, Tokens
from draftproof.verify.mutants.honest import Honest
from draftproof.verify.mutants.live import Live
from draftproof.verify.mutants.noise import Noise, scramble
from draftproof.verify.mutants.rules import Draft

# seeds and noise


class NoiseOfStep(Honest):
    """A target sample belongs to the step that asked for it, not to its position."""

    def noise(self, live: Live) -> Noise:
        return Noise(scramble(live.seed + len(live.books)), len(live.context))


class NoiseByDraftLength(Honest):
    """With a draft a step uses other noise than without one."""

    def noise(self, live: Live) -> Noise:
        return Noise(scramble(live.seed + self.draft_length(live)), len(live.context))


class NoiseOfFirstInBatch(Honest):  # 11
    """All requests of a batch share the noise of the first."""

    first = 0

    def step(self, lives: Sequence[Live]) -> None:
        self.first = lives[0].seed
        super().step(lives)

    def noise(self, live: Live) -> Noise:
        return Noise(self.first, len(live.context))


class NoiseOfSeat(Honest):  # 33
    """A request's noise depends on its place in the batch."""

    def step(self, lives: Sequence[Live]) -> None:
        self.seat_of: dict[int, int] = {id(live): n for n, live in enumerate(lives)}
        super().step(lives)

    def noise(self, live: Live) -> Noise:
        return Noise(scramble(live.seed + self.seat_of[id(live)]), len(live.context))


class SeedByHistory(Honest):  # 37
    """A seed is mixed with how many requests the engine has seen."""

    def seed(self, job: Job) -> int:
        self._unseeded += 1
        return scramble(super().seed(job) + self._unseeded)


class OneSeedForUnseeded(Honest):  # 37
    def seed(self, job: Job) -> int:
        return scramble(job.seed or 0)


# prefix cache


class _FirstTokenOnly(Prefixes):
    def key(self, prompt: Tokens, n: int) -> Hashable:
        return prompt[0], n

    def keep(self, prompt: Tokens, slot: Slot) -> None:
        super().keep(prompt, Slot([*prompt, *slot.tokens[len(prompt) :]]))  # the last to use a page writes it anew


class PrefixByFirstToken(Honest):  # 36
    """Pages are found by their first token and their length."""

    prefixes_type = _FirstTokenOnly


class _WholePrompt(Prefixes):
    def reusable(self, prompt: Tokens) -> int:
        return len(prompt)

    def keep(self, prompt: Tokens, slot: Slot) -> None:
        super().keep((*prompt, -1), slot)


class PrefixOfWholePrompt(Honest):  # 36
    """A prompt that is known as a whole is fed its last token twice."""

    prefixes_type = _WholePrompt

    def pending(self, live: Live) -> list[int]:
        return super().pending(live) or live.context[-1:]


class _OtherContent(Prefixes):
    page = 1

    def content(self, slot: Slot, n: int) -> Tokens:
        return tuple(slot.tokens[1 : n + 1])


class PrefixOffByOne(Honest):  # 36
    """A page is hashed before its last token was written: its content is one token late."""

    prefixes_type = _OtherContent


# cancelling and preemption


class CancelMovesCaches(Honest):
    """When a request is cancelled the others move up, and one of them takes the wrong cache along."""

    def cancel(self, live: Live, running: list[Live], waiting: deque[Live]) -> None:
        others = [other for other in running if other is not live and other.output]
        super().cancel(live, running, waiting)
        if others:
            others[0].target = Slot([*others[0].target.tokens[1:], others[0].context[0]])


class CancelTakesToken(Honest):
    """A cancelled request takes the last token of the one before it along."""

    def cancel(self, live: Live, running: list[Live], waiting: deque[Live]) -> None:
        super().cancel(live, running, waiting)
        for other in running[-1:]:
            if other.output:
                other.output.pop()
                other.logprobs.pop()
                other.ending.ends.pop()


class CancelledTextGoesOn(Honest):
    """A cancelled request shows one more token, which was never drawn."""

    def cancel(self, live: Live, running: list[Live], waiting: deque[Live]) -> None:
        super().cancel(live, running, waiting)
        live.output.append((live.context[-1] + 1) % self.world.vocab)
        live.logprobs.append(-1.0)


class PreemptLosesToken(Honest):
    """The newest token of a preempted request is not computed anew."""

    def preempt(self, live: Live) -> None:
        super().preempt(live)
        if live.output:
            del live.context[-1]


class PreemptRepeatsNoise(Honest):
    """A request that was preempted begins its noise anew."""

    def preempt(self, live: Live) -> None:
        super().preempt(live)
        live.seed = scramble(live.seed)


class PreemptRepeatsToken(Honest):
    """The newest token of a preempted request is emitted once more."""

    def preempt(self, live: Live) -> None:
        super().preempt(live)
        for token in live.output[-1:]:
            live.output.append(token)
            live.logprobs.append(live.logprobs[-1])
            live.context.append(token)
            live.ending.append(token)


class PreemptKeepsCache(Honest):
    """A preempted request finds its pages again, with what another one wrote to them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._pages: dict[int, list[int]] = {}

    def preempt(self, live: Live) -> None:
        first, *others = live.target.tokens or live.context
        super().preempt(live)
        self._pages[id(live)] = [*others, first]

    def seat(self, live: Live) -> None:
        super().seat(live)
        live.target = Slot(self._pages.pop(id(live), live.target.tokens))


# engines that must come out as "could not be tested"


class NeverDrafts(Honest):  # 40
    def propose(self, live: Live, k: int, noise: object) -> Draft:
        del live, k, noise
        return Draft()


class Dies(Honest):
    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        raise RuntimeError(f"out of memory with {len(jobs)} jobs")


class DiesLate(Honest):
    """Dies at its twentieth step."""

    steps = 0

    def step(self, lives: Sequence[Live]) -> None:
        self.steps += 1
        if self.steps >= 20:
            raise RuntimeError("the device is gone")
        super().step(lives)


class ForgetsSamples(Honest):
    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        return super().sample(jobs)[:-1]


class OutOfRange(Honest):
    def reported(self, live: Live) -> Sample:
        sample = super().reported(live)
        tokens = (*sample.tokens[:-1], self.world.vocab + 7) if sample.tokens else ()
        return Sample(tokens, sample.finish, usage=len(tokens))


class ReturnsErrors(Honest):
    def reported(self, live: Live) -> Sample:
        del live
        return Sample((), "error", error="CUDA error: device-side assert triggered")


class ReturnsNothing(Honest):
    def reported(self, live: Live) -> Sample:
        del live
        return Sample(())
