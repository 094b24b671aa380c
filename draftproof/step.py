"""ONE decode step, top to bottom: propose, verify in one target pass, accept, cut, commit or roll back.

Knows the bases only: no concrete model, proposer or policy, and no queue. Reading a prompt is the same step: its rows
are fed, and the step decodes once they reach the last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.accept import ProposerError, Rows
from draftproof.draft.base import Ask, Proposer, Seen
from draftproof.kv.table import reserve
from draftproof.law import LawMaker, LawRows, log_softmax, top_k
from draftproof.model.base import TargetModel
from draftproof.noise import Noise, StepNoise
from draftproof.scheduler import Item
from draftproof.scheduler import Sequence as Running
from draftproof.stops import Ending
from draftproof.types import Chunk, Draft, Finish, Floats, Kind, Law, RequestError, Run, TokenLogprob, Verdict

Hidden = NDArray[np.float32]


class Rule(Protocol):
    """What a step needs of a rule, exact (`accept.py`) or lossy (`lossy.py`)."""

    def draw(self, law: Law, noise: Noise, offset: int, /) -> int: ...
    def verdict(self, rows: Rows, draft: Draft, noise: Noise, /) -> Verdict: ...
    def tv(self, rows: Rows, draft: Draft, verdict: Verdict, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A sequence with what belongs to its request alone."""

    sequence: Running
    laws: LawMaker
    rule: Rule
    ending: Ending

    @property
    def noise(self) -> StepNoise:
        return StepNoise(self.sequence.request.seed, len(self.sequence.tokens))


class Done(NamedTuple):
    """Runs of the items that decoded (None for the others), and the seconds in both kinds of model passes."""

    runs: list[Run | None]
    drafts: list[Draft]
    draft_seconds: float
    verify_seconds: float


def decode_step(items: Sequence[Item], jobs: Sequence[Job], target: TargetModel, proposer: Proposer) -> Done:
    began = perf_counter()
    noises = [job.noise for job in jobs]
    drafts = _propose(items, jobs, noises, proposer, target.info.vocab)  # tokens with the law each came from
    drafted = perf_counter()
    rows = [_rows(item, draft, target.info.min_rows) for item, draft in zip(items, drafts, strict=True)]
    with reserve([(i.sequence.table, i.start, len(r)) for i, r in zip(items, rows, strict=True)]) as slots:
        target.copy_pages(slots.copies)
        chunks = [_chunk(i, r) for i, r in zip(items, rows, strict=True)]
        before = perf_counter()
        out = target.forward(chunks)  # one ragged pass, k + 1 rows a decoding sequence
        verified = perf_counter() - before
        logits = _split(out.logits, [c.wanted for c in chunks])
        laws = [_laws(*work) for work in zip(jobs, drafts, logits, strict=True)]
        verdicts = [_judge(*work) for work in zip(items, jobs, drafts, noises, laws, strict=True)]
        runs = [_cut(*work) for work in zip(jobs, drafts, verdicts, laws, logits, strict=True)]
        slots.commit([_committed(item, run) for item, run in zip(items, runs, strict=True)])
    for item, run in zip(items, runs, strict=True):
        _append(item.sequence, run)
    proposer.observe(_seen(items, chunks, runs, out.hidden))
    return Done(runs, drafts, drafted - began, verified)


def _propose(
    items: Sequence[Item], jobs: Sequence[Job], noises: Sequence[StepNoise], proposer: Proposer, vocab: int
) -> list[Draft]:
    drafts = [Draft() for _ in items]
    asking = [n for n, item in enumerate(items) if item.decodes and item.k]
    asks = [Ask(jobs[n].sequence, items[n].k, jobs[n].laws, noises[n], jobs[n].rule.draw) for n in asking]
    proposed = proposer.propose(asks) if asks else []
    if len(proposed) != len(asks):
        raise ProposerError(f"the proposer returned {len(proposed)} drafts, {len(asks)} were asked for")
    for n, draft in zip(asking, proposed, strict=True):
        error = draft.error or _broken(draft, items[n].k, vocab)
        drafts[n] = draft if error is None else Draft(error=error)
    return drafts


