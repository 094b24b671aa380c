"""The draft model: its law, its vocabulary, its rows and pages. That it cannot go stale is shown in test_step.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from toys import Table, drafting, finished, random_table, toy_engine

from draftproof.accept import RULES
from draftproof.draft.base import Ask
from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.types import Chunk, Draft, Floats, Kind, SamplingParams

VOCAB = 5
TARGET, DRAFT = random_table(VOCAB, 1), random_table(VOCAB, 2)


def wider(table: Table, more: int, share: float = 0.3) -> Table:
    """The same law with `share` of the mass on tokens behind the target's."""

    def wide(prefix: tuple[int, ...]) -> np.ndarray:
        return np.concatenate([table(prefix) * (1 - share), np.full(more, share / more)])

    return wide


def narrower(table: Table, vocab: int) -> Table:
    return lambda prefix: table(prefix)[:vocab] / table(prefix)[:vocab].sum()


def drafts_of(engine: Engine, prompt: list[int], params: SamplingParams) -> list[tuple[Ask, Draft]]:
    """Every draft that a request is given, with what was asked."""
    seen: list[tuple[Ask, Draft]] = []
    propose = engine.proposer.propose

    def watched(asks: Sequence[Ask]) -> list[Draft]:
        drafts = propose(asks)
        seen.extend(zip(asks, drafts, strict=True))
        return drafts

    engine.proposer.propose = watched  # type: ignore[method-assign]
    engine.add(prompt, params)
    finished(engine)
    return seen


def engine(proposer: ModelProposer, **info: int) -> Engine:
    return toy_engine(TARGET, VOCAB, proposer, **info)


def text(tokens: Sequence[Draft]) -> list[tuple[int, ...]]:
    return [d.tokens for d in tokens]


@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_ids_behind_the_targets_are_never_proposed(rule: str) -> None:
    """A padded vocabulary: drafts are those of the draft's law without its padding."""
    params = SamplingParams(k=3, rule=rule, seed=1, max_tokens=30)
    wide = [d for _, d in drafts_of(engine(drafting(wider(DRAFT, 3), VOCAB, VOCAB + 3)), [1], params)]
    same = [d for _, d in drafts_of(engine(drafting(DRAFT, VOCAB)), [1], params)]
    assert text(wide) == text(same)
    for w, s in zip(wide, same, strict=True):
        for a, b in zip(w.laws, s.laws, strict=True):
            assert (a.vocab, b.vocab) == (VOCAB, VOCAB)
            assert a.dense() == pytest.approx(b.dense(), rel=1e-5)


def test_ids_that_the_draft_does_not_know_get_no_mass() -> None:
    seen = drafts_of(engine(drafting(narrower(DRAFT, 3), VOCAB, 3)), [1, 2], SamplingParams(k=3, seed=2, max_tokens=30))
    laws = [q for _, d in seen for q in d.laws]
    assert len(laws) > 20
    assert all(q.dense()[3:].tolist() == [0.0, 0.0] and q.vocab == VOCAB for q in laws)
    assert all(t < 3 for _, d in seen for t in d.tokens)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_of_another_vocabulary_runs_to_the_end(rule: str) -> None:
    """A draft model must bear tokens that it does not know: the toy's table takes any."""
    for own in (3, 9):
        table = narrower(DRAFT, 3) if own == 3 else wider(DRAFT, 4)
        params = SamplingParams(k=4, rule=rule, seed=3, max_tokens=20)
        outputs = engine(drafting(table, VOCAB, own)).generate([[1], [4, 4]], params)
        assert [len(o.tokens) for o in outputs] == [20, 20]
        assert any(Kind.ACCEPTED in o.kinds for o in outputs)


def test_the_law_is_the_requests_recipe_on_the_drafts_logits() -> None:
    """I3: penalties advance inside the draft, filters apply, and each token comes from the law that is stated."""
    params = SamplingParams(k=3, seed=4, max_tokens=20, frequency_penalty=0.8, top_k=3, temperature=0.7)
    seen = drafts_of(engine(drafting(DRAFT, VOCAB)), [1, 2], params)
    assert len(seen) > 4
    for ask, draft in seen:
        assert len(draft.tokens) == ask.k
        assert ask.k in {1, 2, 3}
        for token, law in zip(draft.tokens, draft.laws, strict=True):
            assert law.prob(token) > 0
            assert np.count_nonzero(law.dense()) == 3


def test_laws_follow_the_tokens_drawn() -> None:
    seen = drafts_of(
        engine(drafting(DRAFT, VOCAB)), [1], SamplingParams(k=3, seed=5, max_tokens=2, frequency_penalty=1.0)
    )
    (_, draft), *_ = seen
    expected = np.log(DRAFT((1,)))
    assert draft.laws[0].dense() == pytest.approx(np.exp(expected), rel=1e-5)


class Watched(ModelProposer):
    """Notes the chunks of each pass."""

    def __init__(self, model: Any, vocab: int) -> None:
        super().__init__(model, vocab)
        self.fed: list[list[Chunk]] = []
        forward = model.forward
        model.forward = lambda chunks: self.fed.append(list(chunks)) or forward(chunks)  # type: ignore[func-returns-value]


def watched(**info: int) -> Watched:
    return Watched(drafting(DRAFT, VOCAB, **info).model, VOCAB)


