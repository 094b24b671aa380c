"""How outputs end, and whether the books agree (I9, I10): exact comparisons with a plain run, no statistics.

Greedy jobs, so that the plain token stream is the answer for any rule. Knows the order of stops: at each token a stop
token first, then stop strings, then the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from draftproof.verify import oracle
from draftproof.verify.checks.base import BaseCheck
from draftproof.verify.checks.bitwise import jobs
from draftproof.verify.checks.common import prompts, sound
from draftproof.verify.contract import Ability, Budget, EngineUnderTest, Job, Params, Result, Sample, StepCount, World

_LENGTH, _MOST_K = 12, 4


class Stream(NamedTuple):
    """A plain greedy run without stops."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def _plain(engine: EngineUnderTest, prompt: tuple[int, ...]) -> Stream:
    job = Job(prompt, _greedy(max_tokens=_LENGTH, k=0), seed=1)
    return Stream(prompt, sound([job], engine.sample([job]))[0].tokens)


def _greedy(**more: object) -> Params:
    return replace(Params(temperature=0.0), **more)  # type: ignore[arg-type]


def _cut(stream: Stream, params: Params, world: World) -> tuple[tuple[int, ...], str, str | None]:
    """Tokens, finish and text that the stop rules leave of a stream."""
    text = ""
    kept: list[int] = []
    starts: list[int] = []
    for n, token in enumerate(stream.tokens):
        if token in params.stop_token_ids and n >= params.min_tokens:
            return tuple(kept), "stop", text
        kept.append(token)
        starts.append(len(text))
        text += world.words[token] if world.words else ""
        places = [text.find(s) for s in params.stop if s in text]
        if places:  # a token that lies partly before the stop string stands
            standing = sum(start < min(places) for start in starts)
            return tuple(kept[:standing]), "stop", text[: min(places)]
        if len(kept) == params.max_tokens:
            return tuple(kept), "length", text
    return tuple(kept), "length", text


class Pairs(BaseCheck):
    name = "ends/pairs"
    claim = "stop tokens, stop strings, max and min tokens end the output at the same place at every offset of a block"
    needs = frozenset({Ability.PLAIN, Ability.STOP_TOKENS})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked: list[Job] = []
        wanted = []
        streams = [_plain(engine, prompt) for prompt in prompts(world, 2 if budget.level == "quick" else 4)]
        streams.append(_plain(engine, streams[0].prompt + streams[0].tokens))  # greedy text soon repeats itself
        for stream in streams:
            for params in self._cases(engine, world, stream):
                asked.append(Job(stream.prompt, params, seed=1))
                wanted.append(_cut(stream, params, world))
        for job, (tokens, finish, text), seen in zip(asked, wanted, sound(asked, engine.sample(asked)), strict=True):
            texts_differ = (
                world.words and job.params.stop and seen.text is not None and seen.text.strip() != (text or "").strip()
            )
            if (seen.tokens, seen.finish) != (tokens, finish) or texts_differ:
                stops = {
                    n: getattr(job.params, n)
                    for n in ("stop_token_ids", "stop", "max_tokens", "min_tokens", "k", "rule")
                }
                expected = {"tokens": tokens, "finish": finish, "text": text}
                got = {"tokens": seen.tokens, "finish": seen.finish, "text": seen.text}
                return self.fails(len(asked), {"prompt": job.prompt, **stops, "expected": expected, "seen": got})
        return self.holds(len(asked), f"{len(asked)} pairs of stops")

    def _cases(self, engine: EngineUnderTest, world: World, stream: Stream) -> Iterator[Params]:
        """A stop token that the stream really has, at each offset, with each limit and each draft length."""
        strings = bool(world.words) and Ability.STOP_STRINGS in engine.abilities
        rules = engine.rules
        for n, (offset, limit, k) in enumerate(product(range(6), range(1, 8), range(1, _MOST_K + 1))):
            base = _greedy(max_tokens=limit, k=k, rule=rules[n % len(rules)])
            yield replace(base, stop_token_ids=(stream.tokens[offset],))
            if strings and n % 2:
                two = _text(world, stream.tokens[offset : offset + 2])
                stop = two[1:-1] or two
                if not _begins_in_prompt(world, stream, stop):
                    yield replace(base, stop=(stop,))
            if Ability.MIN_TOKENS in engine.abilities and n % 3 == 0:
                first = stream.tokens.index(stream.tokens[offset])
                yield replace(base, stop_token_ids=(stream.tokens[offset],), min_tokens=min(first, limit))


