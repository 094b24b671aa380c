"""ONE decode step, top to bottom: propose, verify in one target pass, accept, cut, commit or roll back.

Knows the bases only: no concrete model, proposer or policy, and no queue. Reading a prompt is the same step: its rows
are fed, and the step decodes once they reach the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof import tree
from draftproof.accept import ProposerError, Rows
from draftproof.draft.base import Ask, Proposer, Seen
from draftproof.kv.table import reserve
from draftproof.law import LawMaker, LawRows
from draftproof.model.base import TargetModel
from draftproof.noise import Noise, StepNoise
from draftproof.prices import Prices
from draftproof.scheduler import Item
from draftproof.scheduler import Sequence as Running
from draftproof.scores import fault, prompt_scores, score
from draftproof.stops import Ending
from draftproof.types import Chunk, Draft, Finish, Floats, Kind, Law, RequestError, Run, TokenLogprob, Verdict
from draftproof.watch import Stopwatch

Hidden = NDArray[np.float32]
Filled = Callable[[Sequence[Item], Sequence[int]], list[Item]]  # see Scheduler.filled


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
    prices: Prices | None = None  # of the coming draft

    @property
    def noise(self) -> StepNoise:
        return StepNoise(self.sequence.request.seed, len(self.sequence.tokens))


class Done(NamedTuple):
    """Runs of the items that decoded (None for the others), with the tokens that count as proposed.

    `seen` is what the proposer was told; `copies` are (source, target) pages that were copied; `rows` went through the
    target.
    """

    runs: list[Run | None]
    proposed: list[tuple[int, ...]]
    seen: list[Seen]
    copies: list[tuple[int, int]]
    rows: int


def decode_step(
    items: Sequence[Item],
    jobs: Sequence[Job],
    target: TargetModel,
    proposer: Proposer,
    watch: Stopwatch,
    filled: Filled,
) -> Done:
    noises = [job.noise for job in jobs]
    drafts = _propose(items, jobs, noises, proposer, target.info.vocab)  # tokens with the law each came from
    watch.mark("draft")
    items = filled(items, [len(draft.tokens) for draft in drafts])
    rows = [_rows(item, draft, target.info.min_rows) for item, draft in zip(items, drafts, strict=True)]
    with reserve([(i.sequence.table, i.start, len(r)) for i, r in zip(items, rows, strict=True)]) as slots:
        target.copy_pages(slots.copies)
        chunks = [_chunk(*work) for work in zip(items, drafts, rows, strict=True)]
        watch.mark("kv")
        out = target.forward(chunks)  # one ragged pass, k + 1 rows a decoding sequence
        watch.mark("verify")
        wanted = _split(out.logits, [c.wanted for c in chunks])
        logits = [rows[item.scored :] for item, rows in zip(items, wanted, strict=True)]
        laws = [_laws(*work) for work in zip(jobs, drafts, logits, strict=True)]
        faults = [fault(*work) for work in zip(items, wanted, strict=True)]
        verdicts = [_judge(*work) for work in zip(items, jobs, drafts, noises, laws, faults, strict=True)]
        runs = [_cut(*work) for work in zip(jobs, drafts, verdicts, laws, logits, strict=True)]
        scores = [prompt_scores(*work) for work in zip(items, wanted, runs, strict=True)]
        paths = [_path(*work) for work in zip(drafts, verdicts, runs, strict=True)]
        watch.mark("accept")
        _gather(items, paths, target)
        slots.commit([_committed(item, run) for item, run in zip(items, runs, strict=True)])
    for item, run, scored in zip(items, runs, scores, strict=True):
        _append(item.sequence, run)
        item.sequence.scores.extend(scored)
    watch.mark("kv")
    seen = _seen(items, chunks, paths, runs, out.hidden)
    proposer.observe(seen)
    watch.mark("draft")
    proposed = [_proposed(*work) for work in zip(drafts, paths, runs, strict=True)]
    return Done(runs, proposed, seen, slots.copies, sum(map(len, rows)))


def _propose(
    items: Sequence[Item], jobs: Sequence[Job], noises: Sequence[StepNoise], proposer: Proposer, vocab: int
) -> list[Draft]:
    drafts = [Draft() for _ in items]
    asking = [n for n, item in enumerate(items) if item.decodes and item.k]
    asks = [_ask(items[n], jobs[n], noises[n]) for n in asking]
    proposed = proposer.propose(asks) if asks else []
    if len(proposed) != len(asks):
        raise ProposerError(f"the proposer returned {len(proposed)} drafts, {len(asks)} were asked for")
    for n, draft in zip(asking, proposed, strict=True):
        error = draft.error or _broken(draft, items[n], vocab)
        drafts[n] = draft if error is None else Draft(error=error)
    return drafts


def _ask(item: Item, job: Job, noise: StepNoise) -> Ask:
    return Ask(item.sequence, item.k, job.laws, noise, job.rule.draw, item.nodes, job.prices)


def _broken(draft: Draft, item: Item, vocab: int) -> str | None:
    """How a draft breaks the contract of `Proposer`."""
    tokens, laws = draft.tokens, draft.laws
    if fault := _misshapen(draft, item):
        return f"the proposer returned {fault}"
    if len(tokens) != len(laws):
        return f"the proposer returned {len(tokens)} draft tokens with {len(laws)} laws: each needs its own"
    if any(not 0 <= t < vocab for t in tokens) or any(q.vocab != vocab for q in laws):
        return f"the proposer returned draft tokens or laws outside of the target's {vocab} tokens"
    return None


def _misshapen(draft: Draft, item: Item) -> str | None:
    count = len(draft.tokens)
    if not draft.parents:
        return f"{count} draft tokens, at most {item.k} were asked for" if count > item.k else None
    if count > item.nodes:
        return f"a tree of {count} nodes, at most {item.nodes} were asked for"
    fault = tree.fault(draft.parents, draft.tokens)
    if fault is None and (depth := max(tree.depths(draft.parents))) > item.k:
        return f"a tree of depth {depth}, at most {item.k} was asked for"
    return fault


def _seen(
    items: Sequence[Item],
    chunks: Sequence[Chunk],
    paths: Sequence[Sequence[int]],
    runs: Sequence[Run | None],
    hidden: Hidden | None,
) -> list[Seen]:
    states = [None] * len(items) if hidden is None else _split(hidden, [len(c.tokens) for c in chunks])
    return [_saw(*work) for work in zip(items, paths, runs, states, strict=True)]


def _saw(item: Item, path: Sequence[int], run: Run | None, states: Hidden | None) -> Seen:
    """Rows of the fed tokens and of the accepted path; none of a request that ended with an error."""
    fed = item.end - item.start
    rows = [*range(fed), *(fed - 1 + node for node in path)] if run is None or run.error is None else []
    return Seen(item.sequence, item.start, len(rows), run, None if states is None else states[rows])


def _rows(item: Item, draft: Draft, least: int) -> list[int]:
    """Tokens to feed. If a prompt of one token or a missing draft leaves too few, unread rows behind fill them up."""
    rows = [*item.sequence.tokens[item.start : item.end], *draft.tokens]
    return rows + rows[-1:] * (least - len(rows))


def _chunk(item: Item, draft: Draft, rows: Sequence[int]) -> Chunk:
    fed = item.end - item.start
    wanted = item.scored + (len(rows) - fed + 1 if item.decodes else 0)
    chain = Chunk(tuple(rows), item.start, item.sequence.table.pages, wanted)
    if draft.parents in ((), tuple(range(len(draft.tokens)))):  # a tree that came out as a chain needs no mask
        return chain
    shape = (draft.parents, fed, len(rows))
    return replace(chain, depths=tree.row_depths(*shape), visible=tree.visible(*shape))


def _split(rows: Hidden, sizes: Sequence[int]) -> list[Hidden]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _laws(job: Job, draft: Draft, logits: Floats) -> LawRows:
    return LawRows(job.laws, logits, job.sequence.request.prompt, job.sequence.output, draft.tokens, draft.parents)


def _judge(
    item: Item, job: Job, draft: Draft, noise: StepNoise, laws: LawRows, fault: str | None
) -> Verdict | str | None:
    """The rule's verdict, or why there is none. Changes nothing, so that the step can still fail as a whole."""
    if fault is not None or not item.decodes:
        return fault
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
    nodes = _nodes(draft, verdict)
    tokens = (*(draft.tokens[n - 1] for n in nodes), verdict.token)
    cut = job.ending.push(tokens)
    new = max(cut.kept - before, 0)
    accepted = min(new, verdict.accepted)
    whole = new > verdict.accepted
    return Run(
        tokens=tokens[:new],
        kinds=((Kind.ACCEPTED,) * verdict.accepted + (verdict.kind,))[:new],
        proposed=len(_line(draft, nodes)) if whole else accepted,
        accepted=accepted,
        kept=cut.kept,
        finish=cut.finish,
        logprobs=tuple(_logprobs(job, (logits[n] for n in (0, *nodes)), tokens[:new])),
        ending=tuple(_ending(job, logits, (0, *nodes)[new:], tokens[new:]) if cut.finish is Finish.STOP else ()),
        tv=job.rule.tv(laws, draft, verdict._replace(accepted=accepted)),
        numerical=verdict.numerical and whole,
    )


