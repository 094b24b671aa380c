"""The engine: add requests, step, abort, stream. The only file of the core that names concrete classes.

Not for several threads: one thread owns an engine and calls it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftproof.admission import Admission, Prompt, Tokenizer, drafting, rule_named
from draftproof.draft.base import Paced, Proposer
from draftproof.draft.none import NoProposer
from draftproof.draft.prediction import PredictionProposer
from draftproof.kv.pages import PagePool
from draftproof.law import LawMaker
from draftproof.length.base import LengthPolicy
from draftproof.length.fixed import FixedLength
from draftproof.length.learned import Step
from draftproof.model.base import TargetModel
from draftproof.nodes import checked
from draftproof.reuse import Reuse
from draftproof.scheduler import Item, Limits, Scheduler
from draftproof.stats import trim
from draftproof.step import Job, decode_step
from draftproof.stops import Ending
from draftproof.streaming import Stream
from draftproof.types import (
    DraftLength,
    Finish,
    Kind,
    Output,
    RequestError,
    Run,
    SamplingParams,
    StepTrace,
    TokenLogprob,
)
from draftproof.watch import Seconds, Stopwatch


@dataclass(frozen=True, slots=True)
class Event:
    """What became final for one request in a step. The last event of a request carries its Output.

    `pieces[i]` is the text that token i completes. `text` is all of them, and at the very end what an incomplete
    character leaves. The first event of a request carries its `prompt_logprobs`.
    """

    request: int
    tokens: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    pieces: tuple[str, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    output: Output | None = None


@dataclass(slots=True)
class _Live:
    """A request in the engine, and how much of it has been handed out."""

    job: Job
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ending: tuple[TokenLogprob, ...] = ()
    tokens_out: int = 0
    scores_out: int = 0


class Engine:
    """Runs many requests at once on one target model.

    Args:
        k: draft length of requests that do not name one; None: DEFAULT_K with a proposer, 0 without; "auto": as
            `lengths` chooses in each step.
        nodes: most nodes of a tree draft; 0: chains only. More than 0 needs a target that was loaded with trees.
        max_running: most sequences in one step.
        settings: what else to state as the resolved configuration, beside the model's own.
        prefix_cache: keep computed pages for prompts that begin alike. Off unless asked for: a measurement that sends a
            prompt twice must not find it there.
    """

    def __init__(
        self,
        target: TargetModel,
        tokenizer: Tokenizer,
        proposer: Proposer | None = None,
        *,
        k: DraftLength | None = None,
        nodes: int = 0,
        max_running: int = 16,
        lengths: LengthPolicy | None = None,
        settings: Mapping[str, object] | None = None,
        prefix_cache: bool = False,
    ) -> None:
        self.target, self.tokenizer = target, tokenizer
        self.proposer: Proposer = proposer or NoProposer()
        self.speculates = not isinstance(self.proposer, NoProposer)
        if max_running < 1:
            raise RequestError(f"max_running={max_running}: at least one sequence must run")
        self.max_running = max_running
        self._lengths = lengths or FixedLength()
        self.adapts = self._lengths.adapts  # whether a request may leave k to the engine
        info = target.info
        self.settings: Mapping[str, object] = {**info.settings, **(settings or {})}
        self.pool = PagePool(info.pages, info.page_size)
        self.context = min(info.context, info.pages * info.page_size - max(info.min_rows, nodes))
        predicts, nodes = isinstance(self.proposer, PredictionProposer), checked(nodes, info, self.speculates)
        can = drafting(self.speculates, k, nodes, predicts, self._lengths.adapts)
        self._admission = Admission(info, tokenizer, self.context, can)
        limits = Limits(max_running, info.max_rows, info.min_rows, self.context, info.trees_bitwise)
        self.reuse = Reuse(self.pool, prefix_cache)
        self.scheduler = Scheduler(self.pool, limits, self._lengths, self.reuse.prefixes)
        self._live: dict[int, _Live] = {}
        self._mail: dict[int, list[Event]] = {}  # of open streams: whoever steps, their events wait for them
        self._unread: list[Event] = []  # of requests that were added, while a stream or generate() stepped
        self._next = 0
        self._late = 0.0  # seconds that a step took once its traces were written: the next step's

    def add(self, prompt: Prompt, params: SamplingParams | None = None, prediction: Prompt | None = None) -> int:
        """Queue a request and return its id.

        Raises:
            RequestError: the request cannot be honoured as it stands; nothing was queued.
        """
        params = params or SamplingParams()
        rule = rule_named(params.rule)
        request = self._admission.request(self._next, prompt, params, prediction)
        laws = LawMaker(params, request.stop_ids, self.target.info.vocab)
        sequence = self.scheduler.add(request)
        self._live[request.id] = _Live(Job(sequence, laws, rule, Ending(request, self.tokenizer, self.context)))
        self._next += 1
        return request.id

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def step(self) -> list[Event]:
        """One decode step for as many requests as fit; what became final since the last call."""
        waiting, self._unread = self._unread, []
        return [*waiting, *self._advance()]

    def _advance(self) -> list[Event]:
        watch = Stopwatch(self._late)
        items, preempted = self.scheduler.plan()
        for sequence in preempted:
            self.proposer.forget(sequence.request.id)
        self.reuse.hand_over(self.scheduler.adopted, self.proposer)
        if not items:
            return []
        lives = [self._live[item.sequence.request.id] for item in items]
        origins = [len(item.sequence.tokens) for item in items]
        asked = _asked(items)
        jobs = [replace(live.job, prices=self._lengths.prices(live.job.sequence)) for live in lives]
        watch.mark("schedule")
        done = decode_step(items, jobs, self.target, self.proposer, watch, self.scheduler.filled)
        self.reuse.note([item.sequence for item in items], done)
        self.scheduler.stored(items)
        watch.mark("other")
        seconds, late = watch.seconds, Stopwatch()
        self._lengths.timed(Step(done.rows, seconds.verify, len(items), self._passes(asked, len(items)), seconds.draft))
        for live, origin, run, proposed in zip(lives, origins, done.runs, done.proposed, strict=True):
            live.job.sequence.steps.append(_trace(live, origin, run, proposed, len(items), seconds))
            if run is not None:
                live.logprobs.extend(run.logprobs)
                live.ending = run.ending
                self._lengths.observe(live.job.sequence, run)
        events = [self._event(live, run) for live, run in zip(lives, done.runs, strict=True) if run is not None]
        late.mark("other")
        self._late = late.seconds.other
        return events

    def _passes(self, asked: Sequence[int], batch: int) -> float:
        """Passes of drafting; where the proposer does not tell, draft tokens asked for, on average."""
        if isinstance(self.proposer, Paced):
            return self.proposer.passes if len(asked) == batch and any(asked) else 0
        return sum(asked) / batch

    def _post(self, event: Event) -> Event:
        if event.request in self._mail:
            self._mail[event.request].append(event)
        return event

    def _event(self, live: _Live, run: Run) -> Event:
        if run.finish is not None:
            return self._finish(live, run.finish, run.error)
        return self._post(self._release(live, live.job.ending.released()))

    def _release(self, live: _Live, tokens: int, output: Output | None = None) -> Event:
        first, live.tokens_out = live.tokens_out, tokens
        sequence, ending = live.job.sequence, live.job.ending
        scored, live.scores_out = live.scores_out, len(sequence.scores)
        end = ending.end(tokens) if output is None else len(ending.text)
        return Event(
            request=sequence.request.id,
            tokens=tuple(sequence.output[first:tokens]),
            kinds=tuple(sequence.kinds[first:tokens]),
            pieces=tuple(ending.text[ending.end(i) : ending.end(i + 1)] for i in range(first, tokens)),
            text=ending.text[ending.end(first) : end],
            logprobs=tuple(live.logprobs[first:tokens]),
            prompt_logprobs=tuple(sequence.scores[scored:]),
            output=output,
        )

    def _finish(self, live: _Live, finish: Finish, error: str | None = None) -> Event:
        """Free everything that the request holds and hand out the rest of it."""
        sequence = live.job.sequence
        if finish in (Finish.ABORT, Finish.ERROR):
            live.job.ending.close()
        del self._live[sequence.request.id]
        self.scheduler.remove(sequence, sound=finish is not Finish.ERROR)
        self.proposer.forget(sequence.request.id)
        self._lengths.forget(sequence.request.id)
        count, params = len(sequence.kinds), sequence.request.params
        output = Output(
            request=sequence.request.id,
            prompt=sequence.request.prompt,
            tokens=tuple(sequence.output),
            kinds=tuple(sequence.kinds),
            text=live.job.ending.text,
            finish=finish,
            error=error,
            logprobs=tuple(live.logprobs[:count]) if params.logprobs is not None else None,
            prompt_logprobs=tuple(sequence.scores) if params.prompt_logprobs is not None else None,
            ending=live.ending,
            cached=sequence.reused,
            steps=trim(sequence.steps, count),
        )
        return self._post(self._release(live, count, output))

    def abort(self, request: int) -> Output | None:
        """End a request now; its pages are free when this returns. None if it is not running (any more)."""
        live = self._live.get(request)
        if live is None:
            return None
        return self._finish(live, Finish.ABORT).output

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, prediction: Prompt | None = None
    ) -> Stream[Event]:
        """Events of one request until its Output; other requests move on as well. Closing the stream aborts it."""
        name = self.add(prompt, params, prediction)
        mailbox: list[Event] = []
        self._mail[name] = mailbox
        return Stream(mailbox, lambda: name in self._live, lambda: self._advance_for(()), lambda: self._hang_up(name))

    def _hang_up(self, name: int) -> None:
        del self._mail[name]
        self.abort(name)

    def _advance_for(self, mine: Container[int]) -> list[Event]:
        """One step; events of requests that nobody reads from here wait for the next `step`."""
        events = self._advance()
        self._unread += [e for e in events if e.request not in mine and e.request not in self._mail]
        return events

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Run prompts to their end, batched; outputs in the order of the prompts. All or none are queued."""
        many: list[Prompt] = [prompts] if _is_one(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        each = list(params) if isinstance(params, Sequence) else [params] * len(many)
        if len(each) != len(many):
            raise RequestError(f"{len(each)} params for {len(many)} prompts: give one for all, or one each")
        names: list[int] = []
        outputs: dict[int, Output] = {}
        try:
            for prompt, p in zip(many, each, strict=True):
                names.append(self.add(prompt, p))
            while any(n in self._live for n in names):
                outputs.update({e.request: e.output for e in self._advance_for(names) if e.output is not None})
        finally:
            for name in names:
                self.abort(name)
        return [outputs[n] for n in names]

    def audit(self) -> None:
        """Raise unless every page is accounted for (I7)."""
        self.pool.audit(s.table for s in [*self.scheduler.running, *self.scheduler.waiting])
        self.reuse.prefixes.audit()

    def reset_prefix_cache(self) -> None:
        """Nothing that was computed so far is found again. Running requests go on as they are."""
        self.reuse.prefixes.clear()


def _asked(items: Sequence[Item]) -> list[int]:
    """Draft lengths. Who reads a prompt does not count: some proposers cannot draft then, and others read it too."""
    return [i.k for i in items if i.decodes and len(i.sequence.tokens) > len(i.sequence.request.prompt)]


def _trace(
    live: _Live, origin: int, run: Run | None, proposed: tuple[int, ...], batch: int, seconds: Seconds
) -> StepTrace:
    """A step that only read a part of the prompt emitted nothing, but took its time."""
    name = live.job.sequence.request.id
    if run is None:
        return StepTrace(name, origin, (), 0, (), Kind.PROMPT, batch, seconds)
    kind = run.kinds[-1] if run.kinds else Kind.BONUS
    return StepTrace(name, origin, proposed, run.accepted, run.tokens, kind, batch, seconds, run.tv, run.numerical)


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or bool(prompts and isinstance(prompts[0], int))
