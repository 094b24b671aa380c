"""Log-probabilities of tokens under the model's own softmax, and those of a prompt where they are asked for.

Row i of a sequence scores token i + 1, so a prompt's first token has none. Knows no law, rule or draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof import arrays
from draftproof.law import log_softmax, top_k
from draftproof.scheduler import Item
from draftproof.types import Floats, Run, TokenLogprob


def score(row: Floats, token: int, top: int) -> TokenLogprob:
    """row: [vocab] logits; `top` alternatives are told, the likeliest first."""
    logs = log_softmax(row)
    ids = top_k(logs, min(top, len(logs))) if top else ()
    best = sorted(((int(t), float(logs[int(t)])) for t in ids), key=lambda entry: -entry[1])
    return TokenLogprob(token, float(logs[token]), tuple(best))


def fault(item: Item, logits: Floats) -> str | None:
    """Why the prompt's rows cannot be scored. logits: [wanted rows, vocab], those that score the prompt first."""
    if not item.scored:
        return None
    tops = arrays.host(arrays.namespace(logits).max(logits[: item.scored], axis=1))
    bad = tops[~np.isfinite(tops)]
    return f"the model returned logits whose largest is {bad[0]}: the prompt cannot be scored" if len(bad) else None


def prompt_scores(item: Item, logits: Floats, run: Run | None) -> Sequence[TokenLogprob]:
    """Of the prompt tokens that this step scores; logits as for `fault`."""
    sequence = item.sequence
    top, first = sequence.request.params.prompt_logprobs, len(sequence.scores) + 1
    if top is None or (run is not None and run.error is not None):
        return ()
    tokens = sequence.request.prompt[first : first + item.scored]
    return [score(row, token, top) for row, token in zip(logits, tokens, strict=False)]