def _broken(draft: Draft, k: int, vocab: int) -> str | None:
    """How a draft breaks the contract of `Proposer`."""
    tokens, laws = draft.tokens, draft.laws
    if len(tokens) > k:
        return f"the proposer returned {len(tokens)} draft tokens, at most {k} were asked for"
    if len(tokens) != len(laws):
        return f"the proposer returned {len(tokens)} draft tokens with {len(laws)} laws: each needs its own"
    if any(not 0 <= t < vocab for t in tokens) or any(q.vocab != vocab for q in laws):
        return f"the proposer returned draft tokens or laws outside of the target's {vocab} tokens"
    return None


def _seen(
    items: Sequence[Item], chunks: Sequence[Chunk], runs: Sequence[Run | None], hidden: Hidden | None
) -> list[Seen]:
    sizes = [len(c.tokens) for c in chunks]
    states = [None] * len(items) if hidden is None else _split(hidden, sizes)
    work = zip(items, sizes, runs, states, strict=True)
    return [Seen(item.sequence, item.start, size, run, state) for item, size, run, state in work]


def _rows(item: Item, draft: Draft, least: int) -> list[int]:
    """Tokens to feed. If a prompt of one token or a missing draft leaves too few, unread rows behind fill them up."""
    rows = [*item.sequence.tokens[item.start : item.end], *draft.tokens]
    return rows + rows[-1:] * (least - len(rows))


def _chunk(item: Item, rows: Sequence[int]) -> Chunk:
    wanted = len(rows) - (item.end - item.start) + 1 if item.decodes else 0
    return Chunk(tuple(rows), item.start, item.sequence.table.pages, wanted)


def _split(rows: Hidden, sizes: Sequence[int]) -> list[Hidden]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _laws(job: Job, draft: Draft, logits: Floats) -> LawRows:
    return LawRows(job.laws, logits, job.sequence.request.prompt, job.sequence.output, draft.tokens)


def _judge(item: Item, job: Job, draft: Draft, noise: StepNoise, laws: LawRows) -> Verdict | str | None:
    """The rule's verdict, or why there is none. Changes nothing, so that the step can still fail as a whole."""
    if not item.decodes:
        return None
    if draft.error is not None:
        return draft.error
    try:
        return job.rule.verdict(laws, draft, noise)
    except (RequestError, ProposerError) as error:  # ends this request; the others go on
        return str(error)


def _cut(job: Job, draft: Draft, verdict: Verdict | str | None, laws: LawRows, logits: Floats) -> Run | None:
    """What stands of a verdict once stop rules and limits have cut it. Nothing behind the cut is counted."""
    before = len(job.sequence.kinds)
    if verdict is None:
        return None
    if isinstance(verdict, str):
        return Run((), (), 0, 0, before, Finish.ERROR, verdict)
    tokens = (*draft.tokens[: verdict.accepted], verdict.token)
    cut = job.ending.push(tokens)
    new = max(cut.kept - before, 0)
    accepted = min(new, verdict.accepted)
    whole = new > verdict.accepted
    return Run(
        tokens=tokens[:new],
        kinds=((Kind.ACCEPTED,) * verdict.accepted + (verdict.kind,))[:new],
        proposed=len(draft.tokens) if whole else accepted,
        accepted=accepted,
        kept=cut.kept,
        finish=cut.finish,
        logprobs=tuple(_logprobs(job, logits, tokens[:new])),
        tv=job.rule.tv(laws, draft, verdict._replace(accepted=accepted)),
        numerical=verdict.numerical and whole,
    )


def _logprobs(job: Job, logits: Floats, tokens: Sequence[int]) -> Iterator[TokenLogprob]:
    wanted = job.sequence.request.params.logprobs
    if wanted is None:
        return
    for row, token in zip(logits, tokens, strict=False):
        logs = log_softmax(row)
        top = top_k(logs, min(wanted, len(logs))) if wanted else ()
        best = sorted(((int(t), float(logs[t])) for t in top), key=lambda entry: -entry[1])
        yield TokenLogprob(token, float(logs[token]), tuple(best))


def _committed(item: Item, run: Run | None) -> int:
    """KV slots that stay: those of the fed tokens, and of the draft tokens that stand."""
    if run is not None and run.error is not None:
        return item.sequence.table.length
    return item.end + (run.accepted if run is not None else 0)


def _append(sequence: Running, run: Run | None) -> None:
    if run is None:
        return
    sequence.tokens.extend(run.tokens)
    sequence.kinds.extend(run.kinds)
    del sequence.tokens[len(sequence.request.prompt) + run.kept :]
    del sequence.kinds[run.kept :]
