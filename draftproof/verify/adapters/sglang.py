"""SGLang as an engine under test: its own /generate, with prompts and answers as token ids.

Written from its documentation and tested against a recorded exchange; not run by us so far. The server is started by
its users (`--url`), on the accelerator that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from draftproof.verify.adapters.openai import SEEDS, HttpEngine, found
from draftproof.verify.adapters.registry import Drafting, Form, Mode, Promise, Setup
from draftproof.verify.adapters.wire import Wire
from draftproof.verify.contract import Ability, EngineError, Job, Sample
from draftproof.verify.plan import VerifyError

NAME = "sglang"
# accepted and proposed draft tokens, as newer and older releases call them
_COUNTS = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)
_START = "python -m sglang.launch_server --model-path TARGET --dtype float32"
_STANDALONE = "--speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT"


class SglangEngine(HttpEngine):
    path = "/generate"
    offers: ClassVar[frozenset[Ability]] = frozenset(
        {Ability.BATCH, Ability.COUNTS, Ability.MIN_P, Ability.STOP_TOKENS}
    )

    def body(self, job: Job) -> dict[str, Any]:
        p = job.params
        params: dict[str, Any] = {
            **{name: getattr(p, name) for name in ("temperature", "top_p", "min_p", "presence_penalty")},
            "frequency_penalty": p.frequency_penalty,
            "top_k": p.top_k or -1,
            "max_new_tokens": p.max_tokens,
            "min_new_tokens": p.min_tokens,
            "stop_token_ids": list(p.stop_token_ids),
            "ignore_eos": p.ignore_eos,
        }
        if job.seed is not None:
            params["sampling_seed"] = job.seed % SEEDS
        return {"input_ids": list(job.prompt), "sampling_params": params}

    def read(self, answer: Any, job: Job) -> Sample:
        meta, tokens = answer["meta_info"], tuple(answer["output_ids"])
        reason = meta["finish_reason"]
        stopped = bool(tokens) and reason.get("matched") == tokens[-1] and tokens[-1] in job.params.stop_token_ids
        proposed, accepted = next(((meta[p], meta[a]) for a, p in _COUNTS if a in meta and p in meta), (None, None))
        return Sample(
            tokens[: len(tokens) - stopped],
            str(reason["type"]),
            text=answer.get("text"),
            proposed=proposed,
            accepted=accepted,
            usage=meta["completion_tokens"] - stopped,
        )

    def _model(self, wire: Wire) -> str:
        try:
            return str(wire.json("/get_model_info")["model_path"])
        except (KeyError, TypeError) as error:
            raise EngineError(f"{wire.url} is no SGLang server: /get_model_info names no model_path") from error


class SglangAdapter:
    name, form = NAME, Form.HF
    packages: tuple[str, ...] = ()
    modes: Mapping[str, Mode] = {
        "plain": Mode(f"no speculation: {_START}", Drafting.NONE, Promise.PLAIN),
        "draft": Mode(f"a draft model: {_START} {_STANDALONE}", Drafting.MODEL),
        "ngram": Mode(f"looked-up text: {_START} --speculative-algorithm NGRAM", Drafting.LOOKUP),
        "lenient": Mode(
            f"a lower threshold: {_START} {_STANDALONE} --speculative-accept-threshold-single 0.3",
            Drafting.MODEL,
            Promise.APPROXIMATE,
        ),
    }

    def missing(self, setup: Setup) -> str:
        if setup.url:
            return ""
        what = self.modes[setup.mode].what.partition(": ")[2]
        return f"SGLang is not started from here: start it as {what}, and say where it is by --url"

    def engine(self, setup: Setup) -> SglangEngine:
        if missing := self.missing(setup):
            raise VerifyError(missing)
        return SglangEngine(NAME, *found(setup), {"url": setup.url, "mode": setup.mode})


ADAPTER = SglangAdapter()
