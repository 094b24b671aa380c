"""On the default model, speculation and batching change no bit of the text (I8), where the load promises it.

Coupled rule at temperature 0.8, greedy at 0; draft lengths 0 to 8; n-gram and model drafts; alone, and in batches of
eight on a pool so tight that sequences are preempted. A fault in noise keys, KV roll-back or row order ends in another
text within a few tokens: the planted ones below show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from prompts_real import PROMPTS

from draftproof.engine import Engine
from draftproof.model.load import Loaded
from draftproof.noise import StepNoise
from draftproof.scheduler import Item
from draftproof.types import Chunk, Draft, SamplingParams

pytestmark = pytest.mark.model
Make = Callable[..., Engine]
Tokens = list[tuple[int, ...]]


def run(engine: Engine, prompts: list[list[int]], k: int, temperature: float, length: int) -> Tokens:
    params = [
        SamplingParams(temperature=temperature, rule="coupled", k=k, seed=100 + i, max_tokens=length, ignore_eos=True)
        for i in range(len(prompts))
    ]
    outputs = engine.generate(prompts, params)
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    return [o.tokens for o in outputs]


def alone(make: Make, draft: str, prompts: list[list[int]], k: int, temperature: float, length: int) -> Tokens:
    return run(make(draft, max_running=1), prompts, k, temperature, length)


def chats(loaded: Loaded, count: int) -> list[list[int]]:
    return [loaded.tokenizer.chat([{"role": "user", "content": p}]) for p in PROMPTS[:count]]


def check(make: Make, loaded: Loaded, count: int, length: int, lengths: tuple[int, ...], temperature: float) -> None:
    if not loaded.model.info.bitwise:
        pytest.skip("this configuration does not promise bitwise rows")
    prompts = chats(loaded, count)
    plain = alone(make, "none", prompts, 0, temperature, length)
    assert run(make("none", pages=24), prompts, 0, temperature, length) == plain
    for draft in ("ngram", "model"):
        for k in lengths:
            assert alone(make, draft, prompts, k, temperature, length) == plain, f"{draft}, k={k}, alone"
            assert run(make(draft, pages=24), prompts, k, temperature, length) == plain, f"{draft}, k={k}, batch of 8"


@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_few_prompts(real_engine: Make, smollm2: Loaded, temperature: float) -> None:
    check(real_engine, smollm2, count=8, length=16, lengths=(1, 4), temperature=temperature)


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "k"), [(0.8, 4), (0.0, 8)])
def test_twenty_prompts(real_engine: Make, smollm2: Loaded, temperature: float, k: int) -> None:
    check(real_engine, smollm2, count=20, length=64, lengths=(k,), temperature=temperature)


def _positions_off(engine: Engine) -> None:
    """Draft rows get the rotary position of the row behind them."""
    from draftproof import step

    honest = step._chunk

    def shifted(item: Item, draft: Draft, rows: Sequence[int]) -> Chunk:
        fed = item.end - item.start
        return replace(honest(item, draft, rows), depths=tuple(j + (j >= fed) for j in range(len(rows))))

    engine.planted = [(step, "_chunk", shifted)]  # type: ignore[attr-defined]


def _noise_by_step(engine: Engine) -> None:
    """Race keys that count steps instead of positions."""
    counter = iter(range(10**9))
    honest = StepNoise.race
    engine.planted = [(StepNoise, "race", lambda self, offset: honest(self, offset + 7 * next(counter)))]  # type: ignore[attr-defined]


@pytest.fixture
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], Engine]:
    def plant(engine: Engine) -> Engine:
        request.param(engine)
        for owner, name, value in engine.planted:  # type: ignore[attr-defined]
            monkeypatch.setattr(owner, name, value)
        return engine

    return plant


@pytest.mark.parametrize("faulty", [_positions_off, _noise_by_step], indirect=True, ids=["positions", "noise by step"])
def test_planted_faults_are_seen(faulty: Callable[[Engine], Engine], real_engine: Make, smollm2: Loaded) -> None:
    prompts = chats(smollm2, 2)
    plain = alone(real_engine, "none", prompts, 0, 0.8, 24)
    assert run(faulty(real_engine("model", max_running=1)), prompts, 4, 0.8, 24) != plain
