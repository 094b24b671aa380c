"""The default model as a user gets it: faithful to its file, and answering in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from draftproof.engine import Engine
from draftproof.model import fidelity, reference
from draftproof.model.checkpoint import Checkpoint
from draftproof.model.load import Loaded
from draftproof.types import Chunk, Finish, SamplingParams

pytestmark = pytest.mark.model


def test_default_setting_is_faithful(smollm2: Loaded, smollm2_weights: Checkpoint) -> None:
    """The promise is 0.985; the planted fault, every matrix with its minimum rounded to a whole step, is far below."""
    tokens = tuple(smollm2.tokenizer.encode(fidelity.text(), special=False)[:64])
    ours = fidelity.all_logits(smollm2.model, tokens)
    exact = reference.logits(smollm2_weights, tokens)
    result = fidelity.compare(ours, exact)
    assert result.overlap >= 0.985
    assert smollm2.model.info.settings["precision"] != "f32" or result.overlap > 0.9999

    def rounded(name: str) -> np.ndarray:
        w = smollm2_weights.tensor(name)
        if w.ndim == 1 or name == "embed":
            return w
        groups = w.reshape(len(w), -1, 32)
        low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
        step = (high - low) / 15
        return (groups - low + np.rint(low / step) * step).reshape(w.shape)

    faulty = reference.logits(Checkpoint(smollm2_weights.architecture, rounded, "planted"), tokens)
    assert fidelity.compare(faulty, exact).overlap < 0.9


def test_answers_and_ends(real_engine: Callable[..., Engine], smollm2: Loaded) -> None:
    prompt = smollm2.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    output = real_engine("ngram").generate([prompt], SamplingParams(temperature=0, k=4, max_tokens=60))[0]
    assert "Paris" in output.text
    assert output.finish is Finish.STOP
    assert not set(output.tokens) & set(smollm2.model.info.eos_ids)


def test_nan_ends_one_request_only(
    real_engine: Callable[..., Engine], smollm2: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN in one request's rows (case 19)."""
    engine = real_engine("ngram")
    prompts = [smollm2.tokenizer.encode(t) for t in ("One two three", "The sea is", "My name is")]
    params = SamplingParams(temperature=0, k=2, max_tokens=8, ignore_eos=True)
    alone = [real_engine("ngram").generate([p], params)[0].tokens for p in prompts]
    honest = smollm2.model.forward

    def second_only(chunks: list[Chunk]):  # type: ignore[no-untyped-def]
        out = honest(chunks)
        if len(chunks) == 3:
            out.logits[chunks[0].wanted] = math.nan
        return out

    monkeypatch.setattr(smollm2.model, "forward", second_only)
    outputs = engine.generate(prompts, params)
    assert outputs[1].finish is Finish.ERROR
    assert "nan" in str(outputs[1].error)
    assert [outputs[0].tokens, outputs[2].tokens] == [alone[0], alone[2]]
    engine.audit()
    assert engine.pool.held == 0


def test_two_thousand_tokens_need_no_logits_of_all_rows(smollm2: Loaded, real_engine: Callable[..., Engine]) -> None:
    """Largest logits array of a run with a long prompt: the wanted rows, not the prompt's."""
    widest = 0
    honest = smollm2.model.forward

    class Watching:
        info = smollm2.model.info
        copy_pages = smollm2.model.copy_pages

        def forward(self, chunks):  # type: ignore[no-untyped-def]
            nonlocal widest
            out = honest(chunks)
            widest = max(widest, len(out.logits))
            return out

    engine = Engine(Watching(), smollm2.tokenizer)
    prompt = (smollm2.tokenizer.encode(fidelity.text()) * 5)[:2000]
    output = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=2))[0]
    assert len(output.tokens) == 2
    assert widest <= 2
    assert engine.pool.held == 0
