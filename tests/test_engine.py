"""The engine's public names: add, step, generate, stream, abort, and what a request's record says.

Exactness, order, lifecycle, ends, streams and refusals each have a file in tests/engine.
"""

from __future__ import annotations

import numpy as np
import pytest
from toys import drafting, finished, random_table, scripted, toy_engine

from draftproof.accept import RULES
from draftproof.admission import DEFAULT_K, rule_named
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.none import NoProposer
from draftproof.engine import Engine
from draftproof.length.learned import Step
from draftproof.lossy import Lenience
from draftproof.types import Finish, Kind, RequestError, Run, SamplingParams, SequenceView

VOCAB = 5
TARGET, DRAFT = random_table(VOCAB, 1), random_table(VOCAB, 2)


def engine(**info: int) -> Engine:
    return toy_engine(TARGET, VOCAB, drafting(DRAFT, VOCAB), **info)


def test_one_prompt_or_many_as_text_or_tokens() -> None:
    params = SamplingParams(seed=1, max_tokens=5)
    (one,) = engine().generate([0, 1], params)
    (text,) = engine().generate("ab", params)
    many = engine().generate(["ab", [0, 1], "ab"], params)
    assert (one.prompt, len(one.tokens), len(one.text)) == ((0, 1), 5, 5)
    assert {o.tokens for o in [text, *many]} == {one.tokens}
    assert [o.request for o in many] == [0, 1, 2]


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    lengths = [9, 1, 5, 3]
    outputs = engine(max_running=2).generate([[n] for n in range(4)], [SamplingParams(max_tokens=n) for n in lengths])
    assert [(o.prompt, len(o.tokens)) for o in outputs] == [((n,), length) for n, length in enumerate(lengths)]


def test_draft_length_and_rule_by_default() -> None:
    assert DEFAULT_K == 4
    assert len(engine().generate([[1]])[0].steps[0].proposed) == 4
    assert len(engine().generate([[1]], SamplingParams(k=2))[0].steps[0].proposed) == 2
    assert rule_named(SamplingParams().rule) is RULES["block"]
    assert rule_named("lenience:2") == Lenience(2.0)
    with pytest.raises(RequestError, match=r"exact: token, block, sampled, coupled; lossy, .*: lenience, typical"):
        rule_named("exact")


@pytest.mark.parametrize("proposer", [None, NoProposer()])
def test_without_a_proposer_it_decodes_plainly_and_says_so(proposer: NoProposer | None) -> None:
    made = toy_engine(TARGET, VOCAB, proposer)
    assert not made.speculates
    assert engine().speculates
    output = made.generate([[1]], SamplingParams(max_tokens=7))[0]
    assert set(output.kinds) == {Kind.BONUS}
    assert [s.proposed for s in output.steps] == [()] * 7


def test_an_idle_engine_does_nothing() -> None:
    made = engine()
    assert (made.busy, made.step()) == (False, [])
    made.audit()


def test_draft_equal_to_the_target_is_always_accepted() -> None:
    """Case 24."""
    for rule in ("token", "block", "coupled"):
        made = toy_engine(TARGET, VOCAB, drafting(TARGET, VOCAB))
        output = made.generate([[1, 2]], SamplingParams(k=3, rule=rule, seed=1, max_tokens=40))[0]
        assert output.kinds.count(Kind.ACCEPTED) == 30
        assert len(output.steps) == 10


def test_draft_disjoint_from_the_target_is_never_accepted() -> None:
    """Case 24."""
    for rule in RULES:
        made = toy_engine(
            lambda prefix: np.array([0.5, 0.5, 0, 0]), 4, drafting(lambda p: np.array([0, 0, 0.5, 0.5]), 4)
        )
        output = made.generate([[1, 2]], SamplingParams(k=3, rule=rule, seed=1, max_tokens=12))[0]
        assert Kind.ACCEPTED not in output.kinds
        assert set(output.tokens) == {0, 1}


def test_the_record_of_a_request() -> None:
    text = [0, 1, 2, 0, 1, 2, 0, 1, 3]
    made = toy_engine(scripted(text, VOCAB, 1), VOCAB, NgramProposer(VOCAB, 2, 2))
    output = made.generate([[4]], SamplingParams(temperature=0, k=3, max_tokens=9))[0]
    assert list(output.tokens) == text
    assert [(s.origin, s.proposed, s.accepted, s.emitted, s.kind) for s in output.steps] == [
        (1, (), 0, (0,), Kind.BONUS),
        (2, (), 0, (1,), Kind.BONUS),
        (3, (), 0, (2,), Kind.BONUS),
        (4, (), 0, (0,), Kind.BONUS),
        (5, (), 0, (1,), Kind.BONUS),
        (6, (2, 0, 1), 3, (2, 0, 1, 3), Kind.BONUS),
    ]
    assert [s.request for s in output.steps] == [0] * 6
    assert all(s.batch == 1 and min(s.seconds) >= 0 and s.seconds.total > 0 for s in output.steps)


def test_a_length_policy_sees_runs_and_decides_lengths() -> None:
    class Falling:
        adapts = False

        def __init__(self) -> None:
            self.runs: list[Run] = []
            self.gone: list[int] = []
            self.rows: list[int] = []
            self.asked: list[float] = []

        def timed(self, step: Step) -> None:
            assert step.verify > 0
            self.rows.append(step.rows)
            self.asked.append(step.k)

        def choose(self, view: SequenceView, batch: int, most: int) -> int:
            return max(0, min(most, 3 - len(self.runs)))

        def prices(self, view: SequenceView) -> None: ...

        def observe(self, view: SequenceView, run: Run) -> None:
            self.runs.append(run)

        def forget(self, request: int) -> None:
            self.gone.append(request)

    policy = Falling()
    made = Engine(engine().target, engine().tokenizer, drafting(DRAFT, VOCAB), lengths=policy)
    output = made.generate([[1]], SamplingParams(max_tokens=20, seed=1))[0]
    assert [len(s.proposed) for s in output.steps][:5] == [3, 2, 1, 0, 0]
    assert tuple(t for run in policy.runs for t in run.tokens) == output.tokens
    assert policy.gone == [output.request]
    assert policy.rows == [1 + len(s.proposed) for s in output.steps]
    assert policy.asked == [0, *(len(s.proposed) for s in output.steps[1:])]


def test_abort_returns_what_was_said() -> None:
    made = engine()
    name = made.add([1], SamplingParams(seed=1, max_tokens=30))
    first = made.step()[0]
    output = made.abort(name)
    assert output is not None
    assert (output.tokens, output.finish) == (first.tokens, Finish.ABORT)
    assert finished(made) == {}


def test_tokens_before_and_after_the_context_end() -> None:
    output = engine(context=8).generate([[1] * 5], SamplingParams(max_tokens=50, k=4))[0]
    assert (len(output.tokens), output.finish) == (3, Finish.LENGTH)
