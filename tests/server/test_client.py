"""The openai client, unmodified, against every endpoint; what it reads is what the engine alone would say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from server.serving import TOKENIZER, Running, drafted, serving, toy

from draftproof.server import answers, app, params
from draftproof.types import Output, SamplingParams

PROMPT = "ab"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(drafted()) as made:
        yield made
        made.idle()


def alone(prompt: str | list[int] = PROMPT, **params: Any) -> Output:
    """What the engine says to this request when nothing else runs."""
    return drafted().generate(prompt, SamplingParams(**params))[0]


def test_completion_equals_the_engine_alone(running: Running) -> None:
    for seed in range(5):
        got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=20, seed=seed)
        want = alone(max_tokens=20, seed=seed)
        assert got.choices[0].text == want.text
        assert got.choices[0].finish_reason == str(want.finish)
        check_usage(got, 2, len(want.tokens))


def check_usage(got: Any, prompt: int, completion: int) -> None:
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (prompt, completion)
    assert got.usage.total_tokens == prompt + completion


@pytest.mark.parametrize("prompts", [[1, 2, 3], ["ab", "hello"], [[1, 2], [3]]], ids=str)
def test_prompts_as_ids_and_lists(running: Running, prompts: Any) -> None:
    got = running.client.completions.create(model="toy", prompt=prompts, max_tokens=6, seed=5, n=2)
    each = [prompts] if isinstance(prompts[0], int) else prompts
    assert [choice.index for choice in got.choices] == list(range(2 * len(each)))
    seeds = [(5 + i * params._STRIDE) % 2**64 for i in range(2 * len(each))]
    wanted = [alone(each[i // 2], max_tokens=6, seed=seeds[i]) for i in range(2 * len(each))]
    assert [choice.text for choice in got.choices] == [output.text for output in wanted]
    sizes = [len(TOKENIZER.encode(p)) if isinstance(p, str) else len(p) for p in each]
    check_usage(got, sum(sizes), sum(len(output.tokens) for output in wanted))


def test_choices_differ(running: Running) -> None:
    got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=12, seed=5, n=4)
    assert len({choice.text for choice in got.choices}) == 4


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"stop": "b"},
        {"stop": ["hello", " X"]},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": {"1": -100, "8": 3}},
        {"max_tokens": 30, "extra_body": {"min_tokens": 20}},
        {"extra_body": {"top_k": 3}},
        {"extra_body": {"min_p": 0.3}},
        {"extra_body": {"repetition_penalty": 1.7}},
        {"extra_body": {"stop_token_ids": [2, 3]}},
        {"max_tokens": 40, "extra_body": {"ignore_eos": True}},
        {"extra_body": {"speculative": {"num_speculative_tokens": 1}}},
        {"extra_body": {"speculative": {"num_speculative_tokens": 0}}},
        {"extra_body": {"speculative": {"rule": "token", "num_speculative_tokens": 3, "method": "toy-draft"}}},
        {"extra_body": {"speculative": {"rule": "coupled"}}},
    ],
    ids=str,
)
def test_every_field_reaches_the_engine(running: Running, asked: dict[str, Any]) -> None:
    given: dict[str, Any] = {"max_tokens": 16, "seed": 11, **asked}
    flat = {**given, **given.pop("extra_body", {})}
    flat.pop("extra_body", None)
    speculative = flat.pop("speculative", {})
    renamed = {"num_speculative_tokens": "k", "rule": "rule"}
    flat |= {renamed[name]: value for name, value in speculative.items() if name in renamed}
    if "stop" in flat:
        flat["stop"] = (flat["stop"],) if isinstance(flat["stop"], str) else tuple(flat["stop"])
    if "logit_bias" in flat:
        flat["logit_bias"] = {int(token): bias for token, bias in flat["logit_bias"].items()}
    if "stop_token_ids" in flat:
        flat["stop_token_ids"] = tuple(flat["stop_token_ids"])
    want = alone(**flat)
    plain = alone(max_tokens=16, seed=11)
    assert want != plain
    got = running.client.completions.create(model="toy", prompt=PROMPT, **{"max_tokens": 16, "seed": 11, **asked})
    assert (got.choices[0].text, got.choices[0].finish_reason) == (want.text, str(want.finish))
    assert got.metrics["speculative_decoding"]["num_draft_tokens"] == sum(len(s.proposed) for s in want.steps)


def test_streamed_equals_unstreamed(running: Running) -> None:
    client = running.client
    for seed in range(8):
        asked: dict[str, Any] = {"model": "toy", "prompt": PROMPT, "max_tokens": 40, "seed": seed, "n": 2}
        whole = client.completions.create(**asked)
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(client.completions.create(**asked, stream=True, stream_options=options))
        for choice in whole.choices:
            mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
            assert "".join(c.text for c in mine) == choice.text
            assert [c.finish_reason for c in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        counts = [c.usage.completion_tokens for c in chunks]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]


def test_chat_streamed_and_not(running: Running) -> None:
    client = running.client
    messages: Any = [{"role": "system", "content": "b"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]
    asked: dict[str, Any] = {"model": "toy", "messages": messages, "max_completion_tokens": 30, "seed": 4}
    want = alone([9, 2, 10, 9, 1, 10], max_tokens=30, seed=4)
    whole = client.chat.completions.create(**asked)
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == want.text
    check_usage(whole, 6, len(want.tokens))
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.object == "chat.completion.chunk" for c in chunks)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == want.text
    assert chunks[-1].choices[0].finish_reason == str(want.finish)
    assert len({c.id for c in chunks}) == 1


def test_a_chat_without_a_limit_goes_to_the_end_of_the_context(running: Running) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "a"}], "seed": 1, "extra_body": {"ignore_eos": True}}
    got = running.client.chat.completions.create(model="toy", **asked)
    assert got.choices[0].finish_reason == "length"
    assert got.usage.total_tokens == running.engine.context


def test_logprobs(running: Running) -> None:
    want = alone(max_tokens=12, seed=6, logprobs=3)
    assert want.logprobs
    got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=12, seed=6, logprobs=3)
    told = got.choices[0].logprobs
    assert told.token_logprobs == [pytest.approx(entry.logprob) for entry in want.logprobs]
    assert told.tokens == [answers.token_name(TOKENIZER, t) for t in want.tokens]
    for entry, top in zip(want.logprobs, told.top_logprobs, strict=True):
        assert set(top) == {answers.token_name(TOKENIZER, t) for t in (*(t for t, _ in entry.top), entry.token)}
    for name, start in zip(told.tokens, told.text_offset, strict=True):
        assert name.startswith(("bytes:", "token_id:")) or _rest(got, start).startswith(name)
    chunks = running.client.completions.create(
        model="toy", prompt=PROMPT, max_tokens=12, seed=6, logprobs=3, stream=True
    )
    seen = [c.choices[0].logprobs for c in chunks]
    assert [t for s in seen for t in s.tokens] == told.tokens
    assert [t for s in seen for t in s.text_offset] == told.text_offset


def _rest(got: Any, start: int) -> str:
    """An incomplete character before a token is told of with it."""
    return str(got.choices[0].text[start:].removeprefix("\ufffd"))


def test_chat_logprobs(running: Running) -> None:
    messages: Any = [{"role": "user", "content": "a"}]
    asked: dict[str, Any] = {"model": "toy", "messages": messages, "max_tokens": 12, "seed": 6, "logprobs": True}
    got = running.client.chat.completions.create(**asked, top_logprobs=2)
    want = alone([9, 1, 10], max_tokens=12, seed=6, logprobs=2)
    content = got.choices[0].logprobs.content
    assert [entry.logprob for entry in content] == [pytest.approx(entry.logprob) for entry in want.logprobs or ()]
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    text = b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace")
    assert text == want.text
    assert running.client.chat.completions.create(**asked).choices[0].logprobs.content[0].top_logprobs == []


def test_echo_and_token_ids(running: Running) -> None:
    want = alone(max_tokens=8, seed=2)
    extra = {"return_token_ids": True}
    asked: dict[str, Any] = {"model": "toy", "max_tokens": 8, "seed": 2, "echo": True, "extra_body": extra}
    for prompt in (PROMPT, [1, 2]):
        got = running.client.completions.create(prompt=prompt, **asked).choices[0]
        assert got.text == PROMPT + want.text
        assert (got.prompt_token_ids, got.token_ids) == ([1, 2], list(want.tokens))
    chunks = [c.choices[0] for c in running.client.completions.create(prompt=PROMPT, **asked, stream=True)]
    assert "".join(c.text for c in chunks) == PROMPT + want.text
    assert [t for c in chunks for t in c.token_ids] == list(want.tokens)
    assert chunks[0].prompt_token_ids == [1, 2]
    chat = running.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "a"}], max_tokens=3, extra_body=extra
    )
    assert chat.prompt_token_ids == [9, 1, 10]
    assert len(chat.choices[0].token_ids) == chat.usage.completion_tokens


def test_the_async_client(running: Running) -> None:
    async def both() -> tuple[str, str]:
        async with running.async_client() as client:
            whole = await client.completions.create(model="toy", prompt=PROMPT, max_tokens=20, seed=1)
            stream = await client.completions.create(model="toy", prompt=PROMPT, max_tokens=20, seed=1, stream=True)
            return whole.choices[0].text, "".join([c.choices[0].text async for c in stream])

    want = alone(max_tokens=20, seed=1).text
    assert asyncio.run(both()) == (want, want)


def test_models(running: Running) -> None:
    (card,) = running.client.models.list().data
    assert (card.id, card.root, card.max_model_len) == ("toy", "toy-root", running.engine.context)
    assert running.client.models.retrieve("toy") == card
    with pytest.raises(openai.NotFoundError, match="ask for toy"):
        running.client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="ask for toy"):
        running.client.completions.create(model="other", prompt=PROMPT)


def test_tokens_and_back(running: Running) -> None:
    got = running.send("POST", "/tokenize", {"prompt": "hello a", "return_token_strs": True}).json
    assert (got["tokens"], got["count"], got["max_model_len"]) == ([8, 3, 1], 3, running.engine.context)
    assert got["token_strs"] == ["hello", " ", "a"]
    assert running.send("POST", "/tokenize", {"messages": [{"role": "user", "content": "a"}]}).json["count"] == 3
    assert running.send("POST", "/detokenize", {"tokens": [4, 5, 8, 0]}).json == {"prompt": "😀hello"}


def test_version_and_health(running: Running) -> None:
    assert running.send("GET", "/version").json["version"]
    assert running.send("GET", "/health").status == 200


def test_speculation_is_told_under_vllms_names(running: Running) -> None:
    want = alone(max_tokens=30, seed=3)
    got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=30, seed=3)
    told = got.metrics["speculative_decoding"]
    steps = [s for s in want.steps if s.proposed]
    accepted, drafted_tokens = sum(s.accepted for s in steps), sum(len(s.proposed) for s in steps)
    assert (told["num_spec_steps"], told["num_draft_tokens"]) == (len(steps), drafted_tokens)
    assert told["num_accepted_draft_tokens"] == accepted
    assert told["mean_acceptance_length"] == pytest.approx(1 + accepted / len(steps))
    assert told["draft_acceptance_rate"] == pytest.approx(accepted / drafted_tokens)
    assert sum(told["acceptance_histogram"]) == len(steps)
    assert sum(n * count for n, count in enumerate(told["acceptance_histogram"])) == accepted
    plain = {"speculative": {"num_speculative_tokens": 0}}
    got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=30, seed=3, extra_body=plain)
    assert got.metrics["speculative_decoding"]["num_spec_steps"] == 0


def test_prediction_feeds_the_proposer_and_is_counted() -> None:
    from draftproof.draft.prediction import PredictionProposer

    expected = toy().generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))[0]
    engine = toy(PredictionProposer(TOKENIZER.vocab), settings={"draft": "prediction"})
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "model": "toy", "prompt": PROMPT}
    text = "".join(w for w in (answers.token_name(TOKENIZER, t) for t in expected.tokens) if ":" not in w)
    with serving(engine) as running:
        extra = {"ignore_eos": True, "prediction": {"type": "content", "content": text}}
        got = running.client.completions.create(**asked, extra_body=extra)
        want = engine_alone(PredictionProposer(TOKENIZER.vocab), TOKENIZER.encode(text))
        assert got.choices[0].text == expected.text
        details = got.usage.completion_tokens_details
        assert details.accepted_prediction_tokens == sum(s.accepted for s in want.steps)
        rejected = sum(len(s.proposed) - s.accepted for s in want.steps)
        assert details.rejected_prediction_tokens == rejected
        assert details.accepted_prediction_tokens + rejected > 0
        without = running.client.completions.create(**asked, extra_body={"ignore_eos": True})
        assert without.usage.completion_tokens_details is None


def engine_alone(proposer: Any, prediction: list[int]) -> Output:
    engine = toy(proposer, settings={"draft": "prediction"})
    engine.add(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), prediction)
    while True:
        for event in engine.step():
            if event.output is not None:
                return event.output


# planted faults


def _miscounted(self: answers.Answer) -> Any:
    told = _USAGE(self)
    return {**told, "completion_tokens": told["completion_tokens"] + 1, "total_tokens": told["total_tokens"] + 1}


def _stripped(self: answers.Answer, part: answers.Part) -> Any:
    return _CHUNK(self, part._replace(text=part.text.lstrip(" \n")))


def _late_text_lost(self: answers.Answer, index: int, event: Any) -> Any:
    """What an incomplete character leaves at the very end never comes."""
    return _PUSH(self, index, replace(event, text="".join(event.pieces)) if self._plan.stream else event)


_USAGE, _CHUNK, _PUSH = answers.Answer.usage, answers.Answer.chunk, answers.Answer.push
FAULTS: dict[str, tuple[Any, str, Any, Any]] = {
    "usage is one too many": (answers.Answer, "usage", _miscounted, test_completion_equals_the_engine_alone),
    "a stream's chunks are stripped": (answers.Answer, "chunk", _stripped, test_streamed_equals_unstreamed),
    "a stream loses its last text": (answers.Answer, "push", _late_text_lost, test_streamed_equals_unstreamed),
    "the seed is ignored": (params, "_seeded", lambda body, p, i: p, test_completion_equals_the_engine_alone),
    "all choices have one seed": (params, "_STRIDE", 0, test_choices_differ),
    "a prompt is counted once a choice": (
        params.Plan,
        "prompt_tokens",
        property(lambda plan: sum(len(ask.prompt) for ask in plan.asks)),
        lambda running: test_prompts_as_ids_and_lists(running, [1, 2, 3]),
    ),
    "streams end without the usage": (
        app,
        "_sent",
        lambda data: "" if data.get("choices") == [] else f"data: {app._dumped(data)}\n\n",
        test_streamed_equals_unstreamed,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_seen(name: str, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, fault, test = FAULTS[name]
    monkeypatch.setattr(place, attribute, fault)
    with pytest.raises((AssertionError, AttributeError)):
        test(running)
