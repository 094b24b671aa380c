"""Propose a text that the caller expects: an earlier version of a document, a template, a cached answer.

The prediction never reaches the model as input; it only fills drafts. After a mismatch the proposer looks for the
place where the output joins the prediction again: its latest tokens, found further on. Not a sample: point masses.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft.base import Ask, Stateless, point_draft
from draftproof.types import Draft

_JOIN = 2  # output tokens that must match before the prediction is taken up again


class PredictionProposer(Stateless):
    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [point_draft(_expected(ask.view.request.prediction, _output(ask), ask.k), self._vocab) for ask in asks]


def _output(ask: Ask) -> Sequence[int]:
    return ask.view.tokens[len(ask.view.request.prompt) :]


def _expected(prediction: Sequence[int], output: Sequence[int], k: int) -> Sequence[int]:
    """Tokens of the prediction that come next. While the output follows it from the start, that is its next place."""
    n = len(output)
    if tuple(output) == tuple(prediction[:n]):
        return prediction[n : n + k]
    tail = tuple(output[-_JOIN:])
    ends = [end for end in range(_JOIN, len(prediction)) if tuple(prediction[end - _JOIN : end]) == tail]
    if not ends or len(tail) < _JOIN:
        return ()
    end = min(ends, key=lambda place: abs(place - n))  # nearest to where the output stands
    return prediction[end : end + k]
