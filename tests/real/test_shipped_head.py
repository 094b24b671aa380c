"""The head that comes with the default model: it loads, drafts, and leaves every text as plain decoding has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prompts_real import PROMPTS

from draftproof import load
from draftproof.drafts import SHIPPED
from draftproof.engine import Engine
from draftproof.model.load import ModelOptions
from draftproof.types import SamplingParams

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load("smollm2", options=ModelOptions(kv_pages=64))


def test_it_is_the_default_and_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED["smollm2"].iterdir()) < 30e6


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_plain_decodings_bit_for_bit(engine: Engine, temperature: float) -> None:
    """Alone with k = 3, and all in one batch, against k = 0; and the draft stood often enough to have mattered."""
    assert engine.settings["draft"] == "combined"
    prompts = [engine.tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS[:4]]
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=3, rule="coupled")
    plain = [engine.generate(p, replace(params, k=0))[0].tokens for p in prompts]
    assert [engine.generate(p, params)[0].tokens for p in prompts] == plain
    together = engine.generate(prompts, params)
    assert [o.tokens for o in together] == plain
    assert sum(s.accepted for o in together for s in o.steps) >= 5
    engine.audit()
