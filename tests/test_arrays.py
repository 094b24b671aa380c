"""Laws, rules and noise on PyTorch's tensors: the same as on NumPy's arrays, and no row of a vocabulary leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch_toys  # noqa: E402
from toys import Letters  # noqa: E402

from draftproof import arrays  # noqa: E402
from draftproof.accept import RULES, Rule, excess  # noqa: E402
from draftproof.draft.model import ModelProposer  # noqa: E402
from draftproof.engine import Engine  # noqa: E402
from draftproof.law import LawMaker, LawRows, log_softmax  # noqa: E402
from draftproof.model.base import ModelInfo  # noqa: E402
from draftproof.model.torch import TorchModel, TorchOptions  # noqa: E402
from draftproof.noise import ExponentialRace, StepNoise, hashes  # noqa: E402
from draftproof.scores import score  # noqa: E402
from draftproof.types import Draft, Law, SamplingParams  # noqa: E402

VOCAB = 5000
PROMPT, OUTPUT = (3, 7, 7), (9, 3, 11)
RECIPES = {
    "as it is": SamplingParams(),
    "greedy": SamplingParams(temperature=0),
    "cold": SamplingParams(temperature=0.3),
    "top-k": SamplingParams(top_k=40),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(min_p=0.1),
    "all": SamplingParams(temperature=1.3, top_k=900, top_p=0.95, min_p=0.001),
    "penalties": SamplingParams(repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=-0.2),
    "bias and minimum": SamplingParams(logit_bias={5: 4.0, 9: -8.0}, min_tokens=20, stop_token_ids=(4999, 11)),
}


def logits(seed: int, vocab: int = VOCAB) -> np.ndarray:
    """Rounded, so that there are ties at every border."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0, 3, vocab) * 8).astype(np.float32) / 8


def here(x: Any) -> Any:
    return torch.from_numpy(np.array(x))


def maker(name: str) -> LawMaker:
    return LawMaker(RECIPES[name], frozenset(RECIPES[name].stop_token_ids), VOCAB)


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_law(name: str) -> None:
    for seed in range(20):
        row = logits(seed)
        there, own = (maker(name).law(x, PROMPT, OUTPUT) for x in (here(row), row))
        assert own.total == pytest.approx(there.total, rel=1e-6)
        assert own.dense() == pytest.approx(there.dense(), rel=1e-5, abs=1e-12)
        assert (own.ids is None) == (there.ids is None)
        if own.ids is not None:
            assert own.ids.tolist() == there.ids.tolist()
        token = int(own.dense().argmax())
        assert own.prob(token) == pytest.approx(there.prob(token), rel=1e-5)
        assert (there.prob(4999) == 0.0) == (own.prob(4999) == 0.0)
        assert np.array_equal(row, logits(seed))  # nothing was written to


def test_the_same_scores() -> None:
    for seed in range(5):
        own, there = score(logits(seed), 17, 5), score(here(logits(seed)), 17, 5)
        assert [t for t, _ in own.top] == [t for t, _ in there.top]
        assert own.logprob == pytest.approx(there.logprob, rel=1e-12)
        assert log_softmax(logits(seed)) == pytest.approx(log_softmax(here(logits(seed))).numpy())


def test_the_same_noise() -> None:
    ids = np.arange(0, 200_000, 7)
    for start in (0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15):
        assert np.array_equal(arrays.host_words(hashes(start, here(ids))), hashes(start, ids))
    words = hashes(5, ids)
    for floor in (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, int(words[3])):
        there = arrays.at_least(here(words.view(np.int64)), floor)
        assert np.array_equal(there.numpy(), arrays.at_least(words, floor))


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_winner(name: str) -> None:
    """Of the same law, bit for bit: flat ones, where any token may win, as well."""
    for seed in range(30):
        law = maker(name).law(logits(seed) / (1 + seed % 3), PROMPT, OUTPUT)
        there = Law(law.vocab, None if law.ids is None else here(law.ids), here(law.weights))
        assert ExponentialRace(seed).winner(there) == ExponentialRace(seed).winner(law)


