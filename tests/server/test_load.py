"""Many at once, and what goes wrong: cancelled, disconnected, failing, too many, shutting down. Nobody else notices."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import openai
import pytest
from server.serving import PATIENCE, Gate, Running, drafted, eventually, serving, toy

from draftproof.server.run import raise_file_limit
from draftproof.server.worker import Worker
from draftproof.types import Output, SamplingParams

PROMPT = "ab"


def _asked(rng: random.Random) -> dict[str, Any]:
    """Mixed parameters whose text the seed decides."""
    rule = {"speculative": {"rule": "coupled", "num_speculative_tokens": rng.randint(0, 5)}}
    extra: dict[str, Any] = {"top_k": rng.choice([0, 4]), "min_p": rng.choice([0.0, 0.1]), **rule}
    return {
        "prompt": [rng.randrange(1, 12) for _ in range(rng.randint(1, 9))],
        "max_tokens": rng.randint(1, 30),
        "seed": rng.randrange(1000),
        "temperature": rng.choice([0.0, 0.7, 1.0, 1.3]),
        "top_p": rng.choice([0.8, 1.0]),
        "presence_penalty": rng.choice([0.0, 1.0]),
        "stop": rng.choice([[], ["hello"], ["X", " b"]]),
        "extra_body": extra,
    }


def _alone(asked: dict[str, Any]) -> Output:
    """Without a draft, and without anybody else."""
    flat = {**asked, **asked["extra_body"]}
    names = ("max_tokens", "seed", "temperature", "top_p", "presence_penalty", "top_k", "min_p")
    params = SamplingParams(**{n: flat[n] for n in names}, stop=tuple(flat["stop"]), k=0, rule="coupled")
    return toy().generate([asked["prompt"]], params)[0]


async def _one(client: openai.AsyncOpenAI, asked: dict[str, Any], leave: int, late: float) -> tuple[bool, str]:
    """Whether the answer came to its end, and its text; a client that leaves does so after `leave` chunks. It comes
    `late` seconds late."""
    text, seen = "", 0
    await asyncio.sleep(late)
    async with await client.completions.create(model="toy", stream=True, **asked) as stream:
        async for chunk in stream:
            text, seen = text + chunk.choices[0].text, seen + 1
            if seen == leave:
                return False, text
    return True, text


def check_concurrent(running: Running, seed: int) -> None:
    rng = random.Random(seed)
    asked = [_asked(rng) for _ in range(64)]
    leave = [rng.choice([0, 0, 1, 3]) for _ in asked]
    late = [rng.expovariate(10.0) for _ in asked]

    async def every() -> list[tuple[bool, str]]:
        async with running.async_client() as client:
            return await asyncio.gather(*map(_one, [client] * len(asked), asked, leave, late))

    told = asyncio.run(every())
    assert sum(whole for whole, _ in told) > 10
    for one, (whole, text) in zip(asked, told, strict=True):
        want = _alone(one).text
        assert text == want if whole else want.startswith(text)
    running.idle()


def test_sixty_four_at_once_with_cancelling_each_equal_their_own_solo_runs() -> None:
    with serving(drafted(max_running=8, pages=24), max_queue=128) as running:
        for seed in range(2):
            check_concurrent(running, seed)


def _left_by(running: Running, gate: Gate, stream: bool) -> None:
    """A client that asks for much and goes away while its request runs; two more passes are let through."""
    body = b'{"model": "toy", "prompt": "ab", "max_tokens": 50, "ignore_eos": true, "stream": %s}' % (
        b"true" if stream else b"false"
    )
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        eventually(lambda: gate.closed)
        assert running.engine.busy
        gate.open(2)
        if stream:
            assert connection.recv(1)
        eventually(lambda: gate.closed)
    eventually(lambda: running.service.unsent == 0)
    gate.open(2)
    eventually(lambda: gate.closed or running.quiet)
    assert not gate.closed
    running.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_pages_within_a_step(stream: bool) -> None:
    engine = toy()
    gate = Gate(engine)
    with serving(engine) as running:
        _left_by(running, gate, stream)


@pytest.mark.parametrize("stream", [True, False])
def test_planted_forgotten_abort_is_seen(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy()
    gate = Gate(engine)
    with serving(engine) as running:
        monkeypatch.setattr(Worker, "_abort", lambda self, job: None)
        with pytest.raises(AssertionError):
            _left_by(running, gate, stream)
        monkeypatch.undo()
        gate.open()


def test_a_slow_reader_holds_nobody_up() -> None:
    """Its socket takes nothing in; the other one is answered, and so is it once it reads."""
    many = {"model": "toy", "prompt": ["a"] * 8, "n": 8, "max_tokens": 55, "stream": True, "seed": 1}
    extra = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    with serving(drafted(), max_queue=100) as running:
        stream = running.client.completions.create(**many, extra_body=extra)  # not read
        assert running.client.completions.create(model="toy", prompt="a", max_tokens=9, seed=2).choices[0].text
        eventually(lambda: running.service.worker.outstanding == 0)
        assert list(stream)[-1].usage.completion_tokens == 64 * 55
        running.idle()


def _failing(running: Running, passes: list[int]) -> None:
    """These passes of the model raise, counted from now on."""
    model, count = running.engine.target.forward, 0

    def forward(chunks: Any) -> Any:
        nonlocal count
        count += 1
        if count in passes:
            raise RuntimeError("planted")
        return model(chunks)

    running.engine.target.forward = forward  # type: ignore[method-assign]


def test_a_pass_that_fails_once_is_noticed_by_nobody() -> None:
    with serving(toy()) as running:
        _failing(running, [1, 3, 6])
        got = running.client.completions.create(model="toy", prompt=PROMPT, max_tokens=20, seed=1)
        assert got.choices[0].text == toy().generate(PROMPT, SamplingParams(max_tokens=20, seed=1))[0].text
        running.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_pass_that_fails_again_ends_its_requests_and_the_server_goes_on(stream: bool) -> None:
    with serving(toy()) as running:
        _failing(running, [3, 4])
        asked: dict[str, Any] = {"model": "toy", "prompt": PROMPT, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
        with pytest.raises(openai.APIError, match="planted") as raised:
            list(running.client.completions.create(**asked, stream=stream))
        assert raised.value.type == "server_error"
        running.idle()
        assert running.client.completions.create(**asked).usage.completion_tokens == 20


@pytest.mark.parametrize("stream", [True, False])
def test_logits_that_are_no_numbers_end_their_request_alone(stream: bool) -> None:
    """Another request of the same passes goes on."""
    engine = toy()
    model = engine.target.forward

    def forward(chunks: Any) -> Any:
        made = model(chunks)
        ends = np.cumsum([chunk.wanted for chunk in chunks])
        for chunk, end in zip(chunks, ends, strict=True):
            if chunk.tokens[0] == 8 and chunk.past == 0:  # "hello", as it is read
                made.logits[end - chunk.wanted : end] = np.nan
        return made

    engine.target.forward = forward  # type: ignore[method-assign]
    with serving(engine) as running:
        told: list[Any] = []
        other = threading.Thread(target=_ask, args=(running, told, 1))
        other.start()
        with pytest.raises(openai.APIError, match="largest is nan") as raised:
            list(running.client.completions.create(model="toy", prompt=["a", "hello"], stream=stream))
        assert raised.value.type == "server_error"
        other.join()
        assert told == [toy().generate(PROMPT, SamplingParams(max_tokens=20, seed=1, ignore_eos=True))[0].text]
        running.idle()


def test_who_waits_does_not_notice_a_failing_pass() -> None:
    engine = toy(max_running=1)
    gate = Gate(engine)
    with serving(engine) as running:
        _failing(running, [2, 3])
        told: list[Any] = []
        threads = [threading.Thread(target=_ask, args=(running, told, seed)) for seed in (1, 2)]
        threads[0].start()
        eventually(lambda: gate.closed)
        threads[1].start()
        eventually(lambda: running.service.worker.outstanding == 2)
        gate.open()
        for thread in threads:
            thread.join()
        assert sorted(map(type, told), key=str) == sorted([openai.InternalServerError, str], key=str)
        text = next(t for t in told if isinstance(t, str))
        assert text == toy().generate(PROMPT, SamplingParams(max_tokens=20, seed=2, ignore_eos=True))[0].text
        running.idle()


def _ask(running: Running, told: list[Any], seed: int) -> None:
    try:
        got = running.client.completions.create(
            model="toy", prompt=PROMPT, max_tokens=20, seed=seed, extra_body={"ignore_eos": True}
        )
        told.append(got.choices[0].text)
    except openai.APIError as error:
        told.append(error)


def _check_overload(running: Running, gate: Gate) -> None:
    """Four times what fits: two run, three wait, the others are told to come again; nothing is lost or changed."""
    told: list[Any] = []
    threads = [threading.Thread(target=_ask, args=(running, told, seed)) for seed in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(told) + running.service.worker.outstanding == 20)
    gate.open()
    for thread in threads:
        thread.join()
    refused = [t for t in told if isinstance(t, openai.RateLimitError)]
    assert (len(told), len(refused)) == (20, 15)
    assert all(int(t.response.headers["retry-after"]) >= 1 for t in refused)
    params = [SamplingParams(max_tokens=20, seed=seed, ignore_eos=True) for seed in range(20)]
    alone = {output.text for output in toy().generate([PROMPT] * 20, params)}
    assert {t for t in told if isinstance(t, str)} <= alone
    running.idle()


def test_overload_is_told() -> None:
    engine = toy(max_running=2)
    gate = Gate(engine)
    with serving(engine, max_queue=3) as running:
        _check_overload(running, gate)
        got = running.send("POST", "/v1/completions", {"prompt": "a", "n": 6})
        assert (got.status, got.error["param"]) == (400, "n")  # would never fit


def test_planted_unbounded_queue_is_seen() -> None:
    engine = toy(max_running=2)
    gate = Gate(engine)
    with serving(engine, max_queue=3) as running:
        running.service._most = 1000
        with pytest.raises(AssertionError):
            _check_overload(running, gate)


def _check_crowd(running: Running, count: int) -> None:
    """So many connections, of which every second one has begun a request; somebody else asks and is answered."""
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    with ExitStack() as crowd:
        for i in range(count):
            connection = crowd.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))
            if i % 2:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        eventually(lambda: len(running.server.server_state.connections) >= count)
        told: list[Any] = []
        _ask(running, told, 1)
        assert told == [toy().generate(PROMPT, SamplingParams(max_tokens=20, seed=1, ignore_eos=True))[0].text]
    eventually(lambda: len(running.server.server_state.connections) <= 1)
    running.idle()


@pytest.fixture
def few_files() -> Iterator[None]:
    """The limit that a shell often has: a process may raise it itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_two_thousand_connections_are_noticed_by_nobody(few_files: None) -> None:
    with serving(toy()) as running:
        raise_file_limit()
        _check_crowd(running, 2000)


