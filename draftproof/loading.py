"""`load(...)`: from names to an engine that is ready. Names concrete proposers; knows no rule and no request."""

from __future__ import annotations

from dataclasses import replace

from draftproof.draft.base import Proposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.ngram import NgramProposer
from draftproof.draft.none import NoProposer
from draftproof.draft.prediction import PredictionProposer
from draftproof.draft.suffix import SuffixProposer
from draftproof.engine import Engine
from draftproof.model.checkpoint import ModelError
from draftproof.model.fetch import Progress, silent
from draftproof.model.load import Loaded, ModelOptions, load_model

DRAFTS = (
    "none, ngram, ngram:SHORTEST-LONGEST, suffix, suffix:SHORTEST, prediction, "
    "or a model (name or path) with the target's vocabulary"
)


def load(
    model: str = "smollm2",
    draft: str | Proposer = "ngram",
    *,
    k: int | None = None,
    nodes: int = 0,
    max_running: int = 16,
    options: ModelOptions | None = None,
    draft_options: ModelOptions | None = None,
    progress: Progress = silent,
) -> Engine:
    """An engine on `model` with the proposer that `draft` names.

    Args:
        model: smollm2, a .gguf file, an OpenVINO or Hugging Face directory, or a Hugging Face name.
        draft: none; ngram or ngram:2-4 (sizes looked up); suffix or suffix:2 (shortest match); prediction; a second
            model like `model`; or a Proposer. suffix:2,remember=100000 also looks into so many tokens of earlier
            outputs: users can then tell by timing what others were answered (see SuffixProposer).
        k: draft length of requests that do not name one.
        nodes: most nodes of a tree draft, for proposers that make trees; 0: chains only.
        progress: gets a short message when a long phase begins.
    Raises:
        ModelError: one line that says what is wrong and what to do.
    """
    options = options or ModelOptions()
    loaded = load_model(model, replace(options, trees=options.trees or nodes > 0), progress)
    name = draft if isinstance(draft, str) else type(draft).__name__
    found = _proposer(draft, loaded, draft_options or ModelOptions(), progress) if isinstance(draft, str) else draft
    settings = {"draft": name, **_draft_settings(found)}
    return Engine(loaded.model, loaded.tokenizer, found, k=k, nodes=nodes, max_running=max_running, settings=settings)


def _draft_settings(proposer: Proposer) -> dict[str, object]:
    if not isinstance(proposer, ModelProposer):
        return {}
    own = proposer.model.info.settings
    return {f"draft_{name}": own[name] for name in ("precision", "kv_precision", "kv_bytes") if name in own}


def _proposer(draft: str, target: Loaded, options: ModelOptions, progress: Progress) -> Proposer:
    vocab = target.model.info.vocab
    name, _, sizes = draft.partition(":")
    if draft == "none":
        return NoProposer()
    if draft == "prediction":
        return PredictionProposer(vocab)
    if name == "ngram":
        return NgramProposer(vocab, *_sizes(draft, sizes))
    if name == "suffix":
        return _suffix(draft, sizes, vocab)
    return _draft_model(draft, target, options, progress)


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
    _check_vocabulary(draft, loaded, target)
    return ModelProposer(loaded.model, target.model.info.vocab)


def _check_vocabulary(draft: str, loaded: Loaded, target: Loaded) -> None:
    mine, theirs = loaded.tokenizer.names(), target.tokenizer.names()
    for token in mine.keys() | theirs.keys():
        if mine.get(token) != theirs.get(token):
            raise ModelError(
                f"draft {draft!r} has another vocabulary: token {token!r} is {mine.get(token, 'missing')} there and "
                f"{theirs.get(token, 'missing')} in the target; use a draft of the same model family"
            )
