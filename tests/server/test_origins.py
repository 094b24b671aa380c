"""Where each token came from, as `return_token_origins` tells it: what the engine's own steps say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from server.serving import Running, drafted, serving

from draftproof.server import answers
from draftproof.types import Kind, Output, SamplingParams

ASKED: dict[str, Any] = {"model": "toy", "prompt": "ab", "max_tokens": 40}
ORIGINS = {"return_token_origins": True}
STOP = "XXX"  # never comes, but what may begin it waits


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(drafted()) as made:
        yield made
        made.idle()


def wanted(output: Output) -> list[str]:
    """From the steps: accepted tokens, and one more that is plain if nothing was proposed."""
    told: list[str] = []
    for step in output.steps:
        last = str(step.kind) if step.proposed else "plain"
        told += ["accepted"] * step.accepted + [last] * (len(step.emitted) - step.accepted)
    return told


def alone(seed: int, k: int | None, stop: tuple[str, ...]) -> Output:
    return drafted().generate("ab", SamplingParams(max_tokens=40, seed=seed, k=k, stop=stop))[0]


def check_origins(running: Running, k: int | None, stop: Sequence[str]) -> None:
    extra: dict[str, Any] = {**ORIGINS, **({} if k is None else {"speculative": {"num_speculative_tokens": k}})}
    for seed in range(8):
        want = alone(seed, k, tuple(stop))
        asked = {**ASKED, "seed": seed, "extra_body": extra, "stop": list(stop)}
        whole = running.client.completions.create(**asked).choices[0]
        assert [entry["origin"] for entry in whole.token_origins] == wanted(want)
        chunks = [c.choices[0] for c in running.client.completions.create(**asked, stream=True)]
        assert [entry for c in chunks for entry in c.token_origins] == whole.token_origins
        for c in chunks:
            assert c.text.startswith("".join(entry["text"] for entry in c.token_origins))


@pytest.mark.parametrize("stop", [(), (STOP,)], ids=["free", "held"])
@pytest.mark.parametrize("k", [None, 1, 0])
def test_origins_are_those_of_the_steps(running: Running, k: int | None, stop: Sequence[str]) -> None:
    check_origins(running, k, stop)


def test_all_four_origins_come_up() -> None:
    told = [wanted(alone(seed, k, ())) for seed in range(8) for k in (0, 1, 4)]
    assert {origin for one in told for origin in one} == {"accepted", "residual", "bonus", "plain"}


def test_a_chat_tells_them_beside_its_delta(running: Running) -> None:
    asked: dict[str, Any] = {
        "model": "toy",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 20,
        "seed": 1,
    }
    whole = running.client.chat.completions.create(**asked, extra_body=ORIGINS)
    chunks = list(running.client.chat.completions.create(**asked, extra_body=ORIGINS, stream=True))
    told = [entry for c in chunks for entry in c.choices[0].token_origins]
    assert told == whole.choices[0].token_origins
    assert len(told) == whole.usage.completion_tokens


def test_they_are_told_only_if_asked_for(running: Running) -> None:
    got = running.send("POST", "/v1/completions", {**ASKED, "seed": 1})
    assert "token_origins" not in got.json["choices"][0]


def _forgetful(kinds: Sequence[Kind], before: Kind) -> tuple[str, ...]:
    """A bonus whose accepted tokens came with the chunk before is taken for a plain token."""
    return _ORIGINS(kinds, Kind.PROMPT)


def _as_they_are(kinds: Sequence[Kind], before: Kind) -> tuple[str, ...]:
    return tuple(map(str, kinds))


_ORIGINS = answers._origins


@pytest.mark.parametrize(("fault", "k", "stop"), [(_forgetful, None, (STOP,)), (_as_they_are, 0, ())])
def test_planted_wrong_origin_is_seen(
    running: Running, fault: Any, k: int | None, stop: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_origins", fault)
    with pytest.raises(AssertionError):
        check_origins(running, k, stop)
