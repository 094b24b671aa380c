"""I6: after any step the state is that of a clean prefill. The contract of proposers. Faults planted in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from toys import drafting, random_table, toy_engine

from draftproof import step as step_module
from draftproof.accept import ProposerError
from draftproof.draft.base import Ask, Stateless
from draftproof.draft.model import ModelProposer, _State
from draftproof.engine import Engine
from draftproof.model.tabular import TabularModel
from draftproof.types import Chunk, Draft, Finish, Kind, Law, RequestError, SamplingParams, Verdict

VOCAB = 5
PROMPT = [1, 2, 3]


class Judge:
    """A rule that accepts as many draft tokens as a script says, and then emits a token that differs from the draft."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)

    def draw(self, law: Law, noise: Any, offset: int) -> int:
        return int(law.dense().argmax())

    def verdict(self, rows: Any, draft: Draft, noise: Any) -> Verdict:
        n = min(self.script.pop(0), len(draft.tokens))
        if n == len(draft.tokens):
            return Verdict(n, int(rows[n].dense().argmax()), Kind.BONUS)
        return Verdict(n, (draft.tokens[n] + 1) % VOCAB, Kind.RESIDUAL)

    def tv(self, rows: Any, draft: Draft, verdict: Verdict) -> float:
        return 0.0


def held(model: TabularModel, pages: Sequence[int], length: int) -> list[int]:
    return model.slots[list(pages)].ravel()[:length].tolist()


def check_state(engine: Engine) -> None:
    """Raise unless every sequence's KV, in target and draft, is what a clean prefill would have left."""
    for s in engine.scheduler.running:
        assert s.table.length == len(s.tokens) - 1
        assert held(engine.target, s.table.pages, s.table.length) == s.tokens[:-1]  # type: ignore[arg-type]
        if isinstance(engine.proposer, ModelProposer) and s.request.id in engine.proposer._states:
            state = engine.proposer._states[s.request.id]
            assert state.table.length == len(state.tokens)
            assert held(engine.proposer.model, state.table.pages, state.table.length) == state.tokens  # type: ignore[arg-type]
    engine.audit()


def check_next_rows(engine: Engine, chunks: Sequence[Chunk], logits: np.ndarray, tables: list[Any]) -> None:
    """The wanted rows of a pass equal those of the table on the tokens alone: no slot before them is stale."""
    wanted = [(c, r) for c in chunks for r in range(len(c.tokens) - c.wanted, len(c.tokens))]
    texts = {
        tuple(c.pages[:1]): s.tokens for s in engine.scheduler.running for c in chunks if c.pages[0] in s.table.pages
    }
    for (c, row), got in zip(wanted, logits, strict=True):
        text = texts.get(tuple(c.pages[:1]))
        if text is not None:
            prefix = (*text[: c.past], *c.tokens[: row + 1])
            assert np.array_equal(got, np.log(tables[0](prefix)).astype(np.float32))


def run_script(scripts: Sequence[Sequence[int]], k: int, setup: Callable[[Engine], None] = lambda e: None) -> Engine:
    """Several sequences, each judged by its own script, with the state checked after every step."""
    target, draft = random_table(VOCAB, 1), random_table(VOCAB, 2)
    engine = toy_engine(target, VOCAB, drafting(draft, VOCAB, min_rows=1))
    setup(engine)
    for n, script in enumerate(scripts):
        name = engine.add(PROMPT[: 1 + n % 3], SamplingParams(k=k, seed=n, max_tokens=40))
        live = engine._live[name]
        live.job = step_module.Job(live.job.sequence, live.job.laws, Judge(script), live.job.ending)
    forward = engine.target.forward

    def watched(chunks: Sequence[Chunk]) -> Any:
        out = forward(chunks)
        check_next_rows(engine, chunks, out.logits, [target])
        return out

    engine.target.forward = watched  # type: ignore[method-assign]
    propose = engine.proposer.propose

    def compared(asks: Sequence[Ask]) -> list[Draft]:
        drafts = propose(asks)
        for one, two in zip(drafts, drafting(draft, VOCAB).propose(asks), strict=True):
            assert one.tokens == two.tokens  # as a proposer without a past would
            assert all(np.array_equal(a.dense(), b.dense()) for a, b in zip(one.laws, two.laws, strict=True))
        return drafts

    engine.proposer.propose = compared  # type: ignore[method-assign]
    for _ in range(min(len(s) for s in scripts)):
        engine.step()
        check_state(engine)
    return engine


