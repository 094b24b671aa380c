"""Our own engine as an engine under test. The only file of `verify` that may import the engine.

Knows how our words translate into the suite's; judges nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays, drafts
from draftproof.accept import RULES
from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.model.base import TargetModel
from draftproof.model.directory import TORCH
from draftproof.model.fetch import silent
from draftproof.model.load import Loaded, ModelOptions, load_model
from draftproof.types import Chunk, Draft, Kind, Law, Output, RequestError, SamplingParams
from draftproof.verify.contract import Ability, EngineError, Job, Params, RuleUnderTest, Sample, StepCount, World
from draftproof.verify.toy import Pair, write_hf

_TOY_PAGES, _TOY_CONTEXT, _RUNNING = 192, 192, 32
_TIGHT_TOY, _TIGHT_REAL = 8, 12  # pages that leave room for few sequences


class DraftproofEngine:
    """Args: `make(tight)` builds an engine; a tight one has so few KV pages that requests are preempted."""

    name = "draftproof"

    def __init__(
        self, make: Callable[[bool], Engine], rules: Sequence[str] = tuple(RULES), bitwise: bool = True
    ) -> None:
        self._make, self.rules = make, tuple(rules)
        self._engine = make(False)
        promise = bitwise and self._engine.target.info.bitwise
        unpromised = {Ability.SEED_PROMISE, Ability.SEEDS} if not promise else set()
        self.abilities = frozenset(Ability) - unpromised

    @property
    def vocab(self) -> int:
        return self._engine.target.info.vocab

    @property
    def eos(self) -> tuple[int, ...]:
        return self._engine.target.info.eos_ids

    @property
    def context(self) -> int:
        return self._engine.context

    def describe(self) -> Mapping[str, str]:
        settings = {k: str(v) for k, v in self._engine.target.info.settings.items()}
        versions = {name: version(name) for name in ("draftproof", "numpy", "openvino")}
        return {**versions, "python": platform.python_version(), **settings}

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        return _sample(self._engine, jobs, {})

    def sample_aborting(self, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
        return _sample(self._engine, jobs, abort)

    def sample_tight(self, jobs: Sequence[Job]) -> list[Sample]:
        return _sample(self._make(True), jobs, {})

    def stream(self, job: Job) -> Iterator[tuple[tuple[int, ...], str]]:
        for event in self._engine.stream(job.prompt, params_of(job)):
            yield event.tokens, event.text

    def rule(self, name: str) -> RuleUnderTest:
        rule = RULES[name]
        return RuleUnderTest(
            name=name,
            verdict=rule.verdict,
            draw=rule.draw,
            law=lambda probs: Law(len(probs), None, np.asarray(probs)),
            draft=lambda tokens, laws, parents=(): Draft(tuple(tokens), tuple(laws), None, tuple(parents)),
            acceptance=name,
            trees=True,
        )

    def logits(self, tokens: Sequence[int], chunk: int = 0) -> NDArray[np.floating]:
        model = self._engine.target
        size = max(chunk or len(tokens), 1)
        pages = tuple(range(-(-len(tokens) // model.info.page_size)))
        starts = range(0, len(tokens), size)
        chunks = [Chunk(tuple(tokens[s : s + size]), s, pages, len(tokens[s : s + size])) for s in starts]
        return np.concatenate([arrays.host(model.forward([c]).logits) for c in chunks])

    def close(self) -> None:
        self._engine.audit()


def params_of(job: Job) -> SamplingParams:
    p: Params = job.params
    return SamplingParams(
        temperature=p.temperature,
        top_k=p.top_k,
        top_p=p.top_p,
        min_p=p.min_p,
        repetition_penalty=p.repetition_penalty,
        presence_penalty=p.presence_penalty,
        frequency_penalty=p.frequency_penalty,
        logit_bias=dict(p.logit_bias),
        min_tokens=p.min_tokens,
        max_tokens=p.max_tokens,
        stop=p.stop,
        stop_token_ids=p.stop_token_ids,
        ignore_eos=p.ignore_eos,
        seed=job.seed,
        logprobs=0 if p.logprobs else None,
        k=p.k,
        rule=p.rule or "block",
    )


def _sample(engine: Engine, jobs: Sequence[Job], abort: Mapping[int, int]) -> list[Sample]:
    """Run all jobs in one engine; job i is cancelled after abort[i] steps."""
    try:
        names = [engine.add(job.prompt, params_of(job)) for job in jobs]
    except RequestError as error:
        raise EngineError(f"the engine refused a job: {error}") from error
    outputs: dict[int, Output] = {}
    steps = 0
    while len(outputs) < len(jobs):
        for i, after in abort.items():
            if after == steps:
                cancelled = engine.abort(names[i])
                outputs |= {names[i]: cancelled} if cancelled is not None else {}
        for event in engine.step():
            if event.output is not None:
                outputs[event.request] = event.output
        steps += 1
    engine.audit()
    return [_as_sample(outputs[name]) for name in names]


def _as_sample(output: Output) -> Sample:
    return Sample(
        tokens=output.tokens,
        finish=str(output.finish),
        text=output.text,
        logprobs=None if output.logprobs is None else tuple(entry.logprob for entry in output.logprobs),
        proposed=sum(len(s.proposed) for s in output.steps),
        accepted=sum(s.accepted for s in output.steps),
        steps=tuple(StepCount(len(s.proposed), s.accepted) for s in output.steps if s.kind is not Kind.PROMPT),
        usage=len(output.tokens),
        error=output.error,
    )


class _Narrow:
    """The same model with memory for fewer pages, so that sequences are preempted."""

    def __init__(self, model: TargetModel, pages: int) -> None:
        self.info = replace(model.info, pages=pages)
        self.forward, self.copy_pages, self.move_slots = model.forward, model.copy_pages, model.move_slots


def toy_engine(
    pair: Pair, folder: Path, draft: str, rules: Sequence[str] = tuple(RULES), backend: str = ""
) -> DraftproofEngine:
    """Our engine on a toy pair, through its own loader, kernels, drafter, sampler and scheduler.

    `draft`: "model" is the pair's draft, "ngram" looks up. `backend` stands before the models' names: "torch:" or none.
    """
    options = ModelOptions(precision="f32", kv_pages=_TOY_PAGES, context=_TOY_CONTEXT, threads=1)
    target = load_model(f"{backend}{write_hf(pair.target, folder / 'target')}", options)
    if draft == "ngram":
        return DraftproofEngine(_maker(target, _looking_up(target), _TIGHT_TOY), rules)
    small = load_model(f"{backend}{write_hf(pair.draft, folder / 'draft')}", options)
    return DraftproofEngine(_maker(target, _asking(small, target), _TIGHT_TOY), rules)


def real_engine(model: str, draft: str, rules: Sequence[str], draft_precision: str) -> DraftproofEngine:
    """Our engine on any model that it can load, in its default setting, with any draft that has a name."""
    draft = drafts.resolved(draft, model)
    head = drafts.trained(draft, model, silent)
    states = head.layers if head is not None else ()
    target = load_model(model, ModelOptions(kv_bytes=256 << 20, hidden_layers=states))
    if draft == "ngram":
        make = _looking_up(target)
    elif head is not None or draft.partition(":")[0] in {"ngram", "suffix"}:
        make = partial(drafts.proposer, draft, head, target, ModelOptions(), silent)
    else:
        draft_precision = "auto" if draft.startswith(TORCH) else draft_precision
        options = ModelOptions(precision=draft_precision, kv_pages=target.model.info.pages)
        make = _asking(load_model(draft, options), target)
    return DraftproofEngine(_maker(target, make, _TIGHT_REAL), rules)


def _looking_up(target: Loaded) -> Callable[[], Proposer]:
    return lambda: NgramProposer(target.model.info.vocab, 1, 3)


def _asking(small: Loaded, target: Loaded) -> Callable[[], Proposer]:
    return lambda: ModelProposer(small.model, target.model.info.vocab)


def real_world(engine: DraftproofEngine, name: str) -> World:
    """A world whose laws are the engine's own plain passes, token by token: what speculation is compared with."""
    vocab, eos = engine.vocab, engine.eos
    passes = lru_cache(maxsize=512)(lambda prefix: np.asarray(engine.logits(prefix)[-1], dtype=np.float64))
    return World(name, vocab, passes, None, eos=eos, impossible=tuple(i for i in range(20) if i not in eos))


def _maker(target: Loaded, proposer: Callable[[], Proposer], tight_pages: int) -> Callable[[bool], Engine]:
    def make(tight: bool) -> Engine:
        model = _Narrow(target.model, tight_pages) if tight else target.model
        return Engine(model, target.tokenizer, proposer(), max_running=_RUNNING)

    return make
