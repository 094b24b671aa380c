"""vLLM's `--speculative-config` in our words. What cannot be honoured is refused by name. Knows names alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from draftproof.types import DraftLength, RequestError

Config = Mapping[str, Any]
_SIZE = 5  # n-gram size that vLLM looks up if none is given
_TAKEN = frozenset({"method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"})
# taken with these values alone, which change nothing here
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "draft_tensor_parallel_size": (1,),
    "enforce_eager": (True, False),
    "disable_log_stats": (True, False),
    "rejection_sample_method": ("strict", "standard"),
}


class Drafting(NamedTuple):
    """What `--draft` and `--k` would say."""

    draft: str
    k: DraftLength


def parsed(text: str) -> Config:
    """The fields that are set.

    Raises: RequestError: it is no JSON object.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--speculative-config is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise RequestError("--speculative-config must be a JSON object")
    return {name: value for name, value in config.items() if value is not None}


def of_config(config: Config) -> Drafting:
    """Raises: RequestError: names the field that cannot be honoured."""
    for name, value in config.items():
        if name not in _TAKEN and value not in _NEUTRAL.get(name, ()):
            raise _refused(name, f"{value!r} cannot be honoured: leave it out")
    method = config.get("method", "draft_model" if "model" in config else "ngram")
    if not isinstance(method, str) or method not in _METHODS:
        raise _refused("method", f"{method!r} is not known here: use one of {', '.join(_METHODS)}")
    if method != "ngram" and (extra := {"prompt_lookup_max", "prompt_lookup_min"} & config.keys()):
        raise _refused(min(extra), f"it has no effect with method {method!r}: leave it out")
    return Drafting(_METHODS[method](config, method), _length(config, method))


def _length(config: Config, method: str) -> DraftLength:
    k = config.get("num_speculative_tokens", 0 if method == "none" else "auto")
    if k != "auto" and (not isinstance(k, int) or isinstance(k, bool) or k < 0):
        raise _refused("num_speculative_tokens", f"{k!r} is not a whole number from 0 up, or auto")
    return "auto" if k == "auto" else int(k)


def _ngram(config: Config, _: str) -> str:
    """One size given stands for both, as in vLLM."""
    if config.get("model", "ngram") not in {"ngram", "[ngram]"}:
        raise _refused("model", "method ngram has none: leave it out")
    high, low = config.get("prompt_lookup_max"), config.get("prompt_lookup_min")
    high, low = high or low or _SIZE, low or high or _SIZE
    for name, value in (("prompt_lookup_max", high), ("prompt_lookup_min", low)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _refused(name, f"{value!r} is not a whole number from 1 up")
    if low > high:
        raise _refused("prompt_lookup_min", f"{low} is more than prompt_lookup_max={high}")
    return f"ngram:{low}-{high}"


def _model(config: Config, method: str) -> str:
    if not isinstance(config.get("model"), str):
        raise _refused("model", f"method {method!r} needs the draft model's name or path")
    return str(config["model"])


def _head(config: Config, _: str) -> str:
    return f"head:{config['model']}" if "model" in config else "head"


def _named(config: Config, method: str) -> str:
    """The draft is called what the method is."""
    if "model" in config:
        raise _refused("model", f"method {method!r} has none: leave it out")
    return method


# vLLM's, and then ours that it does not have
_METHODS: Mapping[str, Callable[[Config, str], str]] = {
    "ngram": _ngram,
    "draft_model": _model,
    "suffix": _named,
    "eagle3": _head,
    "head": _head,
    "combined": _named,
    "prediction": _named,
    "auto": _named,
    "none": _named,
}


def _refused(name: str, why: str) -> RequestError:
    return RequestError(f"--speculative-config {name}: {why}")
