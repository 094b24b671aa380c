"""From what a caller asks to a `Request` whose every field is settled, or a refusal that names the fix.

Knows the model's limits and what the proposer can do. Knows no queue, no step and no model.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftproof import lossy
from draftproof.accept import RULES
from draftproof.length.goodput import MOST_AUTO
from draftproof.model.base import ModelInfo
from draftproof.nodes import granted
from draftproof.step import Rule
from draftproof.text import TokenBytes
from draftproof.types import MOST_K, DraftLength, Request, RequestError, SamplingParams

DEFAULT_K = 4
Prompt = str | Sequence[int]


class Tokenizer(TokenBytes, Protocol):
    def encode(self, text: str, special: bool = True) -> list[int]: ...
    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...
    def info(self) -> Mapping[str, object]: ...


def rule_named(name: str) -> Rule:
    """An exact rule by its name, or a lossy one by its name and parameter."""
    found = RULES.get(name) or lossy.parse(name)
    if found is None:
        kinds = f"exact: {', '.join(RULES)}; lossy, changing the output law: {', '.join(lossy.LOSSY)} with a parameter"
        raise RequestError(f"rule={name!r} is unknown ({kinds})")
    return found


@dataclass(frozen=True, slots=True)
class Drafting:
    """What an engine can do for its requests. `k`: of requests that do not name one; `nodes`: see `nodes.checked`."""

    speculates: bool
    k: DraftLength
    nodes: int
    predicts: bool
    adapts: bool


def drafting(speculates: bool, k: DraftLength | None, nodes: int, predicts: bool, adapts: bool) -> Drafting:
    """Raises: RequestError: the draft length is out of range, or there is nothing to draft with."""
    if k is not None and k != "auto" and not 0 <= k <= MOST_K:
        raise RequestError(f"k={k}: give a draft length from 0 to {MOST_K}, or auto")
    if k and not speculates:
        raise RequestError(f"k={k}, but the draft is 'none': name a draft, or leave k out")
    return Drafting(speculates, (DEFAULT_K if k is None else k) if speculates else 0, nodes, predicts, adapts)


@dataclass(frozen=True, slots=True)
class Admission:
    """`context`: most tokens of a sequence, prompt and output together."""

    info: ModelInfo
    tokenizer: Tokenizer
    context: int
    drafting: Drafting

    def request(self, name: int, prompt: Prompt, params: SamplingParams, prediction: Prompt | None) -> Request:
        """Raises: RequestError: the request cannot be honoured as it stands."""
        tokens = self._tokens(prompt, "prompt")
        expected = self._tokens(prediction, "prediction", special=False) if prediction is not None else ()
        self._check(tokens, params, expected)
        eos = frozenset() if params.ignore_eos else frozenset(self.info.eos_ids)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        asked = self.drafting.k if params.k is None else params.k
        k = MOST_AUTO if asked == "auto" else asked
        nodes = granted(self.drafting.nodes, self.info, params.rule, k)
        stop_ids = frozenset(params.stop_token_ids) | eos
        return Request(name, tokens, params, seed, k, stop_ids, expected, nodes, asked == "auto")

    def _tokens(self, prompt: Prompt, name: str, special: bool = True) -> tuple[int, ...]:
        tokens = self.tokenizer.encode(prompt, special) if isinstance(prompt, str) else list(prompt)
        vocab = self.info.vocab
        bad = next((t for t in tokens if not 0 <= t < vocab), None)
        if bad is not None:
            raise RequestError(f"{name} holds token {bad}, but the model has {vocab} tokens (0 .. {vocab - 1})")
        return tuple(int(t) for t in tokens)

    def _check(self, tokens: Sequence[int], params: SamplingParams, expected: Sequence[int]) -> None:
        if not tokens:
            raise RequestError("the prompt is empty: give at least one token")
        if len(tokens) >= self.context:
            fix = "shorten it" if self.context == self.info.context else "shorten it, or give more KV memory"
            raise RequestError(f"the prompt has {len(tokens)} tokens, the context {self.context}: {fix}")
        if params.k and not self.drafting.speculates:
            raise RequestError(f"k={params.k}, but no draft is loaded: load one (draft='ngram') or ask for k=0")
        if params.k == "auto" and not self.drafting.adapts:
            raise RequestError("k='auto' needs the costs of this machine: load the engine with k='auto'")
        if expected and not self.drafting.predicts:
            raise RequestError("a prediction needs the prediction proposer: load the engine with draft='prediction'")
