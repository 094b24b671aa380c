"""vLLM's speculative configuration in our words, and the command line that takes it."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from draftproof.cli import serve
from draftproof.server import vllm
from draftproof.types import RequestError

TAKEN: list[tuple[dict[str, Any], tuple[str, object]]] = [
    ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, ("ngram:4-4", 3)),
    ({"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}, ("ngram:2-4", "auto")),
    ({"method": "ngram", "num_speculative_tokens": 2}, ("ngram:5-5", 2)),
    ({"method": "ngram", "model": "ngram", "prompt_lookup_min": 2}, ("ngram:2-2", "auto")),
    ({"model": "small.gguf", "num_speculative_tokens": 5}, ("small.gguf", 5)),
    ({"method": "draft_model", "model": "x", "draft_tensor_parallel_size": 1}, ("x", "auto")),
    ({"method": "suffix"}, ("suffix", "auto")),
    ({"method": "eagle3", "model": "here", "num_speculative_tokens": 2}, ("head:here", 2)),
    ({"method": "combined", "quantization": None}, ("combined", "auto")),
    ({"method": "none"}, ("none", 0)),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("method", {"method": "medusa"}),
    ("method", {"method": ["ngram"]}),
    ("model", {"method": "draft_model"}),
    ("model", {"method": "suffix", "model": "x"}),
    ("prompt_lookup_max", {"method": "suffix", "prompt_lookup_max": 3}),
    ("prompt_lookup_max", {"method": "ngram", "prompt_lookup_max": 0.5}),
    ("prompt_lookup_min", {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}),
    ("num_speculative_tokens", {"method": "ngram", "num_speculative_tokens": -1}),
    ("num_speculative_tokens", {"method": "ngram", "num_speculative_tokens": True}),
    ("draft_tensor_parallel_size", {"method": "ngram", "draft_tensor_parallel_size": 2}),
    ("disable_by_batch_size", {"method": "ngram", "disable_by_batch_size": 4}),
]


@pytest.mark.parametrize(("config", "want"), TAKEN, ids=str)
def test_what_is_taken(config: dict[str, Any], want: tuple[str, object]) -> None:
    assert vllm.of_config(vllm.parsed(json.dumps(config))) == want


@pytest.mark.parametrize(("name", "config"), REFUSED, ids=str)
def test_what_is_refused_is_named(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"--speculative-config {name}:"):
        vllm.of_config(config)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="JSON"):
        vllm.parsed(text)


def resolved(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.register(parser.add_subparsers())
    found = parser.parse_args(["serve", *args])
    serve.resolve(found)
    return found


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTPROOF_API_KEY", raising=False)
    found = resolved()
    assert (found.host, found.port, found.model, found.draft, found.k) == (
        "127.0.0.1",
        8000,
        "smollm2",
        "auto",
        "auto",
    )
    assert (found.api_key, found.max_num_seqs, found.grace) == ("", 16, 10.0)


def test_vllms_words_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_API_KEY", "sesame")
    config = '{"method": "ngram", "prompt_lookup_max": 3}'
    found = resolved("m.gguf", "--max-model-len", "99", "--kv-cache-memory", "1.5G", "-sc", config)
    assert (found.model, found.context, found.kv_memory, found.draft) == ("m.gguf", 99, 1536, "ngram:3-3")
    assert found.api_key == "sesame"
    assert resolved("--kv-cache-memory", "1073741824").kv_memory == 1024
    short = resolved("--spec-method", "ngram", "--spec-tokens", "2", "--api-key", "other")
    assert (short.draft, short.k, short.api_key) == ("ngram:5-5", 2, "other")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("a", "--model", "b"), "name one model"),
        (("--max-model-len", "9", "--context", "8"), "--context"),
        (("--kv-cache-memory", "much"), "--kv-cache-memory"),
        (("--kv-cache-memory", "9k"), "at least 1M"),
        (("-sc", "{}", "--draft", "ngram"), "--draft"),
        (("-sc", "{}", "--k", "2"), "--k"),
        (("--draft", "none", "--k", "2"), "--draft none"),
        (("--draft", "ngram", "--draft-precision", "f32"), "--draft-precision"),
        (("--k", "2", "--decisions", "x"), "--decisions"),
        (("--rule", "best"), "rule="),
        (("--api-key", ""), "--api-key"),
        (("--port", "70000"), "--port"),
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--max-queue", "-1"), "--max-queue"),
        (("--grace", "-1"), "--grace"),
    ],
    ids=" ".join,
)
def test_what_contradicts_or_is_out_of_range(args: tuple[str, ...], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        resolved(*args)
