"""`draftproof audit`: refusals name the fix, stored results are shown again, and the exit status says what stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.cli.main import main


def stored(folder: Path, *standings: str) -> Path:
    findings = [
        {
            **{"engine": "fake", "mode": f"m{n}", "what": "a fake", "promise": "exact", "verdict": "exact"},
            **{"standing": standing, "reasons": [], "notes": [], "settings": {}, "command": "", "confirmations": []},
            "checks": [],
        }
        for n, standing in enumerate(standings)
    ]
    budget = {"alpha": 1e-6, "tv": 0.02, "power": 0.99, "level": "quick", "seed": 1}
    told = {"draftproof audit": 1, "budget": budget, "versions": {}, "command": "", "when": "", "findings": findings}
    path = folder / "a.json"
    path.write_text(json.dumps([told]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("standings", "status"),
    [
        (("as promised",), 0),
        (("as promised", "could not be tested"), 3),
        (("could not be tested", "speculation changes the output"), 1),
        (("as promised", "control failed"), 1),
    ],
)
def test_the_status_is_that_of_the_worst(standings: tuple[str, ...], status: int, tmp_path: Path) -> None:
    page, again = tmp_path / "a.html", tmp_path / "b.json"
    told = stored(tmp_path, *standings)
    assert main(["audit", "--show", str(told), "--html", str(page), "--json", str(again)]) == status
    assert all(standing in page.read_text(encoding="utf-8") for standing in standings)
    assert json.loads(again.read_text()) == json.loads(told.read_text())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--engine"),
        (["--engine", "nothing"], "genai"),
        (["--engine", "genai:x"], "lookup"),
        (["--prepare", "openai"], "no environment"),
        (["--show", "nowhere.json"], "nowhere.json"),
        (["--engine", "genai", "--engine-option", "x"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_fix(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    assert main(["audit", *words]) == 2
    assert told in capsys.readouterr().err
