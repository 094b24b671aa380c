"""The oracle's law of a token against the engine's, which shares no code with it, and its warnings of near ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from verify_params import engines

from draftproof.law import LawMaker
from draftproof.verify import oracle, toy
from draftproof.verify.contract import Floats, Params, World

Tokens = tuple[int, ...]
VOCAB = 12


# the law of one token


@dataclass(frozen=True)
class Case:
    logits: Floats
    params: Params
    prompt: Tokens
    output: Tokens
    stop: frozenset[int]


def _params(rng: np.random.Generator) -> Params:
    def some(value: Any, neutral: Any) -> Any:
        return value if rng.random() < 0.5 else neutral

    return Params(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 1.7])),
        top_k=some(int(rng.integers(1, VOCAB + 2)), 0),
        top_p=some(float(rng.uniform(0.1, 1.0)), 1.0),
        min_p=some(float(rng.uniform(0.0, 0.5)), 0.0),
        repetition_penalty=some(float(rng.uniform(0.6, 1.8)), 1.0),
        presence_penalty=some(float(rng.normal()), 0.0),
        frequency_penalty=some(float(rng.normal()), 0.0),
        logit_bias=some(((2, float(rng.normal())), (5, -np.inf)), ()),
        min_tokens=some(int(rng.integers(0, 4)), 0),
        max_tokens=8,
    )


def _tokens(rng: np.random.Generator, most: int) -> Tokens:
    return tuple(int(t) for t in rng.integers(0, VOCAB, rng.integers(0, most)))


@cache
def cases() -> tuple[Case, ...]:
    """Random logits and histories. Every third has whole numbers for logits, so that ties are everywhere."""
    rng, made = np.random.default_rng(11), []
    for n in range(600):
        logits = rng.integers(-2, 3, VOCAB).astype(float) if n % 3 == 0 else 2.0 * rng.normal(size=VOCAB)
        stop = frozenset(int(t) for t in rng.integers(0, VOCAB, 2))
        made.append(Case(logits, _params(rng), _tokens(rng, 4), _tokens(rng, 5), stop))
    return tuple(made)


def disagreement(law: Callable[..., Floats]) -> float:
    """Largest distance of a law from the engine's."""
    worst = 0.0
    for c in cases():
        theirs = LawMaker(engines(c.params), c.stop, VOCAB).law(c.logits, c.prompt, c.output).dense()
        ours = law(c.logits, c.params, c.prompt, c.output, c.stop)
        worst = max(worst, float(np.abs(ours - theirs).sum()) / 2)
    return worst


def test_the_law_is_the_engines() -> None:
    assert disagreement(oracle.law) < 1e-6