def judged(rule: Rule, name: str, seed: int, p_there: bool, q_there: bool) -> tuple[Draft, Any]:
    """Three drafted tokens and the verdict on them, from the same float32 logits in either place."""
    made, noise = maker(name), StepNoise(seed, len(PROMPT) + len(OUTPUT))
    near = [logits(100 * seed + i) for i in range(4)]
    tokens, laws = list[int](), list[Law]()
    for i in range(3):
        row = near[i] + logits(100 * seed + 50 + i) / 6
        law = made.law(here(row) if q_there else row, PROMPT, [*OUTPUT, *tokens])
        tokens.append(rule.draw(law, noise, i))
        laws.append(law)
    block = np.stack(near)
    draft = Draft(tuple(tokens), tuple(laws))
    rows = LawRows(made, here(block) if p_there else block, PROMPT, list(OUTPUT), tokens)
    return draft, rule.verdict(rows, draft, noise)


@pytest.mark.parametrize(("p_there", "q_there"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("rule", RULES)
def test_the_same_verdict(rule: str, name: str, p_there: bool, q_there: bool) -> None:
    """The weights differ in their last bits, so now and then a uniform may fall between: less than once in 10^5."""
    accepted = 0
    for seed in range(12):
        own, verdict = judged(RULES[rule], name, seed, False, False)
        draft, other = judged(RULES[rule], name, seed, p_there, q_there)
        assert draft.tokens == own.tokens
        assert other == verdict
        accepted += verdict.accepted
    assert accepted > 0 or rule == "sampled"  # which seldom agrees with a draft


def test_residuals_of_laws_with_different_ids() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        ids = [np.sort(rng.choice(60, n, replace=False)) for n in rng.integers(1, 40, 2)]
        p, q = (Law(60, i, rng.random(len(i)) + 0.01) for i in ids)
        plain = np.maximum(p.dense() - q.dense(), 0.0)
        for one, two in ((p, q), (_moved(p), q), (p, _moved(q)), (_moved(p), _moved(q))):
            found = np.zeros(60)
            found[p.ids] = arrays.host(excess(one, two, 1.0))
            assert found == pytest.approx(plain, abs=1e-12)


def _moved(law: Law) -> Law:
    return Law(law.vocab, here(law.ids), here(law.weights))


def model(seed: int, laws_here: bool) -> TorchModel:
    made = torch_toys.made("llama", seed, vocab_size=VOCAB, initializer_range=0.15)
    options = TorchOptions(kv_pages=40, page_size=8, laws_here=laws_here)
    return TorchModel(made, ModelInfo("toy", 0, torch_toys.CONTEXT, 0, 0), options)


class Numbers(Letters):
    def token_bytes(self, token: int) -> bytes:
        return b"."


def engine(target_here: bool, draft_here: bool) -> Engine:
    return Engine(model(0, target_here), Numbers(), ModelProposer(model(0, draft_here), VOCAB), k=3)


def texts(made: Engine, rule: str) -> list[tuple[int, ...]]:
    prompts = [[5, 6, 7], [100, 200], [4000]]
    params = [
        SamplingParams(rule=rule, seed=n, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1, **more)
        for n, more in enumerate([{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 50, "repetition_penalty": 1.2}])
    ]
    outputs = made.generate([list(p) for p in prompts], params)
    assert all(o.error is None for o in outputs)
    assert rule == "sampled" or sum(s.accepted for o in outputs for s in o.steps) > 0
    return [o.tokens for o in outputs]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of all tensors that become NumPy arrays or lists, whoever asks for it."""
    sizes: list[int] = []

    def noted(name: str) -> Any:
        real = getattr(torch.Tensor, name)

        def call(self: Any, *args: Any, **more: Any) -> Any:
            sizes.append(self.numel())
            return real(self, *args, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("numpy", "__array__", "tolist"):
            patch.setattr(torch.Tensor, name, noted(name))
        yield sizes


@pytest.mark.parametrize("rule", RULES)
def test_no_row_of_the_vocabulary_goes_to_the_host(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(True, True)
    with watched(monkeypatch) as sizes:
        found = texts(made, rule)
    assert max(sizes, default=0) < VOCAB / 2
    assert found == texts(engine(False, False), rule)


@pytest.mark.parametrize("places", [(True, False), (False, True)])
def test_draft_and_target_may_lie_in_different_places(places: tuple[bool, bool]) -> None:
    assert texts(engine(*places), "block") == texts(engine(False, False), "block")


def test_planted_rows_on_the_host_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(True, True)
    real = TorchModel.forward

    def forward(self: TorchModel, chunks: Any) -> Any:
        out = real(self, chunks)
        return type(out)(arrays.host(out.logits), out.hidden)

    monkeypatch.setattr(TorchModel, "forward", forward)
    with watched(monkeypatch) as sizes:
        texts(made, "block")
    assert max(sizes) >= VOCAB
