"""The page with both verdicts, and that of rules that change the law: what stands where, nothing is fetched."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from acceptance.made import WISH, plan, report, speed, task, told
from pages import Page, Tables, external
from verify.fakes import FakeCheck, leg

from draftproof.acceptance import page
from draftproof.acceptance.run import correctness
from draftproof.acceptance.verdicts import accepted
from draftproof.verify.contract import Ability, Verdict

HOSTILE = "<script>alert(1)</script>\"'& {{ 7*7 }}"
FAULT = {"verdict": Verdict.FAILS, "p_value": 0.0}
LOSSY = "lenience:1.5"


def verdicts(source: str) -> list[str]:
    return re.findall(r'<p class="word">(.*?)</p>', source)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
def test_both_verdicts_stand_on_top_whatever_the_other_says(tmp_path: Path, slow: bool, faulty: bool) -> None:
    checks = {"law__joint": FAULT} if faulty else {}
    source = page.index(accepted(told(), report(tmp_path, **checks), speed(slow)))
    assert verdicts(source) == ["Not exact" if faulty else "Exact", "Slower" if slow else "Faster"]
    tones = re.findall(r'<article class="verdict (\w+)">', source)
    assert tones == ["bad" if faulty else "good", "bad" if slow else "good"]
    assert source.index('class="word"') < source.index("<main")
    for name in ("verify.html", "verify.json", "bench.html", "bench.json", "bench.jsonl"):
        assert f'href="{name}"' in source


def test_six_parts_with_their_checks_sizes_and_power(tmp_path: Path) -> None:
    fields = {"more": {"detectable_tv": 0.031, "power": 0.987}}
    source = page.index(accepted(told(), report(tmp_path, law__joint=fields), speed()))
    sections = dict(re.findall(r'<section id="part(\d)">(.*?)</section>', source, re.S))
    assert sorted(sections) == list("123456")
    for number, name in zip(
        "123456",
        ("manifest/weights", "rules/joint", "law/joint", "ends/pairs", "bench/parts", "bitwise/abort"),
        strict=True,
    ):
        assert name in sections[number]
    words = Page(sections["3"]).words
    assert "0.031" in words
    assert "0.987" in words
    assert "2 of 2" in words
    assert "toys, the model" in words
    assert "k=auto" in Page(sections["5"]).words
    assert "exactly 9 and 17" in Page(sections["5"]).words


def test_what_was_skipped_is_not_shown_and_says_why(tmp_path: Path) -> None:
    lacking = {"needs": frozenset({Ability.STREAM})}
    source = page.index(accepted(told(), report(tmp_path, bitwise__abort=lacking, bitwise__preempt=lacking), speed()))
    part = re.findall(r'<section id="part6">(.*?)</section>', source, re.S)[0]
    assert "not shown" in part
    assert "holds" not in part
    assert "does not declare stream" in source.partition("What was not shown")[2]


def test_a_rule_that_changes_the_law_is_in_no_table_beside_exact_ones(tmp_path: Path) -> None:
    found = accepted(told(lossy=(LOSSY,)), report(tmp_path), speed(), lossy=(LOSSY,))
    source = page.index(found)
    assert LOSSY not in Tables(source).words
    assert 'href="lossy.html"' in source
    assert 'href="lossy.html"' not in page.index(replace(found, lossy=()))
    check = FakeCheck(
        f"lossy/{LOSSY}",
        Verdict.MEASURED,
        more={"witness": {"rule": LOSSY, "tv": 0.083, "low": 0.07, "high": 0.09}},
    )
    measured = correctness(task(lambda: [leg(check, name="toy spread")]), tmp_path / "lossy", lambda at: None)
    apart = page.lossy_page(told(lossy=(LOSSY,)), measured, speed(of=plan(replace(WISH, rules=(LOSSY,)))))
    words = Tables(apart).words
    assert LOSSY in words
    assert "0.083" in words
    assert f"k=2 {LOSSY}" in words
    assert "k=2 block" not in words
    assert "changes the output law" in apart
    assert not Page(apart).open


def test_a_lossy_rule_that_was_not_measured_says_so(tmp_path: Path) -> None:
    lacking = FakeCheck(f"lossy/{LOSSY}", needs=frozenset({Ability.LOSSY}))
    nothing = correctness(task(lambda: [leg(lacking, name="toy spread")]), tmp_path / "lossy", lambda at: None)
    apart = page.lossy_page(told(lossy=(LOSSY,)), nothing, speed(of=plan(replace(WISH, rules=(LOSSY,)))))
    assert "does not declare lossy" in apart


def test_an_unfinished_run_decides_nothing_and_is_shown_all_the_same(tmp_path: Path) -> None:
    for runs in (0, 7):
        source = page.index(accepted(told(), report(tmp_path), speed(runs=runs, trouble="measuring ended early: x")))
        assert verdicts(source) == ["Exact", "Not complete: nothing is decided"]
        assert "measuring ended early: x" in source


def test_the_page_needs_nothing_but_its_folder_and_hostile_names_stay_text(tmp_path: Path) -> None:
    fields = {"verdict": Verdict.FAILS, "p_value": 0.0, "more": {"note": HOSTILE}}
    manifest = {**told(), "model": HOSTILE, "command": ["draftproof", HOSTILE]}
    source = page.index(accepted(manifest, report(tmp_path, law__joint=fields), speed(trouble=HOSTILE)))
    assert not Page(source).open
    assert "<script" not in source
    assert HOSTILE in Page(source).words
    links = [x for x in external(source) if x.startswith("href=")]
    assert all(re.fullmatch(r"href=(#part[1-6]|[a-z]+\.(html|jsonl?))", x) for x in links)
    assert set(external(source)) - set(links) == {"a"}
    assert len(source.encode()) < 1_000_000