def _nodes(draft: Draft, verdict: Verdict) -> Sequence[int]:
    """The accepted nodes; those of a chain stand in a row."""
    return verdict.path if draft.parents else range(1, verdict.accepted + 1)


def _line(draft: Draft, nodes: Sequence[int]) -> tuple[int, ...]:
    """The draft tokens that count as proposed; of a chain all of them."""
    return tuple(draft.tokens[n - 1] for n in tree.line(draft.parents, nodes)) if draft.parents else draft.tokens


def _path(draft: Draft, verdict: Verdict | str | None, run: Run | None) -> Sequence[int]:
    """The accepted nodes that the cut left."""
    if run is None or verdict is None or isinstance(verdict, str):
        return ()
    return _nodes(draft, verdict)[: run.accepted]


def _proposed(draft: Draft, path: Sequence[int], run: Run | None) -> tuple[int, ...]:
    return () if run is None else _line(draft, path)[: run.proposed]


def _gather(items: Sequence[Item], paths: Sequence[Sequence[int]], target: TargetModel) -> None:
    """Bring each accepted path's K and V together, where a chain's would be."""
    for item, path in zip(items, paths, strict=True):
        if moves := tree.moves(path, item.end):
            target.move_slots(item.sequence.table.pages, moves)


def _logprobs(job: Job, rows: Iterable[Floats], tokens: Sequence[int]) -> Iterator[TokenLogprob]:
    wanted = job.sequence.request.params.logprobs
    if wanted is None:
        return
    for row, token in zip(rows, tokens, strict=False):
        yield score(row, token, wanted)


def _ending(job: Job, logits: Floats, rows: Sequence[int], behind: Sequence[int]) -> Iterator[TokenLogprob]:
    """Of the stop token that ended the output, whose row is the first behind it."""
    request = job.sequence.request
    wanted = request.params.prompt_logprobs
    if wanted is not None and behind and behind[0] in request.stop_ids:
        yield score(logits[rows[0]], behind[0], wanted)


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
