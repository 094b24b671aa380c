"""Prefix reuse over HTTP: the same answers, what usage and metrics say of it, salts, and emptying the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server.serving import Running, drafted, serving
from server.test_metrics import figures

from draftproof.cli import serve
from draftproof.engine import Engine

PROMPT = [2, 1, 3, 8] * 4


@pytest.fixture
def running() -> Iterator[Running]:
    with serving(drafted(prefix_cache=True)) as made:
        yield made
        made.idle()


def ask(running: Running, **more: Any) -> Any:
    body = {"model": "toy", "prompt": PROMPT, "max_tokens": 8, "seed": 3, "logprobs": 2, **more}
    got = running.send("POST", "/v1/completions", body)
    assert got.status == 200, got.body
    return got.json


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_same_answer_with_less_work(running: Running) -> None:
    with serving(drafted()) as other:
        plain = ask(other)
    first, second = ask(running), ask(running)
    assert first["choices"] == second["choices"] == plain["choices"]
    assert (cached(plain), cached(first), cached(second)) == (0, 0, 12)
    assert ask(running, prompt=[PROMPT, PROMPT[:9]], n=2)["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert cached(ask(running, echo=True, max_tokens=0)) == 0
    running.idle()
    told = figures(running)
    assert told["prefix_cache_queries_total"] == 2 * 16 + 2 * (16 + 9)  # not the scored one
    assert told["prefix_cache_hits_total"] == 12 + 2 * 16
    assert told["kv_pages_cached"] > 0
    assert told["kv_pages_free"] + told["kv_pages_cached"] == running.engine.pool.total


def test_it_is_emptied(running: Running) -> None:
    ask(running)
    assert running.send("POST", "/reset_prefix_cache").status == 200
    assert cached(ask(running)) == 0
    assert cached(ask(running)) == 12
    assert running.send("GET", "/reset_prefix_cache").status == 405


def test_salts_set_users_apart(running: Running) -> None:
    assert [cached(ask(running, cache_salt=s)) for s in ("x", "y", "x", "y")] == [0, 0, 12, 12]


def test_a_reset_that_does_nothing_is_seen(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "reset_prefix_cache", lambda self: None)
    with pytest.raises(AssertionError):
        test_it_is_emptied(running)


def test_what_the_tokenizer_is(running: Running) -> None:
    assert running.send("GET", "/tokenizer_info").json == {
        "tokenizer_class": "Bytes",
        "eos_token": "",
        "vocab_size": 12,
    }


@pytest.mark.parametrize(
    ("words", "on"), [([], True), (["--no-prefix-cache"], False), (["--no-enable-prefix-caching"], False)]
)
def test_the_switch(words: list[str], on: bool) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    serve.register(parser.add_subparsers())
    assert parser.parse_args(["serve", *words]).prefix_cache is on
