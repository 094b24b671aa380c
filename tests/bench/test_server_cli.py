"""`draftproof bench --server` from its options to its exit status, against servers that make their answers up."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.fake_server import Fake, serving

from draftproof import bench as package
from draftproof.bench import http
from draftproof.bench.results import read
from draftproof.cli.main import main

Run = tuple[int, str, str]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A runner collects garbage before each run, which takes long where so much is loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    told = [
        {"prompt": f"{kind} {i}", "kind": kind, "length": n} for kind in "ab" for i, n in enumerate(("short", "long"))
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, told)), encoding="utf-8")
    return str(tmp_path / "p.jsonl")


@pytest.fixture
def run(prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def call(*args: str, out: str = "r.jsonl") -> Run:
        common = ("--prompts", prompts, "--short", "5", "--long", "9", "--out", str(tmp_path / out))
        status = main(["bench", *common, *args])
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


def test_it_measures_a_server(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake()) as fake:
        page = tmp_path / "p.html"
        status, shown, err = run("--server", fake.url, "--concurrency", "1,2", "--k", "3,auto", "--html", str(page))
    assert status == 0, err
    assert "1 at a time" in shown
    assert "2 at a time" in shown
    result = read(tmp_path / "r.jsonl")
    assert result.complete
    plan = result.plan
    assert plan.environment["server"] == fake.url
    assert plan.environment["server version"] == "1.2.3"
    assert plan.environment["server prefix cache"] == "emptied before each run"
    assert plan.target.name == "toy"
    assert plan.target.settings["prompts"].startswith("token ids")
    assert plan.target.settings["tokens of a chunk by"] == "token ids of each chunk"
    assert {p.tokens for p in plan.prompts} == {3}
    assert fake.url in page.read_text(encoding="utf-8")


def test_it_measures_two_servers(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(k=3, heeds=False)) as fake, serving(Fake(heeds=False)) as plain:
        status, _, err = run("--server", fake.url, "--plain-server", plain.url, "--rate", "900")
        assert status == 0, err
        plan = read(tmp_path / "r.jsonl").plan
        assert [c.name for c in plan.configs] == ["plain", "k=3"]  # as the server says itself
        assert plan.environment["plain server"] == plain.url
        assert plan.load.rates == (900.0,)
        wrong = run("--server", fake.url, "--plain-server", plain.url, "--k", "2", out="x.jsonl")
        assert wrong[0] == 2
        assert "says that its draft length is 3" in wrong[2]
        fake.metrics = False
        silent = run("--server", fake.url, "--plain-server", plain.url, out="x.jsonl")
        assert "say which by --k" in silent[2]
        assert not (tmp_path / "x.jsonl").exists()


def test_a_server_that_ignores_the_draft_length_is_not_measured_against_itself(run) -> None:  # type: ignore[no-untyped-def]
    """Planted: it takes the field and does as ever, and both configurations would be the same."""
    with serving(Fake(k=3, heeds=False)) as fake:
        status, _, err = run("--server", fake.url, "--k", "3")
    assert status == 2
    assert "does not take a draft length with each request" in err
    assert "--plain-server" in err


def test_servers_that_cannot_be_a_pair(run) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(k=3, heeds=False)) as fake, serving(Fake(heeds=False, tokenizes="llama")) as plain:
        assert "are the same" in run("--server", fake.url, "--plain-server", f"{fake.url}/v1", "--k", "3")[2]
        assert "as other tokens" in run("--server", fake.url, "--plain-server", plain.url, "--k", "3")[2]
        plain.tokenizes = "vllm"
        rule = run("--server", fake.url, "--plain-server", plain.url, "--k", "3", "--rule", "token")
        assert "--rule has no effect" in rule[2]
        assert rule[0] == 2


@pytest.mark.parametrize(("tokenizes", "prompt"), [("llama", [ord(c) for c in "<a 0>"]), ("", "a 0")])
def test_prompts_go_as_tokens_where_the_server_gives_them(run, tmp_path: Path, tokenizes: str, prompt: object) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(tokenizes=tokenizes)) as fake:
        status, _, err = run("--server", fake.url, "--k", "3")
    assert status == 0, err
    assert prompt in [body["prompt"] for body in fake.streamed]
    told = read(tmp_path / "r.jsonl").plan.target.settings["prompts"]
    assert told.startswith("texts" if tokenizes == "" else "token ids")


def test_a_server_that_goes_away(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What is done stays, to the byte; the rest is measured when the server is there again, and nothing twice."""
    path = tmp_path / "r.jsonl"
    with serving(Fake(dies_at=10)) as fake:
        status, _, err = run("--server", fake.url, "--k", "3")
    assert status == 2
    assert "--resume" in err
    assert f"the server at {fake.url} is not there" in err.splitlines()[-1]
    before, done = path.read_bytes(), read(path)
    assert 0 < len(done.runs) < len(done.plan.runs)
    assert not done.complete
    status, _, err = run("--server", fake.url, "--k", "3", "--resume")  # still away
    assert status == 2
    assert "is not there" in err
    assert path.read_bytes() == before
    with serving(Fake(port=fake.port)):
        status, _, err = run("--server", fake.url, "--k", "3", "--resume")
    assert status == 0, err
    assert path.read_bytes().startswith(before)
    found = read(path)
    assert Counter((r.group, r.config) for r in found.runs) == Counter(found.plan.runs)
    assert {q.finish for r in found.runs for q in r.requests} == {"length"}
    assert found.resumed == 1


