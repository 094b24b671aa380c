"""Reports of made-up outcomes: all forms say the same, hostile names stay text, the page needs nothing but itself."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pages import Page, external
from rich.console import Console
from verify.fakes import BUDGET, FakeCheck, dying, leg, raising

from draftproof.verify.contract import Ability, Budget, Verdict
from draftproof.verify.outcome import Expected, Kill, conclude
from draftproof.verify.report import terminal
from draftproof.verify.report.data import Report, reproduce, to_json
from draftproof.verify.report.html import to_html
from draftproof.verify.report.junit import to_junit
from draftproof.verify.report.limits import LIMITS
from draftproof.verify.report.plots import draw
from draftproof.verify.run import run_plan

HOSTILE = "<script>alert(1)</script>\"'&[bold] {{ 7*7 }}"
UNPRINTABLE = "\x00\x1b]0;title\x07\ud800\nnext"
SERIES: dict[str, Any] = {
    "expected_seen": {
        "labels": ["1 2", "3", HOSTILE],
        "expected": [0.5, 0.5, 0.0],
        "seen": [0.4, 0.59, 0.01],
        "n": 1000,
    },
    "pit": {"bins": [30, 25, 28, 17], "n": 100},
    "e_value": {"tokens": [1, 50, 100], "log_e": [0.0, -3.0, float("-inf")], "threshold": 13.8},
    "acceptance": {"positions": [1, 2], "expected": [0.7, 0.6], "seen": [0.7, 0.2], "n": [500, 300]},
}
KILLS = (
    Kill("frozen", "penalty frozen (case 20)", "law/b", "law/b", True),
    Kill(HOSTILE, "row swap", "law/b", None, False),
)
WITNESS = {"prompt": (1, 2), "k": 2, "expected": 0.25, "seen": 0.5, "text": HOSTILE, "raw": UNPRINTABLE}


def report(kills: Any = KILLS) -> Report:
    checks = (
        FakeCheck("rules/a", statistical=False, p_value=1.0),
        FakeCheck("law/b", Verdict.FAILS, 1e-12, more={"witness": WITNESS, "plots": SERIES, "detectable_tv": 0.02}),
        FakeCheck("law/c", more={"detectable_tv": 0.02, "power": 0.99, "plots": SERIES}),
        FakeCheck("law/d", Verdict.FAILS, 0.0, more={"witness": {"reproduce": "draftproof again"}}),
        FakeCheck("law/e", needs=frozenset({Ability.STREAM})),
        FakeCheck(
            "lossy/f",
            Verdict.MEASURED,
            more={"witness": {"rule": "lenience:0.3", "tv": 0.08, "low": 0.07, "high": 0.09}},
        ),
        FakeCheck("ends/g"),
    )
    hostile = leg(
        FakeCheck("law/" + HOSTILE, Verdict.FAILS, 0.0),
        FakeCheck("z", act=raising(ValueError(UNPRINTABLE))),
        FakeCheck("y", act=dying),
        name=HOSTILE,
    )
    expected = (Expected("law/d", "ticket 7"), Expected("ends/g", "ticket 8"))
    outcome = conclude(run_plan([leg(*checks), hostile], BUDGET), BUDGET, expected)
    return Report(outcome, BUDGET, "draftproof verify --html x", versions={"numpy": HOSTILE}, kills=kills, when="now")


def exact() -> Report:
    return Report(conclude(run_plan([leg(FakeCheck("a"))], BUDGET), BUDGET), BUDGET)


# JSON


def test_json_has_the_promised_fields() -> None:
    told = json.loads(to_json(report()))
    assert {"verdict", "checks", "budget", "versions", "settings", "command", "lossy", "mutants"} <= set(told)
    assert told["verdict"] == "not exact"
    fields = {"name", "leg", "claim", "verdict", "samples", "p_value", "detectable_tv", "power", "witness", "note"}
    assert all(fields | {"seconds"} <= set(check) for check in told["checks"])
    by_name = {c["name"]: c for c in told["checks"]}
    assert by_name["law/b"]["witness"]["prompt"] == [1, 2]
    assert by_name["law/b"]["reproduce"] == "draftproof verify --leg leg --checks law/b"
    assert by_name["law/d"]["expected"] == "ticket 7"
    assert by_name["law/e"]["verdict"] == "could not be tested"
    assert told["budget"] == {"alpha": 1e-6, "tv": 0.02, "power": 0.99, "level": "default", "seed": 1}
    assert told["mutants"][0] == {
        "name": "frozen",
        "what": "penalty frozen (case 20)",
        "expected_check": "law/b",
        "killed_by": "law/b",
        "killed": True,
    }
    assert told["mutants"][1]["killed_by"] is None
    assert [(r["rule"], r["tv"], r["low"], r["high"]) for r in told["lossy"]] == [("lenience:0.3", 0.08, 0.07, 0.09)]


def test_json_without_mutants_has_none() -> None:
    assert "mutants" not in json.loads(to_json(report(kills=None)))
    assert json.loads(to_json(exact()))["verdict"] == "exact"


def test_json_has_no_infinities() -> None:
    outcome = conclude(run_plan([leg(FakeCheck("a", more={"witness": {"odds": float("inf")}}))], BUDGET), BUDGET)
    told = json.loads(to_json(Report(outcome, BUDGET)), parse_constant=pytest.fail)
    assert told["checks"][0]["witness"]["odds"] is None


def test_reproduction_lines_are_quoted_for_a_shell() -> None:
    entry = report().outcome.entries[-3]
    line = reproduce(report(), entry)
    assert shlex.split(line)[-3:] == [HOSTILE, "--checks", "law/" + HOSTILE]


# JUnit


def test_junit_parses_and_counts() -> None:
    root = ET.fromstring(to_junit(report()))
    assert root.tag == "testsuites"
    first, second, faults = root
    counts = ("tests", "failures", "errors", "skipped")
    assert [first.get(n) for n in counts] == ["7", "2", "0", "2"]  # law/b and the unexpected pass; expected, undeclared
    assert [second.get(n) for n in counts] == ["3", "1", "2", "0"]
    assert [faults.get(n) for n in counts] == ["2", "1", "0", "0"]
    assert [root.get(n) for n in counts] == ["12", "4", "2", "2"]
    cases = {c.get("name"): c for c in first}
    assert cases["law/d"].find("skipped").get("message") == "fails as expected: ticket 7"  # type: ignore[union-attr]
    assert cases["ends/g"].find("failure").get("type") == "unexpected pass"  # type: ignore[union-attr]
    assert "again: draftproof verify" in (cases["law/b"].findtext("failure") or "")
    to_junit(report()).encode("utf-8")


def test_junit_says_what_xml_cannot() -> None:
    outcome = conclude(run_plan([leg(FakeCheck("a\x00\ud800<"))], BUDGET), BUDGET)
    root = ET.fromstring(to_junit(Report(outcome, BUDGET)))
    assert root[0][0].get("name") == "a\ufffd\ufffd<"


def test_junit_of_an_exact_run_has_no_failure() -> None:
    root = ET.fromstring(to_junit(exact()))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "0", "0")


# HTML


def test_the_page_needs_nothing_else() -> None:
    source = to_html(report())
    assert external(source) == []
    assert Page(source).open == []
    assert len(source.encode()) < 2_000_000


@pytest.mark.parametrize(
    "planted",
    ["<script>", "<img src=x>", "<link href=y>", "<p onclick=f></p>", "<style>p {background: url(x)}</style>"],
)
def test_planted_references_are_found(planted: str) -> None:
    assert external(to_html(exact()).replace("</main>", planted + "</main>"))


def test_hostile_names_stay_text() -> None:
    source = to_html(report())
    assert "<script" not in source
    assert "&lt;script&gt;" in source
    assert "{{ 7*7 }}" in source  # a name is no template
    source.encode("utf-8")
    to_json(report()).encode("utf-8")


def test_the_page_says_what_matters() -> None:
    words = " ".join(Page(to_html(report())).words.split())
    for said in (
        "Not exact",
        "leg / law/b fails",
        "leg / law/d fails, as expected: ticket 7",
        "leg / ends/g holds but was expected to fail (ticket 8)",
        "the engine does not declare stream",
        "the pipe is broken",
        "draftproof verify --leg leg --checks law/b",
        "draftproof again",
        "lenience:0.3",
        "0.07 to 0.09",
        "survived",
        "1/2",
        "draftproof verify --html x",
        *(head for head, _ in LIMITS),
    ):
        assert said in words, said
    assert "prefers-color-scheme: dark" in to_html(report())


def test_the_verdict_on_top_is_the_outcome() -> None:
    assert "<h1>Exact</h1>" in to_html(exact())
    outcome = conclude(run_plan([leg(FakeCheck("a", act=dying))], BUDGET), BUDGET)
    assert "<h1>Could not be tested</h1>" in to_html(Report(outcome, BUDGET))


def test_a_huge_run_stays_small() -> None:
    many = {"labels": list(range(2000)), "expected": [1 / 2000] * 2000, "seen": [1 / 2000] * 2000, "n": 10**6}
    checks = [FakeCheck(f"c{i}", more={"plots": {"expected_seen": many}}) for i in range(70)]
    outcome = conclude(run_plan([leg(*checks)], BUDGET), BUDGET)
    source = to_html(Report(outcome, BUDGET))
    assert len(source.encode()) < 2_000_000
    assert "more plots were left out" in source


# plots


def test_every_plot_is_drawn() -> None:
    drawn = draw(SERIES)
    assert len(drawn) == 4
    for _, _, picture in drawn:
        root = ET.fromstring(picture)
        assert root.tag == "svg"
        assert len(list(root.iter("text"))) >= 5
        numbers = re.findall(r"-?\d+(?:\.\d+)?", " ".join(p.get("d", "") for p in root.iter("path")))
        assert numbers
        assert "nan" not in picture
        assert all(-1 <= float(n) <= 460 for n in numbers)


@pytest.mark.parametrize(
    ("name", "change", "bad"),
    [
        ("acceptance", {"seen": [0.7, 0.6]}, False),
        ("acceptance", {"seen": [0.7, 0.2]}, True),
        ("pit", {"bins": [25, 25, 25, 25]}, False),
        ("pit", {"bins": [70, 10, 10, 10]}, True),
        ("expected_seen", {"seen": [0.5, 0.5, 0.0]}, False),
        ("expected_seen", {"seen": [0.4, 0.6, 0.0]}, True),
        ("expected_seen", {"seen": [0.499, 0.5, 0.001]}, True),  # the third cell is impossible
    ],
)
def test_what_is_off_is_marked(name: str, change: dict[str, Any], bad: bool) -> None:
    ((_, _, picture),) = draw({name: {**SERIES[name], **change}})
    assert (' bad"' in picture) is bad


def test_several_e_processes_are_named() -> None:
    lines = {"tokens": [1, 2], "log_e": [[0.0, 1.0], [0.0, 20.0]], "names": ["mix", "frozen"], "threshold": 13.8}
    ((_, _, picture),) = draw({"e_value": lines})
    assert picture.index("frozen") < picture.index("mix")


@pytest.mark.parametrize("series", [{}, {"bins": [], "n": 0}, {"bins": ["x"], "n": 1}, None, 3])
def test_senseless_series_do_not_lose_the_report(series: Any) -> None:
    ((_, _, picture),) = draw({"pit": series})
    assert "could not be drawn" in picture


# terminal and documents


def printed(told: Report, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        terminal.show(told, console)
        return console.export_text()


def test_the_terminal_says_the_same() -> None:
    words = printed(report(), 200)
    for said in ("verdict: not exact", "fails as expected", "ticket 7", "law/b", "tested claims"):
        assert said in words
    assert "again     draftproof verify --leg leg --checks law/b" in words
    assert "1 of 2 planted faults were killed" in words
    assert "not shown: leg / law/e" in words
    assert "[bold]" in words  # markup in names is not obeyed
    assert not set(words) & {"\x00", "\x1b", "\x07", "\ud800"}
    assert "verdict: exact" in printed(exact(), 60)


def test_the_document_of_limits_has_the_same_heads() -> None:
    text = (Path(__file__).parents[2] / "docs" / "what_verify_cannot_see.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert heads == [*(head for head, _ in LIMITS), "Chance"]


def test_budget_is_told_as_asked() -> None:
    odd = replace(exact(), budget=Budget(alpha=1e-4))
    assert "with probability 0.0001 at most" in to_html(odd)
