"""An honest speculative decoder on a world, small enough to be read in one go: what the planted faults are made from.

It has what real engines go wrong in, each as a method of its own: drafts, ragged rows, caches that are rolled back and
caught up, penalties that advance in the block, stops, books, batches, preemption, cancelling, prefix reuse.
Knows no check and nothing of the engine that the suite was written for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Ability, EngineError, Floats, Job, RuleUnderTest, Sample, World
from draftproof.verify.mutants.batches import Batches
from draftproof.verify.mutants.cache import Prefixes, Tokens
from draftproof.verify.mutants.ends import Ending
from draftproof.verify.mutants.laws import Chain, Law
from draftproof.verify.mutants.live import Book, Live, Memo, to_sample
from draftproof.verify.mutants.noise import Noise, scramble
from draftproof.verify.mutants.rules import Draft, Rules, Verdict

_ALL = frozenset(Ability) - {Ability.TEACHER, Ability.SEED_PROMISE}
_PROMISING = ("sampled", "coupled")
_MEMO = 50_000  # laws remembered a request kind


class Honest(Batches):
    """A batch of sequences goes step by step: draft, one ragged target pass, verdict, cut, commit."""

    name = "honest"
    rules: tuple[str, ...] = ("token", "block", "sampled", "coupled")
    can = _ALL
    looks_up = False  # drafts are looked up in the text, not drawn from the world's draft
    shortens = False  # whether the last draft is no longer than what could be emitted
    context = 1024

    parts: Rules = Rules()
    exposed: Rules | None = None  # what `rule` shows, if not the rules that run
    chain_type: type[Chain] = Chain
    ending_type: type[Ending] = Ending
    prefixes_type: type[Prefixes] = Prefixes

    def __init__(self, world: World, entropy: int = 1) -> None:
        self.world = world
        self.prefixes = self.prefixes_type()
        self.preemptions = 0
        self._entropy, self._unseeded = scramble(entropy), 0
        self._words = world.words or tuple(f" t{i}" for i in range(world.vocab))
        self._kinds: dict[Any, tuple[Chain, Memo, Memo]] = {}
        self._logs: dict[Tokens, list[float]] = {}

    # what the suite asks

    @property
    def abilities(self) -> frozenset[Ability]:
        promising = any(rule in _PROMISING for rule in self.rules) and Ability.SEEDS in self.can
        return self.can | {Ability.SEED_PROMISE} if promising else self.can

    def describe(self) -> Mapping[str, str]:
        return {"engine": self.name, "context": str(self.context), "preemptions": str(self.preemptions)}

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        return self.sample_aborting(jobs, {})

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        lives = [self.admit(job) for job in jobs]
        for _ in self.run(lives, abort):
            pass
        return [self.reported(live) for live in lives]

    def sample_tight(self, jobs: Sequence[Job]) -> list[Sample]:
        self.pages, roomy = self.tight_pages, self.pages
        try:
            return self.sample(jobs)
        finally:
            self.pages = roomy

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        live = self.admit(job)
        tokens = chars = 0
        for _ in self.run([live], {}):
            n, end = self.released(live)
            if n > tokens:
                yield tuple(live.output[tokens:n]), live.ending.text[chars:end]
                tokens, chars = n, end

    def released(self, live: Live) -> tuple[int, int]:
        """Tokens and characters that may be shown."""
        return (len(live.output), len(live.ending.text)) if live.finish else live.ending.released()

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        raise EngineError(f"this engine is no teacher of {len(tokens)} tokens in chunks of {chunk}")

    def rule(self, name: str) -> RuleUnderTest:
        return (self.exposed or self.parts).under_test(name)

    def close(self) -> None:
        self._kinds.clear()
        self._logs.clear()

    def reported(self, live: Live) -> Sample:
        return to_sample(live)

    # requests

    def admit(self, job: Job) -> Live:
        params = job.params
        rule = params.rule or self.rules[0]
        if rule not in self.rules or not job.prompt or len(job.prompt) >= self.context:
            raise EngineError(f"refused: rule {rule!r}, prompt of {len(job.prompt)} tokens")
        stops = frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else self.world.eos)
        kind = self._kinds.get((params, stops))
        if kind is None:
            kind = self._kinds[params, stops] = (self.chain_type(params, stops, self.world.vocab), {}, {})
        chain, target_laws, draft_laws = kind
        ending = self.ending_type(params, stops, self._words, min(params.max_tokens, self.context - len(job.prompt)))
        return Live(job, self.seed(job), chain, ending, target_laws, draft_laws, rule, list(job.prompt))

    def seed(self, job: Job) -> int:
        if job.seed is not None:
            return scramble(job.seed)
        self._unseeded += 1
        return scramble(self._entropy + self._unseeded)

    # one step

    def step(self, lives: Sequence[Live]) -> None:
        noises = [self.noise(live) for live in lives]
        drafts = [self.propose(live, self.draft_length(live), n) for live, n in zip(lives, noises, strict=True)]
        rows = self.forward(lives, drafts)
        for work in zip(lives, drafts, rows, noises, strict=True):
            self.decide(*work)

    def noise(self, live: Live) -> Noise:
        return Noise(live.seed, len(live.context))

    def draft_length(self, live: Live) -> int:
        k = min(live.job.params.k, self.context - len(live.context) - 1)
        return max(min(k, live.job.params.max_tokens - len(live.output) - 1) if self.shortens else k, 0)

    def decide(self, live: Live, draft: Draft, rows: Sequence[Tokens], noise: Any) -> None:
        laws = [self.target_law(live, row, draft.tokens[:i]) for i, row in enumerate(rows)]
        verdict = self.parts.verdict(live.rule, laws, draft, noise)
        self.commit(live, draft, verdict, rows)

    # drafts

    def propose(self, live: Live, k: int, noise: Any) -> Draft:
        if k == 0:
            return Draft()
        if self.looks_up or self.world.draft is None:
            return self.look_up(live, k)
        self.catch_up(live)
        tokens: tuple[int, ...] = ()
        laws: tuple[Law, ...] = ()
        while len(tokens) < k:
            live.draft.feed(tokens[-1:])
            laws += (self.draft_law(live, tuple(live.draft.tokens), tokens),)
            tokens += (self.parts.draw(live.rule, laws[-1], noise, len(tokens)),)
        return Draft(tokens, laws)

    def catch_up(self, live: Live) -> None:
        """Feed the draft what it has not seen, the last drafted token included if all were accepted."""
        live.draft.feed(live.context[len(live.draft.tokens) :])

    def look_up(self, live: Live, k: int) -> Draft:
        """What followed the last token when it stood here before; else the next ids in turn."""
        text = list(live.context)
        for _ in range(k):
            seen = [i for i in range(len(text) - 1) if text[i] == text[-1]]
            text.append(text[seen[-1] + 1] if seen else (text[-1] + 1) % self.world.vocab)
        tokens = tuple(text[-k:])
        return Draft(tokens, tuple(self.looked_up_law(x) for x in tokens))

    def looked_up_law(self, token: int) -> Law:
        return Law.point(self.world.vocab, token)

    def draft_law(self, live: Live, prefix: Tokens, drafted: Tokens) -> Law:
        key = self.law_key(live, prefix, drafted)
        if key not in live.draft_laws:
            _make_room(live.draft_laws)
            live.draft_laws[key] = self.law(live, self.draft_logits(prefix), self.draft_history(live, drafted))
        return live.draft_laws[key]

    def draft_logits(self, prefix: Tokens) -> Floats:
        assert self.world.draft is not None
        return self.world.draft(prefix)

    # the target's pass

    def forward(self, lives: Sequence[Live], drafts: Sequence[Draft]) -> list[list[Tokens]]:
        """One ragged pass. A row is the prefix that its logits come from; each sequence gets its last k + 1."""
        flat: list[Tokens] = []
        for live, draft in zip(lives, drafts, strict=True):
            live.target.feed(self.pending(live))
            live.target.feed(draft.tokens)
            length = len(live.target.tokens)
            flat += [live.target.read(n) for n in range(length - len(draft.tokens), length + 1)]
        return self.split(flat, [len(d.tokens) + 1 for d in drafts])

    def pending(self, live: Live) -> list[int]:
        """What the target has not seen."""
        return live.context[len(live.target.tokens) :]

    def split(self, flat: list[Tokens], sizes: Sequence[int]) -> list[list[Tokens]]:
        rows, start = [], 0
        for size in sizes:
            rows.append(flat[start : start + size])
            start += size
        return rows

    def target_law(self, live: Live, prefix: Tokens, drafted: Tokens) -> Law:
        """The law after `drafted`: penalties and masks go on inside the block."""
        key = self.law_key(live, prefix, drafted)
        if key not in live.target_laws:
            _make_room(live.target_laws)
            live.target_laws[key] = self.law(live, self.world.target(prefix), self.history(live, drafted))
        return live.target_laws[key]

    def law_key(self, live: Live, prefix: Tokens, drafted: Tokens) -> Any:
        return (prefix, live.job.prompt, *live.output, -1, *drafted) if live.chain.needs_history else prefix

    def history(self, live: Live, drafted: Tokens) -> list[int]:
        return [*live.output, *drafted]

    def draft_history(self, live: Live, drafted: Tokens) -> list[int]:
        return self.history(live, drafted)

    def law(self, live: Live, logits: Floats, output: Sequence[int]) -> Law:
        return live.chain.law(logits, live.job.prompt, output)

    # what a step leaves behind

    def commit(self, live: Live, draft: Draft, verdict: Verdict, rows: Sequence[Tokens]) -> None:
        tokens = (*draft.tokens[: verdict.accepted], verdict.token)
        origin, before = len(live.context), len(live.output)
        kept, live.finish = live.ending.push(tokens)
        self.append(live, tokens[: max(kept - before, 0)], rows)
        self.take_back(live, kept)
        live.books.append(self.counted(draft, verdict, max(kept - before, 0)))
        self.roll_back(live, origin, verdict.accepted)
        if before == 0 and len(live.job.prompt) > self.prefixes.page:
            self.prefixes.keep(live.job.prompt, live.target)

    def append(self, live: Live, tokens: Tokens, rows: Sequence[Tokens]) -> None:
        live.output.extend(tokens)
        live.context.extend(tokens)
        live.logprobs.extend([self.logprobs(row)[token] for row, token in zip(rows, tokens, strict=False)])

    def take_back(self, live: Live, kept: int) -> None:
        """A stop string may have begun in an earlier step."""
        del live.output[kept:]
        del live.logprobs[kept:]

    def counted(self, draft: Draft, verdict: Verdict, emitted: int) -> Book:
        """Behind a cut nothing is counted."""
        accepted = min(verdict.accepted, emitted)
        return Book(len(draft.tokens) if emitted > verdict.accepted else accepted, accepted, emitted)

    def roll_back(self, live: Live, origin: int, accepted: int) -> None:
        live.target.roll_back(origin + accepted)
        live.draft.roll_back(origin + accepted)

    def logprobs(self, row: Tokens) -> list[float]:
        if row not in self._logs:
            _make_room(self._logs)
            logits = self.world.target(row)
            shifted = logits - logits.max()
            self._logs[row] = (shifted - np.log(np.exp(shifted).sum())).tolist()
        return self._logs[row]


def _make_room(memo: dict[Any, Any]) -> None:
    if len(memo) >= _MEMO:
        memo.clear()