def _text(world: World, tokens: Sequence[int]) -> str:
    return "".join(world.words[t] for t in tokens)


def _begins_in_prompt(world: World, stream: Stream, stop: str) -> bool:
    """Whether a stop string lies across the border of prompt and output: some engines end there, and say so."""
    rest = len(stop) - 1
    return bool(rest) and stop in _text(world, stream.prompt)[-rest:] + _text(world, stream.tokens)[:rest]


class Context(BaseCheck):
    name = "ends/context"
    claim = "the context limit ends the output where it ends without speculation, at every offset of a block"
    needs = frozenset({Ability.PLAIN, Ability.CONTEXT})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del budget, alpha
        asked, wanted = list[Job](), list[Sample]()
        for left in range(1, _MOST_K + 3):
            for job, plain in _at_limit(engine, world, left):
                if not job.params.stop_token_ids and (len(plain.tokens), plain.finish) != (left, "length"):
                    seen_so = {"expected": left, "seen": len(plain.tokens), "finish": plain.finish}
                    return self.fails(1, {"prompt tokens": len(job.prompt), "k": 0, **seen_so})
                for k in range(1, _MOST_K + 1):
                    params = replace(job.params, k=k, rule=engine.rules[k % len(engine.rules)])
                    asked.append(replace(job, params=params))
                    wanted.append(plain)
        for job, plain, seen in zip(asked, wanted, sound(asked, engine.sample(asked)), strict=True):
            if (seen.tokens, seen.finish) != (plain.tokens, plain.finish):
                expected, got = (plain.tokens, plain.finish), (seen.tokens, seen.finish)
                where = {"prompt tokens": len(job.prompt), "k": job.params.k, "rule": job.params.rule}
                return self.fails(len(asked), {**where, "expected": expected, "seen": got})
        return self.holds(len(asked), f"{len(asked)} outputs that end at {engine.context} tokens")


def _at_limit(engine: EngineUnderTest, world: World, left: int) -> Iterator[tuple[Job, Sample]]:
    """A plain run that the context ends after `left` tokens, and one with a stop token right there as well."""
    names = oracle.words(world)
    prompt = tuple(names[i * (i + left) % len(names)] for i in range(engine.context - left))
    job = Job(prompt, _greedy(max_tokens=_LENGTH, k=0), seed=1)
    plain = sound([job], engine.sample([job]))[0]
    yield job, plain
    if Ability.STOP_TOKENS in engine.abilities:
        stopped = replace(job, params=replace(job.params, stop_token_ids=plain.tokens[-1:]))
        yield stopped, sound([stopped], engine.sample([stopped]))[0]


class Books(BaseCheck):
    name = "ends/books"
    claim = "tokens, log-probabilities, usage and statistics agree, and nothing behind a stop is counted"
    needs = frozenset({Ability.COUNTS})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        asked = [replace(j, params=replace(j.params, logprobs=Ability.LOGPROBS in engine.abilities)) for j in asked]
        if Ability.STOP_TOKENS in engine.abilities:
            asked += [replace(j, params=replace(j.params, stop_token_ids=oracle.words(world)[:2])) for j in asked]
        samples = sound(asked, engine.sample(asked))
        for job, sample in zip(asked, samples, strict=True):
            wrong = _wrong(job, sample)
            if wrong is None and sample.logprobs is not None:
                wrong = _wrong_logprobs(world, job, sample)
            if wrong is not None:
                return self.fails(
                    len(asked), {"prompt": job.prompt, "seed": job.seed, "k": job.params.k, "wrong": wrong}
                )
        if not any(s.proposed for s in samples):
            return self.untested("no sample reports a proposed token: the engine did not speculate")
        return self.holds(len(asked))


