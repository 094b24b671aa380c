"""`load(...)`: from names to an engine that is ready. Knows no proposer's making, no rule and no request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from draftproof.admission import DEFAULT_K
from draftproof.draft.base import Paced, Proposer
from draftproof.draft.combined import CombinedProposer
from draftproof.draft.head import HeadProposer
from draftproof.draft.model import ModelProposer
from draftproof.draft.shared import SharedProposer
from draftproof.drafts import Trained, proposer, resolved, trained
from draftproof.engine import Engine
from draftproof.length.goodput import GoodputLength, Heard
from draftproof.model.checkpoint import ModelError
from draftproof.model.fetch import Progress, silent
from draftproof.model.load import ModelOptions, load_model
from draftproof.profiling import profile
from draftproof.types import DraftLength

_HEAD_K = 3  # each token of a head costs a pass of it


def load(
    model: str = "smollm2",
    draft: str | Proposer = "auto",
    *,
    k: DraftLength | None = None,
    nodes: int = 0,
    max_running: int = 16,
    options: ModelOptions | None = None,
    draft_options: ModelOptions | None = None,
    decisions: Sequence[Heard] = (),
    prefix_cache: bool = False,
    progress: Progress = silent,
) -> Engine:
    """An engine on `model` with the proposer that `draft` names.

    Args:
        model: smollm2, a .gguf file, an OpenVINO or Hugging Face directory, or a Hugging Face name.
        draft: auto (the best that is there for the model); none; ngram or ngram:2-4 (sizes looked up); suffix or
            suffix:2 (shortest match); head or head:DIRECTORY (see draftproof distill); combined, which is a head with
            suffix matching; prediction; a second model like `model`; or a Proposer. suffix:2,remember=100000 also looks
            into so many tokens of earlier outputs: users can then tell by timing what others were answered.
        k: draft length of requests that do not name one; "auto" chooses in each step what is expected to be fastest,
            by costs that are measured once (seconds) and kept. Only with it may requests ask for k="auto".
        nodes: most nodes of a tree draft, for proposers that make trees; 0: chains only. With k="auto" a node must be
            as likely to stand as its row costs plain steps.
        decisions: with k="auto", each gets the costs and then every draft length that was chosen, with what it was
            chosen from, as JSON objects.
        prefix_cache: see Engine.
        progress: gets a short message when a long phase begins.
    Raises:
        ModelError: one line that says what is wrong and what to do.
    """
    options, name = options or ModelOptions(), _name(draft, model)
    if k is None and isinstance(draft, str):
        k = default_k(draft, model)
    head = trained(name, model, progress) if isinstance(draft, str) else None
    options = _wanted(options, name, head, nodes)
    loaded = load_model(model, options, progress)
    made = proposer(name, head, loaded, draft_options or ModelOptions(), progress) if isinstance(draft, str) else draft
    settings = {"draft": name, **_draft_settings(made)}
    if head is not None:
        settings["draft_fingerprint"] = head.fingerprint
    build = partial(
        Engine,
        loaded.model,
        loaded.tokenizer,
        made,
        nodes=nodes,
        max_running=max_running,
        settings=settings,
        prefix_cache=prefix_cache,
    )
    return _adaptive(build, nodes, decisions, progress) if k == "auto" else build(k=k)


def _wanted(options: ModelOptions, draft: str, head: Trained | None, nodes: int) -> ModelOptions:
    """Options of the target, with what the draft needs of it."""
    if head is not None:
        if options.hidden_layers not in {(), head.layers}:
            raise ModelError(f"hidden_layers={options.hidden_layers}, but the head reads {head.layers}: leave it out")
        options = replace(options, hidden_layers=head.layers)
    if options.lanes is None and draft != "none":  # what steps of one sequence alternate between
        options = replace(options, lanes=(2, 3) if options.bitwise else (1, 2))
    return replace(options, trees=options.trees or nodes > 0)


def _adaptive(build: Callable[..., Engine], nodes: int, decisions: Sequence[Heard], progress: Progress) -> Engine:
    """The same engine, which chooses draft lengths by what steps of it cost."""
    plain = build()
    costs = profile(plain, progress)
    _value_rows(plain.proposer, costs.row_worth(1, nodes))
    return build(
        k="auto", lengths=GoodputLength(costs, decisions, paced=isinstance(plain.proposer, Paced) and not nodes)
    )


def _value_rows(proposer: Proposer, worth: float) -> None:
    """Tell a proposer of trees what a node must be worth."""
    head = proposer.head if isinstance(proposer, CombinedProposer) else proposer
    if isinstance(head, HeadProposer):
        head.worth = worth


def default_k(draft: str, model: str) -> int:
    """Draft length of requests that do not name one."""
    name = resolved(draft, model).partition(":")[0]
    return 0 if name == "none" else _HEAD_K if name in {"head", "combined"} else DEFAULT_K


def _name(draft: str | Proposer, model: str) -> str:
    return resolved(draft, model) if isinstance(draft, str) else type(draft).__name__


def _draft_settings(proposer: Proposer) -> dict[str, object]:
    if not isinstance(proposer, ModelProposer):
        return {}
    own = proposer.model.info.settings
    shared: dict[str, object] = {}
    if isinstance(proposer, SharedProposer):
        target, draft = (round(mass, 4) for mass in proposer.masses)
        shared = {"shared_tokens": proposer.shared_tokens, "target_mass_shared": target, "draft_mass_shared": draft}
    return shared | {
        f"draft_{name}": own[name]
        for name in ("backend", "device", "precision", "kv_precision", "kv_bytes", "fingerprint")
        if name in own
    }
