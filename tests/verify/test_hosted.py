"""Engines in processes of their own: what they answer arrives, and what goes wrong there is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftproof.model.fetch import cache_dir
from draftproof.verify import foreign
from draftproof.verify.adapters import environment, registry
from draftproof.verify.adapters.hosted import Child, Hosted
from draftproof.verify.adapters.registry import Form, Setup
from draftproof.verify.contract import Ability, Budget, EngineError, Job, Params, Sample, StepCount
from draftproof.verify.outcome import Overall, conclude
from draftproof.verify.plan import VerifyError, select
from draftproof.verify.run import run_plan

GOOD = """
def make(setup):
    print("a library that prints")
    def answer(request):
        return {"samples": [
            {"tokens": [job["seed"], *job["prompt"]], "steps": [[2, 1]], "finish": "stop"} for job in request["jobs"]
        ]}
    return {"version": setup["version"]}, answer
"""
FAILING = "def make(setup):\n    raise ValueError('no such file')\n"
DYING = """
import os, sys
def make(setup):
    def answer(request):
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    return {}, answer
"""


def hosted(folder: Path, source: str) -> Hosted:
    script = folder / "worker.py"
    script.write_text(source, encoding="utf-8")
    child = Child(Path(sys.executable), str(script), folder / "logs" / "engine.log")
    return Hosted("fake", child, {"version": "7"}, frozenset({Ability.COUNTS}))


def test_jobs_go_there_and_samples_come_back(tmp_path: Path) -> None:
    engine = hosted(tmp_path, GOOD)
    jobs = [Job((4, 5), Params(k=2), seed=n) for n in (8, 9)]
    wanted = [Sample((n, 4, 5), finish="stop", steps=(StepCount(2, 1),)) for n in (8, 9)]
    assert engine.sample(jobs) == wanted
    assert engine.describe() == {"version": "7"}
    engine.close()
    assert "a library that prints" in (tmp_path / "logs" / "engine.log").read_text()


def test_an_engine_that_does_not_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such file"):
        hosted(tmp_path, FAILING)


def test_an_engine_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    engine = hosted(tmp_path, DYING)
    for _ in range(2):
        with pytest.raises(EngineError, match="out of memory"):
            engine.sample([Job((4,))])
    engine.close()


def test_what_is_not_offered_is_refused(tmp_path: Path) -> None:
    engine = hosted(tmp_path, GOOD)
    for ask in (lambda: engine.logits([4]), lambda: engine.rule("token"), lambda: engine.stream(Job((4,)))):
        with pytest.raises(EngineError, match="fake does not offer this"):
            ask()
    engine.close()


@pytest.mark.parametrize(("name", "module"), [("transformers", "torch_of_nobody"), ("genai", "genai_of_nobody")])
def test_an_engine_that_is_not_there_names_the_command(name: str, module: str, tmp_path: Path) -> None:
    assert environment.missing(tmp_path, name, module) == (
        f"{name} is not installed: run draftproof audit --prepare {name}"
    )


def test_there_is_nothing_to_prepare_for_a_server_of_somebody_else(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="no environment"):
        environment.prepare(tmp_path, "openai", ())


def test_an_environment_that_pip_cannot_fill_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match=r"prepare\.log"):
        environment.prepare(tmp_path, "nothing", ("--no-index", "there-is-no-such-package"))
    assert "there-is-no-such-package" in (tmp_path / "nothing" / "prepare.log").read_text()


def test_every_named_adapter_has_what_an_adapter_needs(tmp_path: Path) -> None:
    for name in registry.MODULES:
        adapter = registry.adapter(name)
        assert adapter.name == name
        assert adapter.form in Form
        assert all(mode.what for mode in adapter.modes.values())
    with pytest.raises(VerifyError, match="no mode 'x'"):
        registry.started("genai", Setup("x", "", "", tmp_path))


@pytest.mark.slow
def test_prompt_lookup_of_openvino_genai_is_exact_on_the_toys(tmp_path: Path) -> None:
    """A real engine, in under a minute on one core: TV 0.16 to 0.32 would be seen. Alpha is 1e-6."""
    home = cache_dir() / "engines"
    if missing := registry.adapter("genai").missing(Setup("lookup", "", "", home)):
        pytest.skip(missing)
    legs = foreign.legs(foreign.Wish("genai", home, tmp_path, ("lookup", "plain")))
    budget = Budget(level="quick", tv=0.04)
    outcome = conclude(run_plan(legs, budget, timeout=240.0), budget)
    assert outcome.verdict is Overall.EXACT, outcome.reasons
    lookup = [e for e in outcome.entries if e.leg.endswith("lookup")]
    assert sum(e.proposed or 0 for e in lookup) > 0
    cold = select(foreign.legs(foreign.Wish("genai", home, tmp_path, ("draft",))), ["ends/pairs"])
    greedy = conclude(run_plan(cold, budget, timeout=120.0), budget)
    assert greedy.verdict is Overall.EXACT, greedy.reasons
