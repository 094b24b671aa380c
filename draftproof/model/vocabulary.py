"""What two tokenizers have in common: shared tokens, and the one's tokens said in the other's.

Tokens are the same if they add the same bytes to a text; special tokens if they have the same name; and the ends of
text stand for each other. Knows no model, no law and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.model.tokenizer import Tokenizer


class Common(NamedTuple):
    """`target` and `draft`: ids of the shared tokens, one for one, the target's rising. `pieces[t]`: the draft's ids
    that say the target's token t. `begin`: what the draft's tokenizer puts in front of a text."""

    target: NDArray[np.int64]
    draft: NDArray[np.int64]
    pieces: tuple[tuple[int, ...], ...]
    begin: tuple[int, ...]


def common(target: Tokenizer, draft: Tokenizer, most: tuple[int, int]) -> Common:
    """`most` bounds the ids on either side: rows of the models' logits."""
    theirs, ours = _keys(draft, most[1]), _keys(target, most[0])
    pairs = {token: theirs[key] for key, token in ours.items() if key in theirs}
    for mine, other in zip(target.eos_ids[:1], draft.eos_ids[:1], strict=False):
        if mine < most[0] and other < most[1]:
            pairs = {t: d for t, d in pairs.items() if d != other and t != mine} | {mine: other}
    shared = np.array(sorted(pairs), dtype=np.int64)
    own = np.array([pairs[int(t)] for t in shared], dtype=np.int64)
    pieces = tuple((pairs[t],) if t in pairs else _said(target, draft, t) for t in range(target.vocab))
    return Common(shared, own, pieces, tuple(draft.encode("")))


def _keys(tokenizer: Tokenizer, most: int) -> Mapping[object, int]:
    """What a token is known by, and the lowest id that has it."""
    found: dict[object, int] = {}
    for name, token in sorted(tokenizer.names().items(), key=lambda item: item[1]):
        if token < most:
            found.setdefault(tokenizer.token_bytes(token) or name, token)
    return found


def _said(target: Tokenizer, draft: Tokenizer, token: int) -> tuple[int, ...]:
    text = target.token_bytes(token).decode("utf-8", "ignore")
    return tuple(draft.encode(text, special=False)) if text else ()
