"""Adapters of HTTP engines against good and bad servers on loopback that sample from a toy world."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verify.fake_engine import Fake, serving

from draftproof.verify import foreign, toy
from draftproof.verify.adapters import llama_server, vllm
from draftproof.verify.adapters.openai import HttpEngine
from draftproof.verify.adapters.registry import Drafting, Promise, Setup, adapter, started
from draftproof.verify.adapters.wire import Wire
from draftproof.verify.checks.law import LawBlock
from draftproof.verify.contract import Ability, Budget, EngineError, Job, Params, StepCount, Verdict
from draftproof.verify.outcome import Overall, conclude
from draftproof.verify.plan import Leg, VerifyError
from draftproof.verify.run import run_plan

WORLD = toy.world(toy.pair())
SPEAKS = {"vllm": "vllm", "llama-server": "llama", "sglang": "sglang", "openai": "openai"}
MODES = {"openai": "served"}
Make = Callable[..., tuple[HttpEngine, Fake]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(name: str, mode: str = "", **more: Any) -> tuple[HttpEngine, Fake]:
            fake = stack.enter_context(serving(Fake(WORLD, SPEAKS[name], **more)))
            plain = stack.enter_context(serving(Fake(WORLD, SPEAKS[name], k=0)))
            mode = mode or MODES.get(name, "draft")
            setup = Setup(mode, "", "", tmp_path, url=fake.url, options={"plain_url": plain.url})
            engine = started(name, setup)
            stack.callback(engine.close)
            return engine, fake  # type: ignore[return-value]

        yield made


@pytest.mark.parametrize("name", SPEAKS)
def test_tokens_of_every_engine_are_those_of_its_server(make: Make, name: str) -> None:
    engine, fake = make(name)
    jobs = [Job((5, 6, 7), Params(max_tokens=4, temperature=0.7, top_p=0.9, k=3), seed=n) for n in range(40)]
    samples = engine.sample(jobs)
    assert [s.tokens for s in samples] == [fake.tokens(j.prompt, j.params, j.seed or 0) for j in jobs]
    assert {s.finish for s in samples} == {"length"}
    assert {s.usage for s in samples} == {4}
    assert len(fake.asked) == len(jobs)


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.7"), ("llama-server", "b7"), ("openai", None)])
def test_a_version_is_told_where_there_is_one(make: Make, name: str, version: str | None) -> None:
    assert make(name)[0].describe().get("version") == version


@pytest.mark.parametrize("name", [n for n in SPEAKS if n != "openai"])
def test_drafts_are_counted_by_the_engine(make: Make, name: str) -> None:
    engine, _ = make(name)
    drafted, plain = engine.sample([Job((5, 6), Params(max_tokens=4, k=k), seed=1) for k in (3, 0)])
    assert (drafted.proposed, drafted.accepted) == (3, 3)
    assert not plain.proposed


def test_a_server_that_does_not_speculate_counts_nothing(make: Make) -> None:
    """Else its control would be taken for an engine that stopped drafting."""
    for mode, told in (("plain", None), ("draft", 0)):
        engine, _ = make("llama-server", mode, k=0)
        assert engine.sample([Job((5, 6), Params(max_tokens=4, k=3), seed=1)])[0].proposed == told


def test_plain_jobs_go_to_the_plain_server(make: Make) -> None:
    engine, fake = make("vllm")
    engine.sample([Job((5, 6), Params(max_tokens=2, k=0), seed=1)])
    assert not fake.asked
    assert Ability.PLAIN in engine.abilities


def test_all_parameters_reach_vllm(make: Make) -> None:
    engine, fake = make("vllm")
    params = Params(top_k=4, min_p=0.1, repetition_penalty=1.2, logit_bias=((7, 1.5),), max_tokens=3, min_tokens=1)
    engine.sample([Job((5, 6), params, seed=2**40)])
    told = fake.asked[0]
    assert {told[n] for n in ("top_k", "min_p", "repetition_penalty")} == {4, 0.1, 1.2}
    assert told["logit_bias"] == {"7": 1.5}
    assert told["seed"] < 2**32
    assert told["prompt"] == [5, 6]


def test_filters_of_llama_server_are_named_in_their_order(make: Make) -> None:
    engine, fake = make("llama-server")
    engine.sample(
        [Job((5,), Params(max_tokens=1), seed=1), Job((6,), Params(max_tokens=1, top_k=3, min_p=0.1), seed=1)]
    )
    by_prompt = {body["prompt"][0]: body["samplers"] for body in fake.asked}
    assert by_prompt == {5: ["penalties", "temperature"], 6: ["penalties", "temperature", "top_k", "min_p"]}


def test_a_stop_token_ends_vllms_output_before_itself(make: Make) -> None:
    engine, fake = make("vllm")
    job = Job((5, 6, 7), Params(max_tokens=4, logprobs=True), seed=3)
    free = fake.tokens(job.prompt, job.params, 3)
    stopped = replace(job, params=replace(job.params, stop_token_ids=free[2:3]))
    sample = engine.sample([stopped])[0]
    assert (sample.tokens, sample.finish) == (free[: free.index(free[2])], "stop")
    assert sample.usage == len(sample.tokens) == len(sample.logprobs or ())


def test_steps_of_vllm_begin_with_the_token_of_the_prompt(make: Make) -> None:
    engine, _ = make("vllm")
    sample = engine.sample([Job((5, 6), Params(max_tokens=4, k=3), seed=1)])[0]
    assert sample.steps == (StepCount(0, 0), StepCount(3, 3))


def test_counters_stand_in_where_vllm_tells_no_drafts_with_its_answers(make: Make) -> None:
    engine, _ = make("vllm", counters=True)
    samples = engine.sample([Job((5, 6), Params(max_tokens=4, k=3), seed=n) for n in range(5)])
    assert [s.proposed for s in samples] == [15, None, None, None, None]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("short", "returned 3 of 4 tokens"),
        ("closes", "broke an answer off in the middle"),
        ("garbage", "no JSON"),
        ("refuses", "answered 400: .*no such field"),
    ],
)
@pytest.mark.parametrize("name", SPEAKS)
def test_bad_servers_are_named_for_what_they_do(make: Make, name: str, fault: str, said: str) -> None:
    engine, _ = make(name, fault=fault)
    with pytest.raises(EngineError, match=said):
        engine.sample([Job((5, 6), Params(max_tokens=4, k=3), seed=1)])


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not there"):
        started("vllm", Setup("draft", "", "", tmp_path, url="http://127.0.0.1:9"))


def test_a_server_of_another_kind_is_refused(make: Make) -> None:
    fake = Fake(WORLD, "vllm")
    with serving(fake), pytest.raises(EngineError, match="answered 404"):
        started("llama-server", Setup("draft", "", "", Path(), url=fake.url))


def test_a_kept_connection_that_was_closed_is_opened_again(make: Make) -> None:
    with serving(Fake(WORLD, "vllm")) as fake:
        wire = Wire(fake.url)
        wire.json("/v1/models")
        wire._idle[0].sock.shutdown(2)
        assert wire.json("/v1/models")["data"]
        wire.close()


def test_unknown_words_are_no_tokens(make: Make, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("x\ny")
    with serving(Fake(WORLD, "openai")) as fake:
        setup = Setup("served", "", "", tmp_path, url=fake.url, options={"words": str(tmp_path / "words")})
        engine = started("openai", setup)
        with pytest.raises(EngineError, match="none of the 2 words"):
            engine.sample([Job((5,), Params(max_tokens=1), seed=1)])
        engine.close()


def _concluded(engine: HttpEngine, seed: int) -> Overall:
    """Seeds of the fake are independent, so an honest run fails by chance once in a million (alpha)."""
    budget = Budget(tv=0.04, level="quick", seed=seed)
    leg = Leg("fake", lambda: engine, WORLD, (LawBlock(),))
    return conclude(run_plan([leg], budget), budget).verdict


def test_a_good_server_is_exact_and_bad_ones_are_not(make: Make) -> None:
    """Greedy text is more than 0.9 away from its law; 0.32 is what these sample sizes must show, at 0.99."""
    assert _concluded(make("vllm")[0], 1) is Overall.EXACT
    assert _concluded(make("vllm", fault="greedy")[0], 1) is Overall.NOT_EXACT
    assert _concluded(make("vllm", fault="silent")[0], 1) is Overall.UNTESTED


@pytest.mark.parametrize("name", SPEAKS)
def test_every_adapter_has_a_control_or_says_what_it_cannot_know(name: str) -> None:
    modes = adapter(name).modes
    assert name == "openai" or {Promise.PLAIN, Promise.EXACT, Promise.APPROXIMATE} <= {
        m.promise for m in modes.values()
    }
    assert all(mode.drafting is Drafting.NONE for mode in modes.values() if mode.promise is Promise.PLAIN)


def test_llama_server_is_started_with_what_the_verdict_is_about(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    options = {"binary": str(tmp_path / "llama-server"), "args": "--no-mmap -ub 64", "slots": "4", "context": "100"}
    words = llama_server.words(Setup("draft-sampled", "t.gguf", "d.gguf", tmp_path, k=2, options=options), 81)
    told = " ".join(words[1:])
    for part in ("-m t.gguf", "-md d.gguf", "--spec-draft-n-max 2", "--spec-draft-sampling probabilistic", "-c 400"):
        assert part in told
    assert "-ctk f32 -ctv f32 -fa off" in told
    assert "-ctkd f32" in told
    assert told.endswith("--no-mmap -ub 64")
    plain = llama_server.words(Setup("draft", "t.gguf", "d.gguf", tmp_path, options=options), 81, "plain")
    assert not [word for word in plain if word.startswith("--spec") or word == "-md"]


def test_vllm_is_started_with_what_the_verdict_is_about(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    setup = Setup("block", "target", "draft", tmp_path, k=2, options={"python": str(python)})
    words = vllm.words(setup, 81, "block")
    assert words[:5] == [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", "target"]
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "draft_model",
        "model": "draft",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "num_speculative_tokens": 2,
    }
    assert words[words.index("--per-request-spec-decode-metrics") + 1] == "detailed"
    assert "--speculative-config" not in vllm.words(setup, 81, "plain")
    found = tmp_path / "lib" / "python3.11" / "site-packages" / "vllm-0.99.dist-info"
    found.mkdir(parents=True)
    assert vllm.front(python, "m") == [str(python.parent / "vllm"), "serve", "m"]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"engine": "vlmm"}, "no engine is called 'vlmm'"),
        ({"engine": "vllm", "modes": ("fast",)}, "no mode 'fast'"),
        ({"engine": "vllm", "url": "http://127.0.0.1:1"}, "say by --mode which"),
        ({"engine": "vllm", "url": "http://127.0.0.1:1", "modes": ("draft",), "model": "mine"}, "--plain-url"),
        ({"engine": "llama-server", "modes": ("draft",), "model": "mine.gguf"}, "--draft"),
        ({"engine": "sglang", "modes": ("draft",)}, "say where it is by --url"),
        ({"engine": "llama-server", "modes": ("plain",)}, "draftproof audit --prepare llama-server"),
        ({"engine": "vllm", "modes": ("plain",)}, "draftproof audit --prepare vllm"),
    ],
)
def test_wishes_that_cannot_be_met(wish: dict[str, Any], said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VerifyError, match=said):
        foreign.legs(foreign.Wish(home=tmp_path / "home", toys=tmp_path / "toys", **wish))


def test_a_model_without_exact_laws_is_compared_with_itself(make: Make, tmp_path: Path) -> None:
    _, fake = make("vllm")
    options = {"plain_url": fake.url}
    wish = foreign.Wish("vllm", tmp_path, tmp_path, ("draft",), "mine", url=fake.url, options=options)
    (leg,) = foreign.legs(wish)
    assert [c.name for c in leg.checks][:2] == ["blackbox/two-sample", "ends/pairs"]
    assert leg.world.draft is None


def test_a_server_of_public_fields_is_asked_for_nothing_else(make: Make, tmp_path: Path) -> None:
    """No top-k: a server that ignored it would be accused of another law. False alarm 1e-6, TV 0.32 seen."""
    engine, fake = make("openai")
    (leg,) = foreign.legs(foreign.Wish("openai", tmp_path, tmp_path, url=fake.url, options={"plain_url": fake.url}))
    ran = run_plan([replace(leg, engine=lambda: engine, checks=leg.checks[1:2])], Budget(tv=0.04, level="quick"))
    assert ran.entries[0].result.verdict is Verdict.HOLDS
    assert {n for body in fake.asked for n in body} <= {
        *("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "logprobs", "return_token_ids")
    }
    assert ran.engines[leg.name]["engine"].startswith("any OpenAI-compatible")
