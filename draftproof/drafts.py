"""From a draft's name to a proposer for a target. Names concrete proposers; knows no engine, no rule and no request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from draftproof.draft.base import Proposer
from draftproof.draft.combined import CombinedProposer
from draftproof.draft.head import HeadProposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.none import NoProposer
from draftproof.draft.prediction import PredictionProposer
from draftproof.draft.shared import SharedProposer, Translation
from draftproof.draft.suffix import SuffixProposer
from draftproof.model import fidelity, headfile
from draftproof.model.checkpoint import Checkpoint, ModelError
from draftproof.model.directory import TORCH, checkpoint, remembered_sha256
from draftproof.model.fetch import Progress
from draftproof.model.head import HeadModel, check, layers
from draftproof.model.load import Loaded, ModelOptions, load_model
from draftproof.model.paged import PagedOptions
from draftproof.model.vocabulary import common

DRAFTS = (
    "auto, none, ngram, ngram:SHORTEST-LONGEST, suffix, suffix:SHORTEST, head, head:DIRECTORY, combined, "
    "combined:DIRECTORY, prediction, or a model (name or path; torch:NAME runs it on PyTorch)"
)
SHIPPED = {"smollm2": Path(__file__).parent / "heads" / "smollm2"}
_SPARE_PAGES = 64  # beside one for each of the target's: rows of trees that are not drafted in the end
_MEASURED = 96  # tokens of text that shared probability is measured on
_LEAST_MASS = 0.2  # of the target's probability on shared tokens: no more drafts than that can stand
_SHORTEST = 1  # suffix that the combined proposer looks at: its own figures say when to trust it


class Trained(NamedTuple):
    """A head, what the target's weights are, and what else proposes beside it."""

    head: headfile.HeadCheckpoint
    target: Checkpoint
    combined: bool
    path: Path

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the head's weights, hex."""
        return remembered_sha256(self.path / "model.safetensors")

    @property
    def layers(self) -> tuple[int, ...]:
        """Which hidden states the target must hand out."""
        return layers(self.head.sizes, self.target)


def resolved(draft: str, model: str) -> str:
    """What "auto" means for this model: the shipped head together with suffix matching, or n-grams."""
    if draft != "auto":
        return draft
    name = model.removeprefix(TORCH)
    return "combined" if name in SHIPPED and SHIPPED[name].is_dir() else "ngram"


def trained(draft: str, model: str, progress: Progress) -> Trained | None:
    """The head that a draft's name asks for, read and checked against the target; None if it asks for none.

    Raises:
        ModelError: there is no such head, it is damaged, or it is another model's.
    """
    name, _, place = draft.partition(":")
    if name not in {"head", "combined"}:
        if not _is_head(Path(draft).expanduser()):
            return None
        name, place = "head", draft
    path = Path(place).expanduser() if place else SHIPPED.get(model.removeprefix(TORCH))
    if path is None:
        known = ", ".join(SHIPPED)
        raise ModelError(f"there is no head for {model!r} (only for {known}): make one with draftproof distill {model}")
    head = headfile.read(path)
    progress(f"reading the head {path}")
    target = checkpoint(model, progress)
    check(head, target)
    return Trained(head, target, name == "combined", path)


def _is_head(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "speculators_model_type" in config


def proposer(draft: str, head: Trained | None, target: Loaded, options: ModelOptions, progress: Progress) -> Proposer:
    """The proposer that a resolved draft's name asks for."""
    vocab = target.model.info.vocab
    name, _, sizes = draft.partition(":")
    if head is not None:
        made = _head(head, target, options)
        return CombinedProposer(SuffixProposer(vocab, _SHORTEST), made, vocab) if head.combined else made
    if draft == "none":
        return NoProposer()
    if draft == "prediction":
        return PredictionProposer(vocab)
    if name == "ngram":
        return NgramProposer(vocab, *_sizes(draft, sizes))
    if name == "suffix":
        return _suffix(draft, sizes, vocab)
    return _draft_model(draft, target, options, progress)


def _head(found: Trained, target: Loaded, options: ModelOptions) -> HeadProposer:
    """A head's own passes are so small that int8 costs no more acceptance than it saves time."""
    info = target.model.info
    precision = "int8" if options.precision == "auto" else options.precision
    paged = PagedOptions(precision, kv_pages=info.pages + _SPARE_PAGES, threads=options.threads, trees=info.trees)
    return HeadProposer(HeadModel(found.head, found.target, paged), info.vocab)


def _sizes(draft: str, text: str) -> tuple[int, ...]:
    if not text:
        return ()
    shortest, _, longest = text.partition("-")
    try:
        sizes = (int(shortest), int(longest or shortest))
    except ValueError:
        sizes = (0, 0)
    if not 1 <= sizes[0] <= sizes[1]:
        raise ModelError(f"draft {draft!r}: write the n-gram sizes as in ngram:2-4, the shorter first, from 1 up")
    return sizes


def _suffix(draft: str, text: str, vocab: int) -> SuffixProposer:
    if not text:
        return SuffixProposer(vocab)
    shortest, remembers, most = text.partition(",remember=")
    try:
        return SuffixProposer(vocab, int(shortest), int(most) if remembers else 0)
    except ValueError as error:
        raise ModelError(
            f"draft {draft!r}: write suffix:2 (tokens that must match, from 1 up) or suffix:2,remember=100000 "
            "(tokens of earlier outputs, from 2 up)"
        ) from error


def _draft_model(draft: str, target: Loaded, options: ModelOptions, progress: Progress) -> Proposer:
    try:
        # as many slots as the target has: where a sequence fits there, it fits here
        loaded = load_model(draft, replace(options, kv_pages=target.model.info.pages), progress)
    except ModelError as error:
        raise ModelError(f"draft {draft!r}: {error} (a draft is {DRAFTS})") from error
    if loaded.tokenizer.names() == target.tokenizer.names():
        return ModelProposer(loaded.model, target.model.info.vocab)
    progress("comparing the vocabularies of target and draft")
    return shared(draft, loaded, target)


def shared(draft: str, loaded: Loaded, target: Loaded) -> SharedProposer:
    """A draft with another vocabulary, which proposes the tokens that both have.

    Raises:
        ModelError: what both have carries so little of the target's probability that drafts could hardly ever stand.
    """
    vocab = target.model.info.vocab
    both = common(target.tokenizer, loaded.tokenizer, (vocab, loaded.model.info.vocab))
    text = fidelity.text()
    sides = ((target, both.target), (loaded, both.draft))
    masses = [fidelity.mass(s.model, s.tokenizer.encode(text)[:_MEASURED], ids) for s, ids in sides]
    if masses[0] < _LEAST_MASS:
        raise ModelError(
            f"draft {draft!r} has another vocabulary: of its tokens {len(both.target)} are the target's too, with "
            f"{masses[0]:.1%} of the target's probability; use a draft of the same model family"
        )
    return SharedProposer(loaded.model, vocab, Translation(*both), (masses[0], masses[1]))