@pytest.mark.parametrize("k", [1, 2, 3])
def test_state_equals_a_clean_prefill(k: int) -> None:
    """Cases 23 and 25: every sequence of three accepted lengths 0 .. k, and as many rows of a ragged batch."""
    for script in product(range(k + 1), repeat=3):
        engine = run_script([script, script[::-1], [k, *script[1:]]], k)
        for live, expected in zip(engine._live.values(), [script, script[::-1], [k, *script[1:]]], strict=True):
            assert [s.accepted for s in live.job.sequence.steps] == list(expected)


# planted faults


class NoRollBack(ModelProposer):
    """Rejected tokens stay in the draft's state; what is new is fed behind them."""

    def _begin(self, ask: Ask) -> Any:
        state = self._states.get(ask.view.request.id)
        kept = None if state is None else list(state.tokens)
        work = super()._begin(ask)
        if kept is not None and state is not None:
            more = len(kept) - len(state.tokens)
            state.table.extend(more)
            state.table.commit(len(kept))
            state.tokens, work.tokens = kept, [*kept, work.tokens[-1]]
        return work


class BonusMissing(ModelProposer):
    """Case 23: the last draft token, never fed to the draft, is taken for fed once it is accepted."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = super().propose(asks)
        for ask, draft in zip(asks, drafts, strict=True):
            state: _State = self._states[ask.view.request.id]
            state.table.extend(1)
            state.table.commit(state.table.length + 1)
            state.tokens.append(draft.tokens[-1])
        return drafts


def _with_proposer(kind: type[ModelProposer]) -> Callable[[Engine], None]:
    def setup(engine: Engine) -> None:
        engine.proposer = kind(engine.proposer.model, VOCAB)  # type: ignore[attr-defined]

    return setup


def _committing(change: Callable[[Any, Any], int]) -> Callable[[Engine], None]:
    def setup(engine: Engine) -> None:
        step_module._committed = change  # undone by the test's monkeypatch

    return setup


def _stale(engine: Engine) -> None:
    """The KV of a rejected token stays where the token that was emitted instead belongs."""
    model = engine.target
    forward = model.forward

    def faulty(chunks: Sequence[Chunk]) -> Any:
        before = {c.pages: held(model, c.pages, c.past + 1)[-1] for c in chunks}  # type: ignore[arg-type]
        out = forward(chunks)
        for c in chunks:
            page, offset = divmod(c.past, model.info.page_size)
            if before[c.pages] >= 0:
                model.slots[c.pages[page], offset] = before[c.pages]  # type: ignore[attr-defined]
        return out

    model.forward = faulty  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[Engine], None]] = {
    "draft state not rolled back": _with_proposer(NoRollBack),
    "draft lacks the last accepted token": _with_proposer(BonusMissing),
    "one slot too many committed": _committing(lambda item, run: item.end + min(run.accepted + 1, run.proposed)),
    "one slot too few committed": _committing(lambda item, run: item.end + max(run.accepted - 1, 0)),
    "all draft slots committed": _committing(lambda item, run: item.end + run.proposed),
    "KV of a rejected token kept": _stale,
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "_committed", step_module._committed)  # restores it
    scripts = [[0, 3, 1, 3, 2], [3, 0, 3, 1, 2]]
    run_script(scripts, 3)
    with pytest.raises(AssertionError):
        run_script(scripts, 3, FAULTS[name])


# the contract of proposers


class Saying(Stateless):
    """Proposes what it is told, whatever is asked."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return self.drafts[: len(asks)] if len(asks) > 1 else [self.drafts[0]]


