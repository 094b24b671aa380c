"""Drafts with another tokenizer: exact by enumeration, drawn from the law that is stated, useless ones refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from enumerated import Case, Outcome, case, distance, emitted
from tiny_models import TINY, TOKENS, TYPES, write_gguf
from toys import Table, finished, random_table, toy_engine

from draftproof import ModelOptions, SamplingParams, load
from draftproof.accept import RULES
from draftproof.draft.shared import SharedProposer, Translation
from draftproof.model.checkpoint import ModelError
from draftproof.model.load import load_model
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.model.vocabulary import common
from draftproof.verify.enumerate import law_of

EXACT = 1e-6
# The draft knows the target's tokens 0 and 2 as its 2 and 1, has a token 0 and 3 of its own, and says 1 as "0 0".
SHARED = Translation(np.array([0, 2]), np.array([2, 1]), ((2,), (0, 0), (1,)))
CASES = {
    "one draft": case(3, 1, max_tokens=3),
    "two drafts": case(3, 2, max_tokens=3),
    "penalties": case(3, 2, max_tokens=3, frequency_penalty=0.8, presence_penalty=0.4),
    "filters": case(3, 2, max_tokens=3, top_k=2, temperature=0.7),
}


def proposer(kind: type[SharedProposer] = SharedProposer, table: Table | None = None) -> SharedProposer:
    model = TabularModel(table or random_table(4, 2), tabular_info(4))
    return kind(model, 3, SHARED, (1.0, 1.0))


class NotRenormalised(SharedProposer):
    """The stated law keeps the mass that tokens of the draft's own had."""

    def _draw(self, work: Any, logits: Any) -> None:
        super()._draw(work, logits)
        weights = np.exp(logits - logits.max())
        work.laws[-1].total /= float(weights[self._shared.draft].sum() / weights.sum())


def error(chosen: Case, rule: str, kind: type[SharedProposer]) -> float:
    def run(path: Any) -> Outcome:
        return emitted(chosen, rule, path, proposer(kind))

    return distance(chosen, law_of(run))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CASES)
def test_law_of_the_engine_is_the_targets(name: str, rule: str) -> None:
    assert error(CASES[name], rule, SharedProposer) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_planted_law_without_renormalisation_is_seen(rule: str) -> None:
    assert error(CASES["two drafts"], rule, NotRenormalised) > 1e-3


def test_the_law_is_the_drafts_restricted_and_renormalised() -> None:
    """Behind [0, 1] the draft was fed 2, 0, 0."""
    table = random_table(4, 2)
    made = toy_engine(random_table(3, 1), 3, proposer(table=table))
    seen = []
    propose = made.proposer.propose
    made.proposer.propose = lambda asks: seen.extend(drafts := propose(asks)) or drafts  # type: ignore[method-assign]
    made.add([0, 1], SamplingParams(k=2, seed=1, max_tokens=3))
    finished(made)
    expected = table((2, 0, 0))[[2, 1]]
    law = seen[0].laws[0].dense()
    assert law[[0, 2]] == pytest.approx(expected / expected.sum(), rel=1e-5)
    assert law[1] == 0.0
    second = table((2, 0, 0, 2 if seen[0].tokens[0] == 0 else 1))[[2, 1]]
    assert seen[0].laws[1].dense()[[0, 2]] == pytest.approx(second / second.sum(), rel=1e-5)


def test_text_before_which_the_draft_wants_a_token() -> None:
    shared = Translation(SHARED.target, SHARED.draft, SHARED.pieces, begin=(3,))
    assert shared.read([0, 1, 2]) == [3, 2, 0, 0, 1]
    assert Translation(SHARED.target, SHARED.draft, SHARED.pieces, begin=(2,)).read([0, 1]) == [2, 0, 0]


SMALL = ModelOptions(kv_pages=16, threads=1)


def _write(path: Any, tokens: list[str]) -> str:
    """The tiny model with its tokens in another order, or with other ones."""
    write_gguf(path, extra={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": TYPES})
    return str(path)


@pytest.fixture
def files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    turned = [*TOKENS[:3], *TOKENS[3:-1][::-1], TOKENS[-1]]
    write_gguf(tmp_path / "target.gguf", TINY)
    return {"target": str(tmp_path / "target.gguf"), "turned": _write(tmp_path / "turned.gguf", turned)}


def test_vocabularies_are_compared_by_bytes(files: dict[str, str]) -> None:
    target, turned = (load_model(files[name], SMALL).tokenizer for name in ("target", "turned"))
    both = common(target, turned, (len(TOKENS), len(TOKENS)))
    assert list(both.target) == sorted(both.target)
    assert len(both.target) >= len(TOKENS) - 3
    for mine, other in zip(both.target, both.draft, strict=True):
        assert target.token_bytes(int(mine)) == turned.token_bytes(int(other))
    word = target.id_of("hello")
    assert word is not None
    assert both.pieces[word] == (turned.id_of("hello"),)
    few = common(target, turned, (len(TOKENS), 40))
    assert max(few.draft) < 40
    assert few.pieces[word] == tuple(turned.encode("hello", special=False))


def test_a_draft_of_another_order_drafts_and_says_what_is_shared(files: dict[str, str]) -> None:
    engine = load(files["target"], files["turned"], k=3, options=SMALL, draft_options=SMALL)
    assert isinstance(engine.proposer, SharedProposer)
    assert engine.settings["target_mass_shared"] > 0.9  # type: ignore[operator]
    plain = load(files["target"], "none", options=SMALL)
    params = SamplingParams(seed=3, max_tokens=16, rule="coupled", ignore_eos=True)
    texts = [e.generate(["hello"], params)[0].tokens for e in (engine, plain)]
    assert texts[0] == texts[1]


def test_a_useless_draft_is_refused(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.drafts.fidelity.mass", lambda *_: 0.1)
    with pytest.raises(ModelError, match=r"another vocabulary.*10.0%"):
        load(files["target"], files["turned"], options=SMALL, draft_options=SMALL)