def test_planted_small_limit_is_seen(few_files: None) -> None:
    with serving(toy()) as running, pytest.raises(OSError, match="Too many open files"):
        _check_crowd(running, 2000)


def _one_after_another(running: Running) -> None:
    for seed in range(8):
        assert running.client.completions.create(model="toy", prompt="a", max_tokens=2, seed=seed).choices


def test_ends_are_counted() -> None:
    with serving(toy(max_running=2), max_queue=3) as running:
        _one_after_another(running)


def test_planted_uncounted_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_ended", lambda self, job, output: setattr(job, "left", job.left - 1))
    with serving(toy(max_running=2), max_queue=3) as running, pytest.raises(openai.RateLimitError):
        _one_after_another(running)


def test_shutting_down_finishes_what_runs_and_refuses_the_rest() -> None:
    engine = toy()
    gate = Gate(engine)
    with serving(engine, grace=60.0) as running:
        told: list[Any] = []
        thread = threading.Thread(target=_ask, args=(running, told, 1))
        thread.start()
        eventually(lambda: gate.closed)
        running.server._loop.call_soon_threadsafe(running.server.end)
        eventually(lambda: not running.service.healthy)
        got = running.send("POST", "/v1/completions", {"prompt": "a"})
        assert (got.status, got.error["code"]) == (503, "shutting_down")
        assert running.send("GET", "/health").status == 503
        gate.open()
        thread.join()
        assert told == [toy().generate(PROMPT, SamplingParams(max_tokens=20, seed=1, ignore_eos=True))[0].text]
        running.thread.join()


