"""The Grafana dashboard in docs/: it is JSON, and asks for no metric or label that /metrics does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.serving import Running, drafted, serving

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def expressions(board: dict[str, Any]) -> list[str]:
    variables = [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + variables


def check_board(board: dict[str, Any], running: Running) -> None:
    running.client.completions.create(model="toy", prompt="ab", max_tokens=20, seed=1)
    running.idle()
    page = running.send("GET", "/metrics").body.decode()
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    names, labels = {s.name for s in samples}, {label for s in samples for label in s.labels}
    for expression in expressions(board):
        asked = re.findall(r"\$\{prefix\}:(\w+)", expression)
        assert asked, expression
        assert {f"draftproof:{name}" for name in asked} <= names, expression
        used = re.findall(r"(?:by|ignoring) ?\((\w+)\)|\{(\w+)=~|\{\{(\w+)\}\}", expression)
        assert {label for found in used for label in found if label} <= labels, expression


def test_the_board_asks_for_what_is_there() -> None:
    with serving(drafted()) as running:
        check_board(json.loads(BOARD.read_text()), running)


def test_panels_have_names_and_places_of_their_own() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)


@pytest.mark.parametrize(("right", "wrong"), [("kv_pages_held", "kv_pages_kept"), ("by (part)", "by (piece)")])
def test_planted_wrong_name_is_seen(right: str, wrong: str) -> None:
    text = BOARD.read_text()
    assert right in text
    with serving(drafted()) as running, pytest.raises(AssertionError):
        check_board(json.loads(text.replace(right, wrong)), running)