def test_another_server_is_no_resumption(run) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(dies_at=10)) as fake:
        run("--server", fake.url, "--k", "3")
    with serving(Fake(port=fake.port, model="other")):
        status, _, err = run("--server", fake.url, "--k", "3", "--resume")
    assert status == 2
    assert "another plan" in err


def test_a_refused_request_stops_the_bench(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(refuses_at=10)) as fake:
        status, _, err = run("--server", fake.url, "--k", "3")
    assert status == 2
    assert "refused a request, 429: too many requests" in err.splitlines()[-1]
    assert read(tmp_path / "r.jsonl").runs


def test_ctrl_c_keeps_what_is_done(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    real, calls = http.HttpRunner.run, []

    def tired(self, group, config, asked):  # type: ignore[no-untyped-def]
        calls.append(group)
        if len(calls) == 2 + 4:  # two warm up
            raise KeyboardInterrupt
        return real(self, group, config, asked)

    monkeypatch.setattr(http.HttpRunner, "run", tired)
    with serving(Fake()) as fake:
        status, _, err = run("--server", fake.url, "--k", "3")
        assert status == 130
        assert "interrupted: 3 of" in err
        monkeypatch.undo()
        assert run("--server", fake.url, "--k", "3", "--resume")[0] == 0
    assert read(tmp_path / "r.jsonl").complete


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--model", "other.gguf"), "--model has no effect with --server"),
        (("--kv-memory", "5"), "--kv-memory has no effect"),
        (("--draft", "ngram"), "--draft has no effect"),
        (("--batches", "2"), "say --concurrency"),
        (("--concurrency", "1", "--rate", "1"), "one after the other"),
        (("--concurrency", "1,x"), "--concurrency 1,x"),
        (("--concurrency", ""), "--concurrency"),
        (("--concurrency", "2,2"), "each once"),
        (("--concurrency", "9"), "only 4 prompts"),
        (("--rate", "0"), "above 0"),
        (("--rate", "nan"), "above 0"),
        (("--timeout", "0"), "--timeout"),
        (("--k", ""), "--k is empty"),
        (("--k", "65"), "from 1 to 64"),
        (("--rule", "bogus"), "bogus"),
        (("--server", "http://192.0.2.1"), "--allow-remote"),
        (("--long", "5000"), "exceed the context of 4000"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, tmp_path: Path, args: tuple[str, ...], said: str) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake()) as fake:
        status, out, err = run("--server", fake.url, "--k", "3", *args)
    assert status == 2
    assert out == ""
    assert err.splitlines()[-1].startswith("draftproof: ")
    assert said in err.splitlines()[-1]
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize("option", ["--rate", "--concurrency", "--plain-server", "--timeout"])
def test_options_of_a_server_need_one(run, option: str) -> None:  # type: ignore[no-untyped-def]
    status, _, err = run(option, "3")
    assert status == 2
    assert f"{option} has no effect without --server" in err


def test_nobody_there(run) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake()) as fake:
        pass
    status, _, err = run("--server", fake.url, "--k", "3")
    assert status == 2
    assert "is not there" in err


def test_the_library_is_named(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "httpx", None)
    for name in ("http", "server"):
        monkeypatch.delitem(sys.modules, f"draftproof.bench.{name}")
        monkeypatch.delattr(package, name)
    status, _, err = run("--server", "http://127.0.0.1:1", "--k", "3")
    assert status == 2
    assert "pip install 'draftproof[http]'" in err