def _wrong(job: Job, s: Sample) -> str | None:
    """The first thing in a sample's books that cannot be."""
    return next(_contradictions(job, s), None)


def _contradictions(job: Job, s: Sample) -> Iterator[str]:
    n = len(s.tokens)
    if s.usage is not None and s.usage != n:
        yield f"usage says {s.usage} tokens, there are {n}"
    if s.logprobs is not None and len(s.logprobs) != n:
        yield f"{len(s.logprobs)} log-probabilities for {n} tokens"
    if n > job.params.max_tokens:
        yield f"{n} tokens, at most {job.params.max_tokens} were asked for"
    if s.proposed is not None and s.accepted is not None and not 0 <= s.accepted <= s.proposed:
        yield f"{s.accepted} accepted of {s.proposed} proposed"
    if s.accepted is not None and s.accepted > n:
        yield f"{s.accepted} accepted, but only {n} tokens emitted"
    if s.steps is not None:
        yield from _step_contradictions(job, s, s.steps)


def _step_contradictions(job: Job, s: Sample, steps: Sequence[StepCount]) -> Iterator[str]:
    n, accepted = len(s.tokens), sum(step.accepted for step in steps)
    for step in steps:
        if not 0 <= step.accepted <= step.proposed <= job.params.k:
            yield f"a step with {step.accepted} accepted of {step.proposed} proposed at k = {job.params.k}"
    emitted = accepted + len(steps)
    if s.finish == "length" and not n <= emitted <= n + 1:
        yield f"the steps' accepted tokens and one each make {emitted}, but {n} tokens came out"
    if s.accepted is not None and s.accepted != accepted:
        yield f"{s.accepted} accepted in all, {accepted} in the steps"


def _wrong_logprobs(world: World, job: Job, s: Sample) -> str | None:
    for n, (token, told) in enumerate(zip(s.tokens, s.logprobs or (), strict=False)):
        expected = oracle.logprob(world, (*job.prompt, *s.tokens[:n]), token)
        if abs(expected - told) > 1e-3:
            return f"log-probability {told:.4f} of token {n}, by the model it is {expected:.4f}"
    return None


class Streamed(BaseCheck):
    name = "ends/streamed"
    claim = "what is streamed is what is returned in one piece"
    needs = frozenset({Ability.STREAM, Ability.SEEDS})

    def _run(self, engine: EngineUnderTest, world: World, budget: Budget, alpha: float) -> Result:
        del alpha
        asked = jobs(engine, world, budget, engine.rules)
        if world.words and Ability.STOP_STRINGS in engine.abilities:
            texts = [s.text or "" for s in sound(asked, engine.sample(asked))]
            cut = [(j, (t[3:5], t[4:7] + "?")) for j, t in zip(asked, texts, strict=True) if len(t) > 4]
            asked += [
                replace(j, params=replace(j.params, stop=stop)) for j, stop in cut
            ]  # over the border of two tokens
        for job in asked:
            whole = engine.sample([job])[0]
            pieces = list(engine.stream(job))
            tokens = tuple(t for new, _ in pieces for t in new)
            text = "".join(new for _, new in pieces)
            if tokens != whole.tokens or (whole.text is not None and text != whole.text):
                expected, seen = (whole.tokens, whole.text), (tokens, text)
                where = {"prompt": job.prompt, "seed": job.seed, "stop": job.params.stop}
                return self.fails(len(asked), {**where, "expected": expected, "seen": seen})
        return self.holds(len(asked))


CHECKS = (Pairs(), Context(), Books(), Streamed())