def _swapped(first: str, second: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        a, b = getattr(oracle, first), getattr(oracle, second)
        patch.setattr(oracle, first, b)
        patch.setattr(oracle, second, a)

    return plant


def _history(name: str, change: Callable[[Tokens, Tokens], tuple[Tokens, Tokens]]) -> Any:
    def plant(patch: pytest.MonkeyPatch) -> None:
        honest = getattr(oracle, name)
        patch.setattr(oracle, name, lambda z, params, prompt, output: honest(z, params, *change(prompt, output)))

    return plant


def _high_ids_first(patch: pytest.MonkeyPatch) -> None:
    honest = oracle._kept
    patch.setattr(oracle, "_kept", lambda z, params: (honest(z[::-1], params)[0][::-1], 0.0))


def _in_turns(*turns: Sequence[str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Temperature and filters in another order: each turn applies only the named ones."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        honest, neutral = oracle._kept, Params()

        def kept(z: Floats, params: Params) -> tuple[Floats, float]:
            if params.temperature == 0:
                return honest(z, params)
            for names in turns:
                probs, _ = honest(z, replace(neutral, **{name: getattr(params, name) for name in names}))
                with np.errstate(divide="ignore"):
                    z = np.log(probs)
            return probs, 0.0

        patch.setattr(oracle, "_kept", kept)

    return plant


def _late(patch: pytest.MonkeyPatch) -> None:
    honest = oracle._adjusted
    patch.setattr(oracle, "_adjusted", lambda z, p, *rest: honest(z, replace(p, min_tokens=p.min_tokens - 1), *rest))


LAW_FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "counts before repetition": _swapped("_repetition", "_counts"),
    "bias after repetition": _swapped("_bias", "_repetition"),
    "repetition without the prompt": _history("_repetition", lambda prompt, output: ((), output)),
    "counts with the prompt": _history("_counts", lambda prompt, output: (prompt, prompt + output)),
    "counts without the last token": _history("_counts", lambda prompt, output: (prompt, output[:-1])),
    "the higher id among equals": _high_ids_first,
    "top-p before top-k": _in_turns(["temperature"], ["top_p"], ["top_k"], ["min_p"]),
    "min-p first": _in_turns(["temperature"], ["min_p"], ["top_k"], ["top_p"]),
    "temperature last": _in_turns(["top_k", "top_p", "min_p"], ["temperature"]),
    "stop tokens let go one too early": _late,
}


@pytest.mark.parametrize("fault", LAW_FAULTS)
def test_faults_of_the_law_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    LAW_FAULTS[fault](monkeypatch)
    assert disagreement(oracle.law) > 1e-3


def test_turns_in_the_right_order_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_turns(["temperature"], ["top_k"], ["top_p"], ["min_p"])(monkeypatch)
    assert disagreement(oracle.law) < 1e-6


def test_an_array_that_is_given_stays_as_it_is() -> None:
    case = cases()[1]
    before = case.logits.copy()
    oracle.law(case.logits, Params(logit_bias=((1, 2.0),), repetition_penalty=1.3), (1, 2), (3,), frozenset())
    np.testing.assert_array_equal(case.logits, before)


# close choices


@pytest.mark.parametrize(
    ("params", "least"),
    [
        (Params(temperature=0.0), 0.05),
        (Params(), np.inf),
        (Params(top_k=2), 0.3),
        (Params(top_k=1, temperature=0.5), 0.1),
        (Params(top_k=5), np.inf),  # what comes next is impossible
        (Params(min_p=np.exp(-0.35) + 0.01), 0.01),
    ],
)
def test_margins_by_hand(params: Params, least: float) -> None:
    logits = np.array([1.0, -0.4, 0.95, 0.65, -0.7, -np.inf])
    assert oracle.margin(logits, params, (), (), frozenset()) == pytest.approx(least)


@pytest.mark.parametrize(("top_p", "least"), [(0.57, 0.02), (0.60, 0.05), (0.86, 0.04)])
def test_margins_of_top_p_by_hand(top_p: float, least: float) -> None:
    logits = np.log([0.2, 0.1, 0.3, 0.25, 0.15])  # largest first: 0.3, 0.55, 0.75, 0.9, 1
    assert oracle.margin(logits, Params(top_p=top_p), (), (), frozenset()) == pytest.approx(least)


FILTERS = (
    Params(temperature=0.0, max_tokens=6),
    Params(top_k=3),
    Params(top_p=0.8, temperature=1.3),
    Params(min_p=0.2, top_p=0.9, frequency_penalty=0.3),
)


def moved(world: World, prompt: Tokens, params: Params, length: int) -> float:
    """How far the joint law moves when logits are off by as much as float32 may be."""

    def noisy(prefix: Tokens) -> Floats:
        logits = world.target(prefix)
        return logits + 2e-5 * np.random.default_rng(list(prefix)).uniform(-1, 1, len(logits))

    law, other = (oracle.joint(w, prompt, params, length) for w in (world, replace(world, target=noisy)))
    return sum(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in law.keys() | other.keys()) / 2


def _nearly_tied(world: World) -> World:
    """The same world with its two largest logits 1e-5 apart."""

    def target(prefix: Tokens) -> Floats:
        logits = world.target(prefix).copy()
        best, second = np.argsort(-logits)[:2]
        logits[second] = logits[best] - 1e-5
        return logits

    return replace(world, target=target)


@pytest.mark.parametrize("name", toy.RECIPES)
def test_on_clear_prompts_rounding_changes_nothing(name: str) -> None:
    world = toy.world(toy.pair(name))
    for prompt in oracle.clear_prompts(world, FILTERS, 2, 4):
        assert all(2 <= len(prompt) <= 9 and t in toy.VISIBLE for t in prompt)
        assert max(moved(world, prompt, params, 2) for params in FILTERS) < 1e-4
        assert min(oracle.narrowest(world, prompt, params, 2) for params in FILTERS) > oracle.CLEAR


def test_near_ties_are_seen() -> None:
    world = _nearly_tied(toy.world(toy.pair()))
    with pytest.raises(ValueError, match="are clear"):
        oracle.clear_prompts(world, FILTERS[:1], 2, 2)
    greedy = [moved(world, prompt, FILTERS[0], 2) for prompt in _prompts(20)]
    assert max(greedy) == 1.0
    assert oracle.narrowest(world, (4, 5), FILTERS[0], 6) <= 1e-5 + 1e-12


def _prompts(count: int) -> Iterator[Tokens]:
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield tuple(int(t) for t in rng.choice(toy.VISIBLE, 3))
