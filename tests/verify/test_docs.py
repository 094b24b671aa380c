"""The examples of docs/add_a_check.md and docs/add_an_adapter.md, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verify.fake_engine import Fake, serving

from draftproof.verify import foreign, toy
from draftproof.verify.contract import Budget
from draftproof.verify.outcome import Overall, conclude
from draftproof.verify.run import run_plan

DOCS = Path(__file__).parent.parent.parent / "docs" / "add_a_check.md"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_example_finds_its_fault_and_passes_without_it() -> None:
    example = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len([line for line in example.splitlines() if line.strip()]) < 30
    faulty = run(example)
    assert faulty.returncode == 1, faulty.stderr
    assert "rules/joint fails" in faulty.stdout
    residual = 'pick((p - q.probs).clip(0), noise.uniform(i, "next"))'
    honest = example.replace('pick(p, noise.uniform(i, "next"))', residual)
    honest = honest.replace("        p = rows[i].probs\n", "        p = rows[i].probs\n        assert q.probs[x] > 0\n")
    assert honest != example
    done = run(honest)
    assert done.returncode == 0, done.stdout + done.stderr


def test_example_of_an_adapter_tells_good_engines_from_bad_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake speaks vLLM's words; its drafts are moved to where the example reads them."""
    text = DOCS.with_name("add_an_adapter.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in example.splitlines() if line.strip()]) < 40
    (tmp_path / "my_tests").mkdir()
    (tmp_path / "my_tests" / "mine.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    verdicts = {}
    for fault in ("", "greedy", "silent"):
        fake = Counting(toy.world(toy.pair()), "vllm", fault=fault)
        with serving(fake), serving(Counting(fake.world, "vllm", k=0)) as plain:
            options = {"plain_url": plain.url}
            wish = foreign.Wish("my_tests.mine", tmp_path, tmp_path, ("draft",), url=fake.url, options=options)
            (leg,) = foreign.legs(wish)
            cut = replace(leg, checks=tuple(c for c in leg.checks if c.name == "law/block"))
            budget = Budget(tv=0.04, level="quick")
            verdicts[fault] = conclude(run_plan([cut], budget), budget).verdict
    assert verdicts == {"": Overall.EXACT, "greedy": Overall.NOT_EXACT, "silent": Overall.UNTESTED}


class Counting(Fake):
    def vllm(self, body: Any, p: Any, out: tuple[int, ...], proposed: int) -> Any:
        told = super().vllm({"stop_token_ids": [], **body}, p, out, proposed)
        return {**told, "drafts": {"proposed": proposed, "accepted": proposed}}
