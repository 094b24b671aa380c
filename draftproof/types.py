"""The frozen records that travel between the rooms of the engine.

This module knows no algorithm: it says what the words of DESIGN.md look like in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof import arrays
from draftproof.watch import Seconds

Floats = NDArray[np.floating]  # of NumPy, or PyTorch tensors: see arrays.py
Ids = NDArray[np.int64]


class RequestError(ValueError):
    """A request that cannot be honoured. The message names the field and the fix."""


def total(weights: Floats) -> float:
    """Their sum in float64."""
    xp = arrays.namespace(weights)
    return float(xp.sum(weights, dtype=xp.float64))


class Law:
    """A probability distribution over token ids 0 .. vocab - 1.

    `ids` is None for a dense law; otherwise the sorted ids that may have mass. `weights` are non-negative,
    one per id, not normalised; `total` is their sum, so that probability = weight / total.
    """

    __slots__ = ("ids", "total", "vocab", "weights")

    def __init__(self, vocab: int, ids: Ids | None, weights: Floats) -> None:
        self.vocab, self.ids, self.weights = vocab, ids, weights
        self.total = total(weights)
        if not (math.isfinite(self.total) and self.total > 0.0):
            raise RequestError(f"a law needs finite weights with a positive sum, got the sum {self.total}")

    @staticmethod
    def point(vocab: int, token: int) -> Law:
        """All mass on one token: the law of a proposal that was not sampled."""
        return Law(vocab, np.array([token], dtype=np.int64), np.ones(1))

    @property
    def is_point(self) -> bool:
        return self.ids is not None and len(self.ids) == 1

    def prob(self, token: int) -> float:
        if self.ids is None:
            return float(self.weights[token]) / self.total
        at = self.place(token)
        return float(self.weights[at]) / self.total if at is not None else 0.0

    def place(self, token: int) -> int | None:
        """Where the token stands among the ids."""
        if arrays.is_host(self.ids):
            at = int(np.searchsorted(self.ids, token))  # type: ignore[arg-type]
            return at if at < len(self.ids) and int(self.ids[at]) == token else None  # type: ignore[arg-type, index]
        found = arrays.where(self.ids == token)
        return int(found[0]) if len(found) else None

    def dense(self) -> NDArray[np.float64]:
        """Probabilities of all tokens, on the host. Shape [vocab]."""
        shares: NDArray[np.float64] = arrays.host(self.weights).astype(np.float64) / self.total
        if self.ids is None:
            return shares
        full = np.zeros(self.vocab)
        full[arrays.host(self.ids)] = shares
        return full

    def __repr__(self) -> str:
        kind = "dense" if self.ids is None else f"{len(self.ids)} ids"
        return f"Law(vocab={self.vocab}, {kind})"


class Draft(NamedTuple):
    """Proposed tokens and, one for one, the law that each was really drawn from. An `error` ends the request.

    A tree if it has `parents` (see tree.py), otherwise a chain. Nodes stand in the order they were drawn in.
    """

    tokens: tuple[int, ...] = ()
    laws: tuple[Law, ...] = ()
    error: str | None = None
    parents: tuple[int, ...] = ()


class Kind(StrEnum):
    """Where an emitted token comes from."""

    PROMPT = "prompt"
    ACCEPTED = "accepted"
    RESIDUAL = "residual"
    BONUS = "bonus"


class Verdict(NamedTuple):
    """`accepted` draft tokens stand; `token` follows them: residual after a rejection, bonus when all stood (in a tree:
    a leaf was reached)."""

    accepted: int
    token: int
    kind: Kind
    numerical: bool = False  # the residual had no mass left after rounding, and p stood in for it
    path: tuple[int, ...] = ()  # the accepted nodes of a tree


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


DraftLength = int | Literal["auto"]
MOST_K = 64  # longest draft


class TokenLogprob(NamedTuple):
    """Natural log-probability under the model's own softmax (no penalty, no temperature), and the top ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What one sequence gained in one step, after stop rules and limits cut the verdict.

    `proposed` and `accepted` count nothing behind the cut; of a tree, `proposed` counts one line (`tree.line`). `kept`
    is the length of the whole output after it: a stop string that began earlier takes that step's last tokens back.
    """

    tokens: tuple[int, ...]
    kinds: tuple[Kind, ...]
    proposed: int
    accepted: int
    kept: int
    finish: Finish | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: tuple[TokenLogprob, ...] = ()  # see Output
    tv: float = 0.0  # exact TV that a lossy rule caused; 0 for exact rules
    numerical: bool = False  # see Verdict


def _check(ok: bool, name: str, value: object, wanted: str) -> None:
    if not ok:
        raise RequestError(f"{name}={value!r} is not allowed: {wanted}")


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks for. The target law p that these define is written down in `law.py`.

    `k` is the draft length (0 is plain decoding, None the engine's default, "auto" what is expected to be fastest, anew
    in each step, which needs an engine that was loaded with k="auto"); `rule` an exact rule of `accept.py`,
    or a lossy rule of `lossy.py` with its parameter ("lenience:1.5"). `seed` None draws one from the system.
    `logprobs` is the number of alternatives to report with each emitted token (None: report nothing), and
    `prompt_logprobs` with each token of the prompt but the first; with it `max_tokens` may be 0: the prompt is scored.
    `cache_salt`: a request finds cached pages only of requests with the same one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    min_tokens: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    k: DraftLength | None = None
    rule: str = "block"
    cache_salt: str = ""

    def __post_init__(self) -> None:
        t, p, m = self.temperature, self.top_p, self.min_p
        _check(_finite(t) and t >= 0, "temperature", t, "give a number >= 0 (0 is greedy)")
        _check(_whole(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "give a whole number >= 0 (0 keeps all)")
        _check(_finite(p) and 0 < p <= 1, "top_p", p, "give a number in (0, 1] (1 keeps all)")
        _check(_finite(m) and 0 <= m <= 1, "min_p", m, "give a number in [0, 1] (0 keeps all)")
        r = self.repetition_penalty
        _check(_finite(r) and r > 0, "repetition_penalty", r, "give a number > 0 (1 changes nothing)")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(_finite(value), name, value, "give a finite number (0 changes nothing)")
        for token, bias in self.logit_bias.items():
            _check(_whole(token) and token >= 0, "logit_bias", token, "keys are token ids >= 0")
            _check(_finite(bias) or bias == -math.inf, "logit_bias", bias, "values are finite numbers or -inf")
        self._check_limits()

    def _check_limits(self) -> None:
        low, high = self.min_tokens, self.max_tokens
        least = 1 if self.prompt_logprobs is None else 0
        _check(_whole(high) and high >= least, "max_tokens", high, f"give a whole number >= {least}")
        _check(_whole(low) and 0 <= low <= high, "min_tokens", low, f"give a whole number from 0 to max_tokens={high}")
        _check(not isinstance(self.stop, str), "stop", self.stop, "give a list of strings")
        for text in self.stop:
            _check(isinstance(text, str) and text != "", "stop", text, "a stop string must not be empty; leave it out")
        for token in self.stop_token_ids:
            _check(_whole(token) and token >= 0, "stop_token_ids", token, "give token ids >= 0")
        s, k = self.seed, self.k
        _check(s is None or (_whole(s) and 0 <= s < 2**64), "seed", s, "give a whole number from 0 to 2**64 - 1")
        _check(k is None or k == "auto" or (_whole(k) and 0 <= k <= MOST_K), "k", k, f"give 0 to {MOST_K}, or auto")
        for name in ("logprobs", "prompt_logprobs"):
            n = getattr(self, name)
            _check(n is None or (_whole(n) and 0 <= n <= 100), name, n, "give a whole number from 0 to 100")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with its parameters, as the scheduler sees it. `seed`, `k` and `nodes` are resolved here."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    k: int
    stop_ids: frozenset[int]  # EOS (unless ignored) and the request's own stop tokens
    prediction: tuple[int, ...] = ()  # text that the caller expects; fed to the proposer, never to the model
    nodes: int = 0  # most nodes of a tree draft; 0: chains only
    auto: bool = False  # the engine's policy chooses the draft length in each step, up to k


class SequenceView(Protocol):
    """What a proposer may see of a running sequence: committed tokens only."""

    @property
    def request(self) -> Request: ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and emitted tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's rows in a ragged paged batch.

    Row j is token `tokens[j]` at cache slot `past + j`; `pages` covers slots 0 .. past + rows - 1. Logits are computed
    for the last `wanted` rows. With a tree, `depths[j]` replaces j as the row's distance from `past`, and
    `visible[j]` lists the rows of this chunk that row j may attend to (itself included).
    """

    tokens: tuple[int, ...]
    past: int
    pages: tuple[int, ...]
    wanted: int
    depths: tuple[int, ...] = ()
    visible: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """Result of one ragged pass, rows in chunk order: logits of the wanted rows, hidden states of all rows."""

    logits: NDArray[np.float32]  # [rows, vocab]
    hidden: NDArray[np.float32] | None = None  # [all rows, layers, width], only if asked for at load


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One sequence in one step, as written to the trace file. Seconds are those of the whole step."""

    request: int
    origin: int  # tokens committed before the step
    proposed: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    kind: Kind
    batch: int
    seconds: Seconds
    tv: float = 0.0  # see Run
    numerical: bool = False  # see Verdict


@dataclass(frozen=True, slots=True)
class Output:
    """What `generate` returns and what a stream's last event carries.

    `prompt_logprobs[i]` is of prompt token i + 1. `ending` is of the EOS or stop token that ended the output, if there
    was one and prompt_logprobs were asked for; the token itself is none of the output.
    """

    request: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    kinds: tuple[Kind, ...]
    text: str
    finish: Finish
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    ending: tuple[TokenLogprob, ...] = ()
    cached: int = 0  # tokens of the prompt that were not computed, but found in the prefix cache
    steps: tuple[StepTrace, ...] = ()
