"""On the default model a prefix that is found changes no bit of a text or a log-probability (I8).

Under the coupled rule, and under the block rule with the shipped head, whose drafts read states of the prompt.
"""

from __future__ import annotations

import pytest
from prompts_real import PROMPTS

from draftproof.draft.ngram import NgramProposer
from draftproof.engine import Engine
from draftproof.loading import load
from draftproof.model.load import Loaded, ModelOptions
from draftproof.types import Output, SamplingParams

pytestmark = pytest.mark.model
SYSTEM = "You answer in one short sentence. " * 12


def chats(engine: Engine) -> list[list[int]]:
    asked = [{"role": "system", "content": SYSTEM}]
    return [engine.tokenizer.chat([*asked, {"role": "user", "content": p}]) for p in PROMPTS[:4]]


def said(engine: Engine, params: SamplingParams, together: bool) -> list[tuple[object, ...]]:
    prompts = chats(engine)
    groups = [prompts] if together else [[p] for p in prompts]
    outputs: list[Output] = [o for group in groups for o in engine.generate(group, params)]
    engine.audit()
    return [(o.tokens, o.logprobs) for o in outputs]


def check(cold: Engine, warm: Engine, params: SamplingParams) -> None:
    if not cold.target.info.bitwise:
        pytest.skip("this configuration does not promise bitwise rows")
    expected = said(cold, params, together=False)
    for together in (False, True, False):
        assert said(warm, params, together) == expected
    assert warm.generate([chats(warm)[0]], params)[0].cached >= 96


def test_the_coupled_rule(smollm2: Loaded) -> None:
    made = [
        Engine(smollm2.model, smollm2.tokenizer, NgramProposer(smollm2.model.info.vocab, 1, 4), prefix_cache=on)
        for on in (False, True)
    ]
    check(made[0], made[1], SamplingParams(max_tokens=12, seed=3, k=3, rule="coupled", logprobs=2))


def test_the_block_rule_with_the_shipped_head() -> None:
    warm = load("smollm2", k=3, options=ModelOptions(kv_bytes=256 << 20), prefix_cache=True)
    cold = Engine(warm.target, warm.tokenizer, warm.proposer, k=3)
    check(cold, warm, SamplingParams(max_tokens=12, seed=3, k=3, rule="block", logprobs=2))
