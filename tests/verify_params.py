"""The suite's parameters as the engine's own."""

from __future__ import annotations

from draftproof.types import SamplingParams
from draftproof.verify.contract import Params


def engines(params: Params) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    more = ("min_tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos")
    return SamplingParams(**{n: getattr(params, n) for n in names + more}, logit_bias=dict(params.logit_bias))