def test_what_outlasts_the_grace_time_is_ended() -> None:
    engine = toy()
    gate = Gate(engine)
    with serving(engine, grace=0.0) as running:
        told: list[Any] = []
        thread = threading.Thread(target=_ask, args=(running, told, 1))
        thread.start()
        eventually(lambda: gate.closed)
        running.server._loop.call_soon_threadsafe(running.server.end)
        eventually(lambda: not running.service.healthy)
        eventually(lambda: running.service.worker._commands.qsize() > 0)
        gate.open(1)
        thread.join()
        running.thread.join()
        gate.open()
        assert isinstance(told[0], openai.APIError)
        assert engine.pool.held == 0
        engine.audit()


def test_a_dead_engine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(toy()) as running:
        monkeypatch.setattr(Worker, "_after_failure", lambda self, error: 1 / 0)
        _failing(running, list(range(1, 100)))
        with pytest.raises(openai.InternalServerError, match="has stopped"):
            running.client.completions.create(model="toy", prompt=PROMPT)
        got = running.send("POST", "/v1/completions", {"prompt": "a"})
        assert (got.status, got.error["code"]) == (503, "engine_stopped")
        assert running.send("GET", "/health").status == 503


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with serving(toy(), body_seconds=0.05) as running:
        host, _, port = running.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
        running.idle()


def test_a_client_that_leaves_within_its_body_is_no_error() -> None:
    with serving(toy()) as running:
        host, _, port = running.url.removeprefix("http://").rpartition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert running.client.completions.create(model="toy", prompt="a", max_tokens=2).choices
        running.idle()
