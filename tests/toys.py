"""Toys that several tests share: a tokenizer of letters, laws that depend on the whole prefix, engines on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from draftproof.admission import Tokenizer
from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.engine import Engine
from draftproof.model.tabular import TabularModel, tabular_info
from draftproof.types import Output

Table = Callable[[tuple[int, ...]], NDArray[np.float64]]


class Letters:
    """Token i is the letter number i of the alphabet."""

    strips_space = False

    def __init__(self, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self._alphabet = alphabet

    def token_bytes(self, token: int) -> bytes:
        return self._alphabet[token].encode()

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [self._alphabet.index(c) for c in text]

    def chat(self, messages: Sequence[object]) -> list[int]:
        raise NotImplementedError


@cache
def random_table(vocab: int, seed: int, zeros: float = 0.0, sharpness: float = 1.0) -> Table:
    """A law for every prefix, drawn once from (seed, prefix); a share of tokens has probability 0."""

    @cache
    def table(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        weights = rng.random(vocab) ** sharpness + 1e-3
        weights[rng.random(vocab) < zeros] = 0.0
        weights[rng.integers(vocab)] += 0.1
        return weights / weights.sum()

    return table


def toy_engine(
    table: Table,
    vocab: int,
    proposer: Proposer | None = None,
    eos: tuple[int, ...] = (),
    tokenizer: Tokenizer | None = None,
    **info: int,
) -> Engine:
    running, nodes, reuse = info.pop("max_running", 16), info.pop("nodes", 0), bool(info.pop("prefix_cache", 0))
    model = TabularModel(table, tabular_info(vocab, eos_ids=eos, **info))
    return Engine(model, tokenizer or Letters(), proposer, nodes=nodes, max_running=running, prefix_cache=reuse)


def finished(engine: Engine) -> dict[int, Output]:
    """Step until nothing is left, with an audit after each; outputs by request."""
    outputs: dict[int, Output] = {}
    while engine.busy:
        outputs.update({e.request: e.output for e in engine.step() if e.output is not None})
        engine.audit()
    return outputs


def drafting(table: Table, vocab: int, own_vocab: int | None = None, **info: int) -> ModelProposer:
    """A draft model for a target of `vocab` tokens; `own_vocab` are its own."""
    return ModelProposer(TabularModel(table, tabular_info(own_vocab or vocab, **info)), vocab)


class Words:
    """A tokenizer of given byte strings: token i is words[i]."""

    strips_space = False

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = list(words)

    def token_bytes(self, token: int) -> bytes:
        return self.words[token]

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [self.words.index(c.encode()) for c in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.words[t] for t in tokens).decode("utf-8", "replace")

    def chat(self, messages: Sequence[object]) -> list[int]:
        raise NotImplementedError


def scripted(text: Sequence[int], vocab: int, start: int) -> Table:
    """A law that surely says text[i] after `start + i` tokens, and token 0 behind the text."""

    def table(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        at = len(prefix) - start
        law = np.zeros(vocab)
        law[text[at] if 0 <= at < len(text) else 0] = 1.0
        return law

    return table
