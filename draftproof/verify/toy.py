"""Toy worlds whose laws are known exactly: pairs of tiny checkpoints for real engines, tables for quick tests.

The laws are spread out, depend on the whole prefix, and differ between target and draft, so that a row, position or
batch mix-up, a wrong rule and a wrong draft all show in the output. Special tokens cannot appear: every hidden state
carries a constant that the head turns into a large negative logit for them.

Knows no engine, no parameters and no checks. `toy_model` computes the laws, `toy_files` writes the checkpoints,
and so does `toy_openvino`, which is to be imported apart since it imports OpenVINO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from draftproof.verify.contract import Floats, World
from draftproof.verify.toy_files import write_gguf, write_hf
from draftproof.verify.toy_model import END, SPECIAL, VISIBLE, WORDS, Decoder, Matrix, Sizes, Toy, forward

__all__ = ["RECIPES", "VISIBLE", "WORDS", "Pair", "forward", "pair", "tabular_world", "world", "write_gguf", "write_hf"]

_BANISHED = -16000.0  # the head's weight on the constant channel, for tokens that must not appear


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a pair. `seed` is the one whose pair was looked at; the spread is that of the logits."""

    seed: int
    spread: float
    embedding: float  # how much the last token says directly, against 1 of the constant channel
    second: float  # strength of the layer that the draft lacks
    turn: float  # angle between the heads of target and draft, in quarter turns


RECIPES = {
    "spread": Recipe(seed=4, spread=1.25, embedding=0.5, second=1.0, turn=0.35),
    "agreeing": Recipe(seed=3, spread=1.4, embedding=0.6, second=0.15, turn=0.06),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its draft. The draft has the target's first layer, lacks the second and says things its own way."""

    name: str
    target: Toy
    draft: Toy


def pair(name: str = "spread", seed: int | None = None, eos: int = END) -> Pair:
    """The pair of a recipe. Another seed gives another pair; `eos` may be a token that does appear, to test ends."""
    recipe = RECIPES[name]
    rng = np.random.default_rng([recipe.seed if seed is None else seed, *name.encode()])
    sizes = Sizes()
    tensors = {
        "embed": _embedding(rng, sizes, recipe.embedding),
        "final_norm": _gain(rng, sizes),
        "head": _head(_rows(rng, sizes), recipe.spread),
        **_layer(rng, sizes, 0, 1.0),
        **_layer(rng, sizes, 1, recipe.second),
    }
    angle = recipe.turn * np.pi / 2
    turned = np.cos(angle) * tensors["head"][VISIBLE, :-1] / recipe.spread + np.sin(angle) * _rows(rng, sizes)
    draft = {n: w for n, w in tensors.items() if not n.startswith("1.")} | {"head": _head(turned, recipe.spread)}
    single = replace(sizes, layers=1)
    return Pair(name, Toy(sizes, _as_stored(tensors), eos), Toy(single, _as_stored(draft), eos))


def world(pair: Pair) -> World:
    """The exact laws of a pair."""
    return World(
        name=f"toy {pair.name}",
        vocab=len(WORDS),
        target=Decoder(pair.target).logits,
        draft=Decoder(pair.draft).logits,
        words=WORDS,
        eos=(pair.target.eos,),
        impossible=tuple(range(len(SPECIAL))),
    )


def tabular_world(
    vocab: int = 4, seed: int = 1, tv: float = 0.35, zeros: float = 0.0, eos: tuple[int, ...] = ()
) -> World:
    """A world without a model: a law for every prefix, drawn from (seed, prefix).

    Args:
        tv: about how far target and draft are apart, at every prefix.
        zeros: share of tokens without probability (logit -inf), drawn for target and draft apart.
    """

    @lru_cache(maxsize=100_000)
    def laws(prefix: tuple[int, ...]) -> tuple[Floats, Floats]:
        rng = np.random.default_rng([seed, vocab, len(prefix), *prefix])
        p = _law(rng, vocab)
        q = _at_distance(rng, p, tv)
        return _logits(_pruned(rng, p, zeros)), _logits(_pruned(rng, q, zeros))

    return World(
        name=f"table of {vocab}, seed {seed}",
        vocab=vocab,
        target=lambda prefix: laws(prefix)[0],
        draft=lambda prefix: laws(prefix)[1],
        words=tuple(chr(ord("a") + i) for i in range(vocab)),
        eos=eos,
    )


def _law(rng: np.random.Generator, vocab: int) -> Floats:
    weights = rng.random(vocab) + 0.1
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _at_distance(rng: np.random.Generator, p: Floats, tv: float) -> Floats:
    """p mixed with a law that is far enough away from it."""
    while True:
        other = rng.dirichlet(np.full(len(p), 0.5))
        distance = float(np.abs(p - other).sum()) / 2
        if distance >= tv:
            return p + (other - p) * (tv / distance)


def _pruned(rng: np.random.Generator, law: Floats, share: float) -> Floats:
    """Some tokens lose their probability; one always keeps it."""
    lost = rng.random(len(law)) < share
    lost[rng.integers(len(law))] = False
    return np.where(lost, 0.0, law)


def _logits(law: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logits: Floats = np.log(law / law.sum())
    logits.flags.writeable = False
    return logits


def _layer(rng: np.random.Generator, s: Sizes, i: int, strength: float) -> dict[str, Floats]:
    """Random weights. Attention is sharp enough to tell positions apart; nothing writes to the constant channel."""

    def matrix(rows: int, columns: int, scale: float) -> Floats:
        return np.asarray(rng.standard_normal((rows, columns)) * scale / np.sqrt(columns), dtype=np.float64)

    def back(columns: int, scale: float) -> Floats:
        written = matrix(s.width, columns, strength * scale)
        written[-1] = 0.0
        return written

    named = {
        "attn_norm": _gain(rng, s),
        "q": matrix(s.heads * s.head_dim, s.width, 1.4),
        "k": matrix(s.kv_heads * s.head_dim, s.width, 1.4),
        "v": matrix(s.kv_heads * s.head_dim, s.width, 1.0),
        "o": back(s.heads * s.head_dim, 2.0),
        "ffn_norm": _gain(rng, s),
        "gate": matrix(s.ffn, s.width, 1.0),
        "up": matrix(s.ffn, s.width, 1.0),
        "down": back(s.ffn, 1.5),
    }
    return {f"{i}.{name}": w for name, w in named.items()}


def _gain(rng: np.random.Generator, s: Sizes) -> Floats:
    return 1.0 + 0.1 * rng.standard_normal(s.width)


def _orthonormal(rng: np.random.Generator, count: int, width: int) -> Floats:
    return np.asarray(np.linalg.qr(rng.standard_normal((width, count)))[0].T, dtype=np.float64)


def _rows(rng: np.random.Generator, s: Sizes) -> Floats:
    """One direction for each visible token, without the constant channel."""
    return _orthonormal(rng, len(VISIBLE), s.width - 1)


def _embedding(rng: np.random.Generator, s: Sizes, size: float) -> Floats:
    rows = _orthonormal(rng, s.vocab, s.width - 1) * np.sqrt(s.width) * size
    return np.concatenate([rows, np.ones((s.vocab, 1))], axis=1)


def _head(rows: Floats, spread: float) -> Floats:
    head = np.zeros((len(WORDS), rows.shape[1] + 1))
    head[VISIBLE, :-1] = spread * rows
    head[: len(SPECIAL), -1] = _BANISHED
    return head


def _as_stored(tensors: dict[str, Floats]) -> dict[str, Matrix]:
    return {name: w.astype(np.float32) for name, w in tensors.items()}
