"""Other engines beside ours: dispatch, figures, and one run of `draftproof bench --engine` over fakes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bench.fake import PARTS, FakeRunner, a_plan, result_of, sources
from bench.fake_server import Fake, serving
from tiny_models import TINY, write_gguf

from draftproof.bench.figures import figures
from draftproof.bench.measure import Asked, requests
from draftproof.bench.plan import Config, Plan, Wish, other, plan_from_json, plan_json
from draftproof.bench.report import tables
from draftproof.bench.side import Answered, Side, SideBySide, WholeRunner
from draftproof.bench.summary import summary
from draftproof.cli import bench_engines
from draftproof.cli.main import main
from draftproof.types import SamplingParams
from draftproof.verify.adapters.registry import Drafting, Form, Mode, Promise, Setup
from draftproof.verify.contract import Sample

OTHERS = (("llama-server", "plain"), ("llama-server", "ngram"))


def a_plan_beside() -> Plan:
    return a_plan(Wish((2,), short=9, long=17, others=OTHERS))


def test_a_plan_holds_the_others_and_survives_a_file() -> None:
    plan = a_plan_beside()
    assert [c.name for c in plan.configs] == ["plain", "k=2", "llama-server plain", "llama-server ngram"]
    assert all(sorted(g.order) == sorted(c.name for c in plan.configs) for g in plan.groups)
    assert plan_from_json(json.loads(json.dumps(plan_json(plan)))) == plan
    assert not plan.lossy


def test_each_configuration_runs_where_it_belongs() -> None:
    plan, ours, theirs = a_plan_beside(), FakeRunner(), FakeRunner()
    plain = Config("plain", 0, "block", True)
    runner = SideBySide(ours, {"llama-server plain": Side(theirs, plain)})
    for name in ("k=2", "llama-server plain"):
        asked = requests(plan, sources(plan), plan.groups[0], plan.config(name))
        assert runner.run(0, plan.config(name), asked).config == name
    assert ours.calls == [(0, "k=2")]
    assert theirs.calls == [(0, "plain")]


def test_ours_is_compared_with_every_mode_of_the_others() -> None:
    """Their steps take twice as long as our plain ones, ours with drafts bring two tokens each: four times as fast."""
    slow = {name: 2 * seconds for name, seconds in PARTS.items()}
    runner = FakeRunner(parts={"llama-server plain": slow})
    told = figures(result_of(a_plan_beside(), runner))
    ahead = {r.config: r for r in told.ahead}
    assert {r.kind for r in told.ahead} == {"k=2"}
    assert ahead["llama-server plain"].ratio == pytest.approx(4.0, rel=0.1)
    assert ahead["llama-server ngram"].ratio == pytest.approx(2.0, rel=0.1)
    assert summary(told)["ahead"]["1"]["llama-server plain"]["ours"] == "k=2"
    table = tables.ahead(told, 1)
    assert [row[0].text for row in table.rows] == ["llama-server plain", "llama-server ngram"]
    assert "k=2" in table.title


def test_without_others_nothing_of_them_is_told() -> None:
    told = figures(result_of(a_plan()))
    assert not told.ahead
    assert not tables.ahead(told, 1).rows
    assert "ahead" not in summary(told)


def test_answers_in_one_piece_have_whole_times_alone() -> None:
    times = iter([0.0, 2.0, 5.0, 5.0])
    runner = WholeRunner(lambda _: Answered(4, "length", 6, 2), lambda: next(times))
    asked = [Asked("a", "", (1,), SamplingParams()), Asked("b", "", (1,), SamplingParams())]
    record = runner.run(3, other("genai", "lookup"), asked)
    assert [(r.end, r.chunks) for r in record.requests] == [(2.0, ((2.0, 4),)), (5.0, ((5.0, 4),))]
    assert (record.group, record.config, record.wall) == (3, "genai lookup", 5.0)
    assert record.tokens_per_step == 2.0


@dataclass
class Served:
    """An adapter whose server runs already."""

    url: str
    form: Form = Form.GGUF
    setups: list[Setup] = field(default_factory=list)
    stopped: int = 0
    modes: Any = field(default_factory=lambda: {"plain": Mode("", Drafting.NONE, Promise.PLAIN)})

    def missing(self, setup: Setup) -> str:
        return ""

    def serve(self, setup: Setup) -> Any:
        self.setups.append(setup)
        return self.url, self.stop

    def stop(self) -> None:
        self.stopped += 1


class InOnePiece:
    form = Form.GGUF
    modes: Mapping[str, Mode] = {"lookup": Mode("", Drafting.LOOKUP)}

    def missing(self, setup: Setup) -> str:
        return ""

    def engine(self, setup: Setup) -> InOnePiece:
        return self

    def sample(self, jobs: Any) -> list[Sample]:
        return [Sample((1,) * job.params.max_tokens, proposed=2, accepted=1) for job in jobs]

    def close(self) -> None:
        """Nothing to close."""


def test_one_run_measures_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    write_gguf(tmp_path / "tiny.gguf", replace(TINY, context=128))
    told = [{"prompt": f"hello {i}", "kind": "a", "length": n} for i, n in enumerate(("short", "long"))]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, told)), encoding="utf-8")
    with serving(Fake(k=0)) as fake:
        served, whole = Served(fake.url), InOnePiece()
        monkeypatch.setattr(bench_engines, "_adapter", lambda name: served if name == "vllm" else whole)
        tiny = str(tmp_path / "tiny.gguf")
        small = ("--draft", "ngram:1-2", "--k", "2", "--short", "4", "--long", "6", "--threads", "1")
        engines = ("--engine", "vllm", "--engine", "genai:lookup", "--engine-option", "context=64")
        models = ("--engine-model", f"vllm={tiny}", "--engine-model", f"genai={tiny}")
        files = (
            "--prompts",
            str(tmp_path / "p.jsonl"),
            "--out",
            str(tmp_path / "r.jsonl"),
            "--json",
            str(tmp_path / "f"),
        )
        assert main(["bench", "--model", tiny, "--kv-memory", "1", *small, *engines, *models, *files]) == 0
    figures_told = json.loads((tmp_path / "f").read_text())
    assert set(figures_told["ahead"]["1"]) == {"vllm plain", "genai lookup"}
    assert figures_told["ahead"]["1"]["genai lookup"]["decode"] is None
    assert "times as fast as others" in capsys.readouterr().out
    assert served.stopped == 1
    assert served.setups[0].options["context"] == "64"
    assert served.setups[0].options["threads"] == "1"
    assert all(body["prompt"] for body in fake.asked)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine", "vlmm"], "no engine is called 'vlmm'"),
        (["--engine", "vllm:fast"], "it has the modes plain, draft"),
        (["--engine", "vllm:plain", "--engine", "vllm"], "each mode of an engine once"),
        (["--engine-model", "vllm=x"], "no effect without --engine"),
        (["--engine", "vllm", "--server", "http://127.0.0.1:1"], "give one of them"),
    ],
)
def test_what_cannot_be_measured_is_refused(more: list[str], said: str, capsys: Any) -> None:
    assert main(["bench", *more]) == 2
    assert said in capsys.readouterr().err
