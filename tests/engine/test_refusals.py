"""I12: what cannot be honoured is refused by name and nothing is queued; a numerical fault ends one request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from toys import drafting, finished, random_table, toy_engine

from draftproof.draft.base import Proposer
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.prediction import PredictionProposer
from draftproof.engine import Engine
from draftproof.types import Chunk, Finish, RequestError, SamplingParams

VOCAB = 5


def engine(proposer: Proposer | None = None, **info: int) -> Engine:
    return toy_engine(random_table(VOCAB, 1), VOCAB, proposer, **info)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {  # prompt, parameters, what the message must say
    "empty prompt": ([], {}, "prompt is empty"),
    "empty text": ("", {}, "prompt is empty"),
    "prompt as long as the context": ([1] * 20, {}, "prompt has 20 tokens, the context 20"),
    "token behind the vocabulary": ([1, 5], {}, "prompt holds token 5"),
    "negative token": ([-1], {}, "prompt holds token -1"),
    "unknown rule": ([1], {"rule": "best"}, "rule='best' is unknown"),
    "empty rule": ([1], {"rule": ""}, "rule='' is unknown"),
    "lossy rule without its parameter": ([1], {"rule": "lenience"}, "rule='lenience'"),
    "lossy parameter is no number": ([1], {"rule": "lenience:much"}, "rule='lenience:much'"),
    "lenience of 1": ([1], {"rule": "lenience:1"}, "lenience must be a number above 1"),
    "lenience is not a number": ([1], {"rule": "lenience:nan"}, "lenience must be a number above 1"),
    "typical out of range": ([1], {"rule": "typical:1.5"}, "typical needs epsilon and delta"),
    "bias of an unknown token": ([1], {"logit_bias": {5: 1.0}}, "logit_bias names token 5"),
    "unknown stop token": ([1], {"stop_token_ids": (7,)}, "stop_token_ids names token 7"),
    "more than the step's rows": ([1], {"k": 31}, "k=31 does not fit into a step of 31 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    prompt, params, message = REFUSED[name]
    made = engine(NgramProposer(VOCAB), context=20, max_rows=31)
    kept = made.add([1], SamplingParams(max_tokens=2, k=0))
    for ask in (made.add, made.stream):
        with pytest.raises(RequestError, match=message):
            ask(prompt, SamplingParams(**params))
    with pytest.raises(RequestError, match=message):
        made.generate([[1], prompt], [SamplingParams(), SamplingParams(**params)])
    assert (list(made._live), len(made.scheduler.waiting), made._mail) == ([kept], 1, {})
    assert finished(made)[kept].finish is Finish.LENGTH


def test_a_draft_length_without_a_draft_is_refused() -> None:
    with pytest.raises(RequestError, match="k=3, but no draft is loaded"):
        engine().add([1], SamplingParams(k=3))
    assert engine().generate([[1]], SamplingParams(k=0, max_tokens=2))[0].finish is Finish.LENGTH
    assert engine().generate([[1]], SamplingParams(max_tokens=2))[0].finish is Finish.LENGTH


def test_a_prediction_needs_its_proposer() -> None:
    with pytest.raises(RequestError, match="draft='prediction'"):
        engine(NgramProposer(VOCAB)).add([1], SamplingParams(), prediction=[1, 2])
    made = engine(PredictionProposer(VOCAB))
    with pytest.raises(RequestError, match="prediction holds token 9"):
        made.add([1], SamplingParams(), prediction=[1, 9])
    made.add([1], SamplingParams(), prediction=[1, 2])


def test_a_request_for_more_pages_than_there_are_is_refused() -> None:
    made = engine(pages=5, context=64)
    assert made.context == 19
    with pytest.raises(RequestError, match="prompt has 30 tokens"):
        made.add([1] * 30)
    output = made.generate([[1] * 10], SamplingParams(max_tokens=50))[0]
    assert (len(output.tokens), output.finish) == (9, Finish.LENGTH)


def test_params_and_prompts_must_be_as_many() -> None:
    with pytest.raises(RequestError, match="2 params for 1 prompts"):
        engine().generate([[1]], [SamplingParams(), SamplingParams()])
    assert engine().generate([]) == []


# numerical faults


class Poison:
    """Replaces logits of rows whose sequence holds a given token."""

    def __init__(self, model: Any, bad: int, value: float) -> None:
        self.forward, self.bad, self.value = model.forward, bad, value
        model.forward = self

    def __call__(self, chunks: Sequence[Chunk]) -> Any:
        out, row = self.forward(chunks), 0
        for chunk in chunks:
            for i in range(len(chunk.tokens) - chunk.wanted, len(chunk.tokens)):
                if self.bad in chunk.tokens[: i + 1]:
                    out.logits[row, 1] = self.value
                row += 1
        return out


@pytest.mark.parametrize("rule", ["token", "block", "sampled", "coupled", "lenience:2", "typical:0.1"])
@pytest.mark.parametrize("side", ["target", "draft"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_numerical_fault_ends_one_request(side: str, rule: str, value: float) -> None:
    """Case 19. Token 4 makes NaN from its row on: at the first row of one request, inside a block of others."""
    params = [SamplingParams(k=3, rule=rule, seed=i, max_tokens=9, logit_bias={4: -3.0}) for i in range(8)]
    prompts = [[4, 1]] + [[1, i % 4] for i in range(7)]

    def made() -> Engine:
        return engine(drafting(random_table(VOCAB, 2), VOCAB))

    clean = made().generate(prompts, params)
    poisoned = made()
    Poison(poisoned.target if side == "target" else poisoned.proposer.model, 4, value)  # type: ignore[attr-defined]
    outputs = poisoned.generate(prompts, params)
    assert poisoned.pool.free == poisoned.pool.total
    poisoned.proposer.audit()  # type: ignore[attr-defined]
    assert outputs[0].finish is Finish.ERROR
    assert outputs[0].tokens == ()
    assert "logits whose largest is" in str(outputs[0].error)
    assert side == "target" or str(outputs[0].error).startswith("draft model")
    whole = [o for o in outputs if o.finish is not Finish.ERROR]
    assert len(whole) >= 2
    for o, c in zip(outputs, clean, strict=True):
        assert o.tokens == c.tokens[: len(o.tokens)]
        assert (o.finish, o.error) == (c.finish, None) or o.finish is Finish.ERROR


def test_a_mask_on_every_token_is_an_error_of_the_request() -> None:
    made = engine()
    params = SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), -np.inf))
    outputs = made.generate([[1], [1]], [params, SamplingParams(max_tokens=3)])
    assert [o.finish for o in outputs] == [Finish.ERROR, Finish.LENGTH]
    assert "every token is masked" in str(outputs[0].error)


def test_a_shorter_draft_context_ends_the_draft_not_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Case 32: said once, and the text is what it would be."""
    params = SamplingParams(k=3, rule="coupled", seed=2, max_tokens=30)
    plain = engine().generate([[1, 2]], SamplingParams(k=0, rule="coupled", seed=2, max_tokens=30))[0]
    made = engine(drafting(random_table(VOCAB, 2), VOCAB, context=12))
    with caplog.at_level(logging.WARNING):
        outputs = made.generate([[1, 2]] * 2, params)
    assert [o.tokens for o in outputs] == [plain.tokens] * 2
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "12 tokens is full" in caplog.text
    proposed = [s for s in outputs[0].steps if s.proposed]
    assert proposed
    assert all(bool(s.proposed) == (s.origin + 3 <= 12) for s in outputs[0].steps[:-1])
    made.proposer.audit()  # type: ignore[attr-defined]
