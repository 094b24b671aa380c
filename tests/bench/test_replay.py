"""Logs of decisions: recomputed, tampered with, broken, and other draft lengths on their trace."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.bench.replay import HINDSIGHT, RECORDED, Replay, read, replay
from draftproof.cost import expected_by_position
from draftproof.length.goodput import MOST_AUTO, GoodputLength
from draftproof.length.learned import Step
from draftproof.length.profile import Line, Profile
from draftproof.types import Kind, Request, RequestError, Run, SamplingParams

COSTS = Profile(((1.0, 1.0), (5.0, 1.8)), ((1, Line(0.0, 0.1)),), ((1, Line(0.0, 0.0)),))
Lines = list[dict[str, Any]]


class View:
    request = Request(0, (1, 2), SamplingParams(), 0, MOST_AUTO, frozenset(), auto=True)

    def __init__(self) -> None:
        self.tokens = [1, 2, 3]  # the prompt has been read


@pytest.fixture(scope="module")
def lines() -> Lines:
    """What a run of 240 steps wrote, at first well and then badly drafted, on a machine whose rows are dearer than was
    measured."""
    heard: Lines = []
    policy, view, rng = GoodputLength(COSTS, [heard.append]), View(), random.Random(1)
    for step in range(240):
        k, alpha = policy.choose(view, 1, 6), 0.9 if step < 20 else 0.0
        accepted = next((i for i in range(k) if rng.random() >= alpha), k)
        view.tokens += [0] * (accepted + 1)
        policy.timed(Step(1 + k, COSTS.verified(1, k) * (1.0 + 0.1 * k)))
        kinds = (Kind.ACCEPTED,) * accepted + (Kind.BONUS,)
        policy.observe(view, Run((0,) * (accepted + 1), kinds, k, accepted, len(view.tokens) - 2))
    return heard


def write(path: Path, told: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")
    return path


def again(tmp_path: Path, told: Lines) -> Replay:
    return replay(read(write(tmp_path / "log.jsonl", told)))


def copied(lines: Lines) -> Lines:
    made: Lines = json.loads(json.dumps(lines))
    return made


def test_an_honest_log_has_no_difference(tmp_path: Path, lines: Lines) -> None:
    told = again(tmp_path, lines)
    assert (told.decisions, told.differing) == (240, 0)
    decisions = [line for line in lines if "choice" in line]
    assert len(lines) - len(decisions) == 1 + 240 // 16
    assert len({line["choice"] for line in decisions}) > 2
    assert {line["why"] for line in decisions} >= {"best", "held", "probe"}


def test_planted_corrections_that_are_not_told_are_found(tmp_path: Path, lines: Lines) -> None:
    told = copied(lines)
    for line in told:
        if "costs" in line:
            line["profile"] = told[0]["profile"]
    assert again(tmp_path, told).differing > 200


def _choose(line: dict[str, Any]) -> None:
    line["choice"] += 1


def _why(line: dict[str, Any]) -> None:
    line["why"] = "probe"


def _goodput(line: dict[str, Any]) -> None:
    line["goodputs"][1] *= 1.0001


def _chance(line: dict[str, Any]) -> None:
    line["inputs"]["chances"][0] *= 0.99


@pytest.mark.parametrize(
    ("fault", "found"),
    [(_choose, {"choice"}), (_why, {"why"}), (_goodput, {"goodputs"}), (_chance, {"goodputs"})],
)
def test_a_tampered_decision_is_found(
    tmp_path: Path, lines: Lines, fault: Callable[[dict[str, Any]], None], found: set[str]
) -> None:
    told = copied(lines)
    fault(told[7])
    result = again(tmp_path, told)
    assert result.differing == 1
    assert {(d.line, d.what) for d in result.differences} == {(8, what) for what in found}


def test_another_machines_costs_are_found(tmp_path: Path, lines: Lines) -> None:
    told = copied(lines)
    for line in told:
        if "profile" in line:
            line["profile"]["verify"][0][1] *= 2
    assert again(tmp_path, told).differing == 240


def _changed(**fields: object) -> str:
    inputs = {"batch": 1, "chances": [0.5], "proposals": [1.0], "held": [], "probe": False}
    line = {"inputs": inputs, "goodputs": [1.0, 1.2], "choice": 1, "why": "best"}
    return json.dumps({**line, **fields, "inputs": {**inputs, **{k: v for k, v in fields.items() if k in inputs}}})


BROKEN = [
    "{",
    "[]",
    "17",
    '{"choice": 1}',
    _changed(chances=[1.5]),
    _changed(chances=[0.5, 0.5]),
    _changed(proposals=["a"]),
    _changed(goodputs=[1.0]),
    _changed(goodputs=[1.0, float("nan")]),
    _changed(choice=-1),
    _changed(choice=1.5),
    _changed(batch=0),
    _changed(held=3),
]


def test_the_line_that_is_broken_below_would_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [{"profile": COSTS.as_json()}])
    path.write_text(path.read_text() + _changed(), encoding="utf-8")
    assert len(read(path).decisions) == 1


@pytest.mark.parametrize("line", BROKEN)
def test_broken_lines_are_refused_by_number(tmp_path: Path, lines: Lines, line: str) -> None:
    path = write(tmp_path / "log.jsonl", lines[:4])
    path.write_text(path.read_text() + "\n" + line + "\n" + json.dumps(lines[4]) + "\n", encoding="utf-8")
    with pytest.raises(RequestError, match="line 6: this is not a decision"):
        read(path)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "is empty"),
        ([{"profile": COSTS.as_json()}], "holds no decision"),
        ([{"choice": 1}], "line 1: this is not the costs"),
        ([{"profile": {**COSTS.as_json(), "verify": [[1, 0.0]], "other": [[1, 0.0, 0.0]]}}], "takes no time"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, told: Lines, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        again(tmp_path, told)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read(tmp_path / "nowhere.jsonl")


def test_policies_where_nothing_changes(tmp_path: Path) -> None:
    """The same chances in each step: a fixed length takes what the cost model says."""
    inputs = {"batch": 1, "chances": [0.8] * 4, "proposals": [1.0] * 4, "held": [2], "probe": False}
    told = again(
        tmp_path,
        [{"profile": COSTS.as_json()}, *[{"inputs": inputs, "goodputs": [1.0] * 5, "choice": 2, "why": "held"}] * 3],
    )
    by_name = {p.name: p for p in told.policies}
    assert list(by_name) == [RECORDED, *(f"k={k}" for k in range(5)), HINDSIGHT]
    for k in range(5):
        assert by_name[f"k={k}"].seconds == pytest.approx(COSTS.seconds(1, k, k) / expected_by_position([0.8] * k))
    assert by_name[RECORDED].seconds == by_name["k=2"].seconds
    assert by_name[HINDSIGHT].seconds == min(p.seconds for p in told.policies)
    assert by_name["k=0"].speedup == pytest.approx(by_name["k=2"].seconds / by_name["k=0"].seconds)


def test_choosing_anew_beats_every_fixed_length_where_chances_change(tmp_path: Path, lines: Lines) -> None:
    by_name = {p.name: p for p in again(tmp_path, lines).policies}
    fixed = min(p.seconds for name, p in by_name.items() if name.startswith("k="))
    assert by_name[HINDSIGHT].seconds <= by_name[RECORDED].seconds < fixed


def test_planted_policy_is_seen(tmp_path: Path, lines: Lines) -> None:
    """Longest drafts throughout, written down as chosen, are slower than what was chosen."""
    told = copied(lines)
    for line in told:
        if "choice" in line:
            line["choice"] = len(line["inputs"]["chances"])
    honest = {p.name: p for p in again(tmp_path, lines).policies}
    by_name = {p.name: p for p in again(tmp_path, told).policies}
    assert honest[RECORDED].seconds < 1.1 * honest[HINDSIGHT].seconds
    assert by_name[RECORDED].seconds > 1.15 * by_name[HINDSIGHT].seconds
