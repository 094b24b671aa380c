"""Completions with echo and logprobs: a prompt's likelihood as lm-eval reads it, and what the fields hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from server.serving import TOKENIZER, VOCAB, Running, drafted, serving, table

from draftproof.server import answers

TABLE = table()
PROMPTS = [[2, 1, 3, 8], [1, 4, 5, 7, 6, 7, 11], [9, 2], [3, 3, 3, 3, 2]]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(drafted()) as made:
        yield made
        made.idle()


def law(prefix: list[int]) -> np.ndarray:
    return np.log(TABLE(tuple(prefix)))


def likelihoods(answer: dict[str, Any], contexts: list[int]) -> list[tuple[float, bool]]:
    """As lm-eval's local-completions reads an answer: tokens behind the context, without the generated one."""
    found = []
    for choice, context in zip(sorted(answer["choices"], key=lambda c: c["index"]), contexts, strict=True):
        values = choice["logprobs"]["token_logprobs"][context:-1]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        found.append((sum(values), all(v == max(t.values()) for v, t in zip(values, tops, strict=True))))
    return found


def asked(**more: Any) -> dict[str, Any]:
    """lm-eval's body."""
    body = {"model": "toy", "prompt": PROMPTS, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    return {**body, "echo": True, **more}


def ask(running: Running, **more: Any) -> Any:
    got = running.send("POST", "/v1/completions", asked(**more))
    assert got.status == 200, got.body
    return got.json


def expected(prompt: list[int], context: int) -> tuple[float, bool]:
    laws = [law(prompt[:i]) for i in range(context, len(prompt))]
    values = [row[t] for row, t in zip(laws, prompt[context:], strict=True)]
    return sum(values), all(row.argmax() == t for row, t in zip(laws, prompt[context:], strict=True))


@pytest.mark.parametrize("context", [1, 2])
def test_likelihoods_are_the_models_own(running: Running, context: int) -> None:
    greedy = [2, 1]
    while len(greedy) < 6:
        greedy.append(int(law(greedy).argmax()))
    prompts = [p for p in PROMPTS if len(p) > context] + [greedy]
    contexts = [context] * (len(prompts) - 1) + [2]
    found = likelihoods(ask(running, prompt=prompts), contexts)
    for (value, best), prompt, start in zip(found, prompts, contexts, strict=True):
        want = expected(prompt, start)
        assert (value, best) == (pytest.approx(want[0], abs=1e-5), want[1])
    assert found[-1][1]


def test_an_end_token_counts_as_the_generated_one(running: Running) -> None:
    """Clients drop the last entry: without one for the end token they would drop a token of the prompt."""
    prompt = next(p for i in range(1, VOCAB) for j in range(1, VOCAB) if law(p := [i, j]).argmax() == 0)
    (choice,) = ask(running, prompt=[prompt])["choices"]
    assert (choice["finish_reason"], choice["text"]) == ("stop", "".join(TOKENIZER.WORDS[t].decode() for t in prompt))
    assert choice["logprobs"]["tokens"][-1] == "token_id:0"
    assert choice["logprobs"]["text_offset"][-1] == len(choice["text"])
    assert (
        likelihoods({"choices": [choice]}, [1]) == [(pytest.approx(expected(prompt, 1)[0], abs=1e-5), False)]
        or (expected(prompt, 1)[1])
    )


def test_a_row_beside_the_right_one_is_seen(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: each token is given the log-probability of the one before."""
    honest = running.engine.target.forward

    def forward(chunks: Any) -> Any:
        out = honest(chunks)
        out.logits[1:] = out.logits[:-1].copy()
        return out

    monkeypatch.setattr(running.engine.target, "forward", forward)
    found = likelihoods(ask(running), [1] * 4)
    assert all(
        value != pytest.approx(expected(p, 1)[0], abs=1e-3)
        for (value, _), p in zip(found, PROMPTS, strict=True)
        if len(p) > 2
    )


@pytest.mark.parametrize("most", [0, 1, 9])
def test_fields(running: Running, most: int) -> None:
    for choice, prompt in zip(ask(running, max_tokens=most, logprobs=3)["choices"], PROMPTS, strict=True):
        told, text = choice["logprobs"], choice["text"]
        names = [answers.token_name(TOKENIZER, t) for t in prompt]
        assert told["tokens"][: len(prompt)] == names
        assert len({len(values) for values in told.values()}) == 1
        assert len(prompt) <= len(told["tokens"]) <= len(prompt) + most
        assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
        assert all(3 <= len(top) <= 4 for top in told["top_logprobs"][1:])
        assert told["text_offset"] == sorted(told["text_offset"])
        for name, start in zip(told["tokens"], told["text_offset"], strict=True):
            assert name.startswith(("bytes:", "token_id:")) or text[start:].removeprefix("\ufffd").startswith(name)
        if most == 0:
            assert choice["finish_reason"] == "length"
            assert len(told["tokens"]) == len(prompt)


def test_a_text_and_a_stream_say_the_same(running: Running) -> None:
    prompt, text = [1, 4, 5, 8], "a😀hello"
    whole = ask(running, prompt=text, max_tokens=9, n=2, temperature=1)
    assert ask(running, prompt=[prompt], max_tokens=9, n=2, temperature=1)["choices"] == whole["choices"]
    assert all(choice["text"].startswith(text) for choice in whole["choices"])
    chunks = running.client.completions.create(
        model="toy", prompt=text, max_tokens=9, n=2, temperature=1, logprobs=1, seed=1234, echo=True, stream=True
    )
    seen: dict[int, dict[str, list[Any]]] = {0: {}, 1: {}}
    for part in (c.choices[0] for c in chunks):
        for name, values in part.logprobs.model_dump().items():
            seen[part.index].setdefault(name, []).extend(values)
    assert [seen[i] for i in range(2)] == [choice["logprobs"] for choice in whole["choices"]]
    assert running.send("POST", "/v1/completions", asked(max_tokens=0)).json["usage"]["completion_tokens"] == 0


def test_an_impossible_token_is_written_as_a_number() -> None:
    def never(prefix: tuple[int, ...]) -> np.ndarray:
        return np.array([0.0 if t == 2 else 1.0 for t in range(VOCAB)]) / (VOCAB - 1)

    with serving(drafted(table=never)) as made:
        (choice,) = ask(made, prompt=[[1, 2, 3]], logprobs=20)["choices"]
    assert choice["logprobs"]["token_logprobs"][1:3] == [-9999.0, pytest.approx(-math.log(VOCAB - 1))]


def test_without_echo_the_prompt_is_not_scored(running: Running) -> None:
    (choice,) = ask(running, prompt=[PROMPTS[0]], echo=False, max_tokens=3)["choices"]
    assert len(choice["logprobs"]["tokens"]) <= 3
    got = running.send("POST", "/v1/completions", asked(echo=False, max_tokens=0))
    assert (got.status, got.error["param"]) == (400, "max_tokens")
    assert "echo and logprobs" in got.error["message"]
