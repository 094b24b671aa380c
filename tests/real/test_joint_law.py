"""On the default model: the joint law of two emitted tokens is the target's, under the token and block rules (I1).

One-sample chi-square test against exact probabilities (the model's own, computed by plain passes), with top-k 6, so
36 cells, pooled at 10 expected. The draft is the model without two of its layers, mean TV about 0.3 from the target.

Each test fails an honest engine with probability 1e-7. With N samples a fault that moves the joint law by TV d has a
non-centrality of at least 4 N d**2; at N = 1,200 that sees d = 0.152, at N = 3,000 d = 0.096, each with power 0.99
(35 degrees of freedom; pooling makes it a little better). The planted fault, a draft that takes the most likely token
and claims its soft law (case 1), moves it by more. Claiming a point mass for a sampled token would not be a fault at
all: any proposal may be judged as a point mass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, ncx2

from draftproof.engine import Engine
from draftproof.law import LawMaker
from draftproof.model.load import Loaded
from draftproof.types import Chunk, Draft, Law, SamplingParams

pytestmark = pytest.mark.model
FALSE_ALARM, POWER, TOP_K, MIN_EXPECTED = 1e-7, 0.99, 6, 10
PARAMS = SamplingParams(temperature=1.0, top_k=TOP_K)
Joint = dict[tuple[int, int], float]


def exact_joint(loaded: Loaded, prompt: list[int]) -> Joint:
    """P(first, second) from plain passes over the prompt and each first token."""
    maker, model = LawMaker(PARAMS, frozenset(), loaded.model.info.vocab), loaded.model

    def law(tokens: list[int]) -> Law:
        pages = tuple(range(-(-len(tokens) // model.info.page_size)))
        return maker.law(model.forward([Chunk(tuple(tokens), 0, pages, 1)]).logits[0], tokens, [])

    first = law(prompt)
    assert first.ids is not None
    joint: Joint = {}
    for x in first.ids:
        second = law([*prompt, int(x)])
        assert second.ids is not None
        joint |= {(int(x), int(y)): first.prob(int(x)) * second.prob(int(y)) for y in second.ids}
    return joint


def sample(engine: Engine, prompt: list[int], rule: str, count: int) -> Counter[tuple[int, int]]:
    """The first two of three tokens, so that draft lengths 2 and then fewer take part."""
    seen: Counter[tuple[int, int]] = Counter()
    for start in range(0, count, 200):
        params = [
            SamplingParams(top_k=TOP_K, rule=rule, k=2, seed=i, max_tokens=3, ignore_eos=True)
            for i in range(start, min(start + 200, count))
        ]
        seen.update(o.tokens[:2] for o in engine.generate([prompt] * len(params), params))  # type: ignore[misc]
    return seen


def p_value(joint: Joint, seen: Counter[tuple[int, int]]) -> float:
    """Chi-square with rare cells pooled; 0 if something impossible was seen."""
    count = seen.total()
    if set(seen) - set(joint):
        return 0.0
    cells = sorted(joint, key=lambda c: joint[c])
    expected = np.array([joint[c] * count for c in cells])
    observed = np.array([float(seen[c]) for c in cells])
    rare = int(np.searchsorted(np.cumsum(expected), MIN_EXPECTED)) + 1  # the rarest cells, to 10 expected together
    rare = max(rare, int((expected < MIN_EXPECTED).sum()))
    expected, observed = _pool(expected, rare), _pool(observed, rare)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, len(expected) - 1))


def _pool(cells: NDArray[np.float64], rare: int) -> NDArray[np.float64]:
    return np.concatenate([[cells[:rare].sum()], cells[rare:]])


def detectable_tv(count: int, cells: int = TOP_K * TOP_K) -> float:
    """Smallest TV that is seen with POWER: chi-square distance is at least (2 TV)**2."""
    bar = chi2.isf(FALSE_ALARM, cells - 1)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ncx2.sf(bar, cells - 1, middle) < POWER else (low, middle)
    return float(np.sqrt(high / (4 * count)))


def prompt_of(loaded: Loaded) -> list[int]:
    return loaded.tokenizer.encode("The best thing about the city is")


def check(make: Callable[..., Engine], loaded: Loaded, rule: str, count: int) -> None:
    prompt = prompt_of(loaded)
    joint = exact_joint(loaded, prompt)
    assert sum(joint.values()) == pytest.approx(1)
    assert p_value(joint, sample(make("model", max_running=20), prompt, rule, count)) > FALSE_ALARM


@pytest.mark.parametrize("rule", ["block", "token"])
def test_joint_law(rule: str, real_engine: Callable[..., Engine], smollm2: Loaded) -> None:
    assert detectable_tv(1200) < 0.152
    check(real_engine, smollm2, rule, 1200)


@pytest.mark.slow
def test_joint_law_at_length(real_engine: Callable[..., Engine], smollm2: Loaded) -> None:
    assert detectable_tv(3000) < 0.097
    check(real_engine, smollm2, "block", 3000)


def test_planted_fault_is_seen(
    real_engine: Callable[..., Engine], smollm2: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 1: the draft proposes the most likely token and hands out the whole law."""
    engine, prompt = real_engine("model", max_running=20), prompt_of(smollm2)
    honest = engine.proposer.propose

    def greedy(asks):  # type: ignore[no-untyped-def]
        laws = [d.laws[:1] for d in honest(asks)]
        return [Draft(tuple(int(q.dense().argmax()) for q in some), some) for some in laws]

    monkeypatch.setattr(engine.proposer, "propose", greedy)
    assert p_value(exact_joint(smollm2, prompt), sample(engine, prompt, "token", 600)) < FALSE_ALARM