def point(*tokens: int, vocab: int = VOCAB) -> Draft:
    return Draft(tokens, tuple(Law.point(vocab, t % vocab) for t in tokens))


GOOD = point(1)
BROKEN = {
    "at most 2 were asked": point(1, 2, 3),
    "with 1 laws": Draft((1, 2), GOOD.laws),
    "outside of the target's 5": point(7),
    "or laws outside": point(1, vocab=9),
    "has probability 0": Draft((1,), (Law.point(VOCAB, 2),)),
    "something broke": Draft(error="something broke"),
}


@pytest.mark.parametrize("rule", ["token", "block", "lenience:2", "typical:0.1"])
@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_draft_ends_its_request_alone(message: str, rule: str) -> None:
    engine = toy_engine(random_table(VOCAB, 1), VOCAB, Saying(BROKEN[message], GOOD))
    bad, good = engine.add([1], _params(rule)), engine.add([2], _params(rule))
    first, second = engine.step()
    assert first.request == bad
    assert first.output is not None
    assert (first.output.finish, first.output.tokens) == (Finish.ERROR, ())
    assert message in str(first.output.error)
    assert (second.request, second.output) == (good, None)
    assert len(second.tokens) >= 1
    engine.audit()


def _params(rule: str) -> SamplingParams:
    return SamplingParams(k=2, rule=rule, seed=1, max_tokens=9)


def test_a_wrong_number_of_drafts_is_refused_and_leaves_the_engine_whole() -> None:
    proposer = Saying(GOOD)
    engine = toy_engine(random_table(VOCAB, 1), VOCAB, proposer)
    names = [engine.add([1], _params("token")), engine.add([2], _params("token"))]
    with pytest.raises(ProposerError, match="returned 1 drafts, 2 were asked"):
        engine.step()
    engine.audit()
    proposer.drafts.append(GOOD)
    assert [e.request for e in engine.step()] == names


def test_a_draft_may_be_shorter_or_empty() -> None:
    engine = toy_engine(random_table(VOCAB, 1), VOCAB, Saying(Draft(), GOOD), min_rows=2)
    engine.add([1], _params("block"))
    engine.add([2], _params("block"))
    assert len(engine.step()[0].tokens) == 1
    check_state(engine)


class Counting(Judge):
    """Says in the TV how many tokens it was told that it accepted, and that its residual was a numerical event."""

    def verdict(self, rows: Any, draft: Draft, noise: Any) -> Verdict:
        return super().verdict(rows, draft, noise)._replace(numerical=True)

    def tv(self, rows: Any, draft: Draft, verdict: Verdict) -> float:
        return float(verdict.accepted)


@pytest.mark.parametrize(("stop", "emitted", "numerical"), [(2, 1, False), (4, 2, False), (0, 3, True)])
def test_nothing_behind_the_cut_is_counted(stop: int, emitted: int, numerical: bool) -> None:
    """Drafts 1, 2, 3, of which two are accepted; the residual is 4."""
    engine = toy_engine(random_table(VOCAB, 1), VOCAB, Saying(point(1, 2, 3)))
    name = engine.add([1], SamplingParams(k=3, max_tokens=9, stop_token_ids=(stop,)))
    job = engine._live[name].job
    engine._live[name].job = step_module.Job(job.sequence, job.laws, Counting([2]), job.ending)
    engine.step()
    (trace,) = job.sequence.steps
    assert trace.emitted == (1, 2, 4)[:emitted]
    assert trace.accepted == trace.tv == min(emitted, 2)
    assert len(trace.proposed) == (3 if numerical else trace.accepted)
    assert trace.numerical is numerical


def test_a_law_that_cannot_be_made_is_a_request_error() -> None:
    with pytest.raises(RequestError):
        Law(2, None, np.zeros(2))