@pytest.mark.parametrize(("least", "most"), [(1, 64), (2, 64), (2, 5), (3, 7), (2, 2)])
def test_passes_keep_to_the_draft_models_rows(least: int, most: int) -> None:
    """Prompts of one token included: a chunk that is too short for its attention kernel is filled up."""
    proposer = watched(min_rows=least, max_rows=most)
    prompts, params = [[1], [2, 3], [4] * 11, [0] * 6], SamplingParams(k=3, seed=1, max_tokens=15)
    outputs = engine(proposer).generate(prompts, params)
    plain = engine(drafting(DRAFT, VOCAB)).generate(prompts, params)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]
    sizes = [[len(c.tokens) for c in chunks] for chunks in proposer.fed]
    assert min(map(min, sizes)) >= least
    assert max(map(sum, sizes)) <= most


def test_sequences_are_drafted_together_and_nothing_is_fed_twice() -> None:
    proposer = watched()
    engine(proposer).generate([[1], [2], [3]], SamplingParams(k=4, seed=2, max_tokens=16))
    rows = sum(len(c.tokens) for chunks in proposer.fed for c in chunks)
    assert max(len(chunks) for chunks in proposer.fed) == 3
    assert rows < 3 * 16 * 2.5
    assert all(c.wanted == 1 for chunks in proposer.fed for c in chunks)


@pytest.mark.parametrize("pages", [5, 6, 9])
def test_sequences_that_do_not_fit_together_take_turns(pages: int) -> None:
    """16 tokens and 4 drafts need five pages: there is room for one sequence, and some of another."""
    proposer = watched(pages=pages)
    params = SamplingParams(k=4, seed=3, max_tokens=14)
    made = engine(proposer)
    names = [made.add([1, n], params) for n in range(4)]
    outputs = finished(made)
    plain = engine(drafting(DRAFT, VOCAB)).generate([[1, n] for n in range(4)], params)
    assert [outputs[n].tokens for n in names] == [o.tokens for o in plain]
    assert [outputs[n].kinds for n in names] == [o.kinds for o in plain]
    proposer.audit()
    assert proposer.pool.free == pages


def test_a_pool_that_is_too_small_for_one_sequence_is_a_short_context() -> None:
    proposer = watched(pages=2)
    outputs = engine(proposer).generate([[1], [2]], SamplingParams(k=3, seed=1, max_tokens=20))
    assert [len(o.tokens) for o in outputs] == [20, 20]
    assert all(not s.proposed for o in outputs for s in o.steps if s.origin > 5)
    assert all(s.proposed for o in outputs for s in o.steps if s.origin <= 5)


def test_a_text_that_changed_is_read_again_from_there() -> None:
    """Not a thing that the engine does; the state is compared, token by token, with what is committed."""
    made = engine(drafting(DRAFT, VOCAB))
    made.add([1, 2, 3, 4, 1, 2], SamplingParams(k=3, seed=1))
    (job,) = (live.job for live in made._live.values())
    ask = Ask(job.sequence, 3, job.laws, job.noise, job.rule.draw)
    used = drafting(DRAFT, VOCAB)
    used.propose([ask])
    job.sequence.tokens[1] = 0
    (again,), (fresh,) = used.propose([ask]), drafting(DRAFT, VOCAB).propose([ask])
    assert again.tokens == fresh.tokens
    assert all(np.array_equal(a.dense(), b.dense()) for a, b in zip(again.laws, fresh.laws, strict=True))


def test_forget_of_the_unknown_is_nothing() -> None:
    drafting(DRAFT, VOCAB).forget(7)


# planted faults


class PaddingFirst(ModelProposer):
    """Case 6's kin: a wider vocabulary is cut at the wrong end."""

    def _fitted(self, logits: Floats) -> Floats:
        return logits[-self._vocab :]


class FrozenHistory(ModelProposer):
    """Penalties of the draft stand still inside the block: exact, but the law is not the recipe's."""

    def _draw(self, work: Any, logits: Floats) -> None:
        kept, work.drawn = work.drawn, []
        super()._draw(work, logits)
        work.drawn = [*kept, *work.drawn]


def test_planted_padding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelProposer, "_fitted", PaddingFirst._fitted)
    with pytest.raises(AssertionError):
        test_ids_behind_the_targets_are_never_proposed("token")


def penalised(kind: Callable[..., ModelProposer]) -> bool:
    """Whether a strong frequency penalty keeps a draft from saying a token twice."""
    proposer = kind(drafting(lambda prefix: np.array([0.9, 0.05, 0.05]), 3).model, 3)
    made = toy_engine(random_table(3, 1), 3, proposer)
    seen = drafts_of(made, [1], SamplingParams(k=3, temperature=0, frequency_penalty=30.0, max_tokens=4))
    return sorted(seen[0][1].tokens) == [0, 1, 2]


def test_penalties_advance_inside_the_draft() -> None:
    assert penalised(ModelProposer)
    assert not penalised(FrozenHistory)


def test_planted_short_chunk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = __import__("draftproof.draft.model", fromlist=["_chunk"])
    chunk = module._chunk
    monkeypatch.setattr(module, "_chunk", lambda work, start, end, least: chunk(work, start, end, 1))
    with pytest.raises((AssertionError, StopIteration)):
        test_passes_keep_to_the_draft_models_rows(2, 64)
