"""The doctor reports what is there, says what is missing, and loads nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from draftproof.cli.doctor import _print, advice
from draftproof.cli.main import main

QUIET: dict[str, Any] = {
    "machine": {"cores": 4, "load": 0.1},
    "openvino": {"precision": "bf16"},
    "torch": {"device": "cuda", "threads": 4, "built for CUDA": True},
}


def test_the_name_of_an_extra_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are markup to the console unless it is told otherwise."""
    line = "pip install draftproof[torch]"
    _print({"advice": [line], "versions": {}, "machine": {}, "openvino": {}, "torch": {"missing": line}})
    assert capsys.readouterr().out.count("draftproof[torch]") == 2


def test_report_as_json_and_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["numpy"]
    assert "CPU" in found["openvino"]["devices"]
    assert found["openvino"]["precision"] in {"bf16", "f32"}
    assert found["machine"]["cores"] >= 1
    assert main(["doctor"]) == 0
    assert "openvino" in capsys.readouterr().out


def test_torch_says_where_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["torch"]
    assert found["torch"] == torch.__version__
    assert found["device"] == ("cuda" if torch.cuda.is_available() else found["device"])
    assert found["threads"] == torch.get_num_threads()


def test_missing_torch_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [m for m in sys.modules if m.startswith("draftproof.model.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "draftproof[torch]" in found["torch"]["missing"]
    assert any("draftproof[torch]" in line for line in found["advice"])


def test_nothing_is_said_where_nothing_is_missing() -> None:
    assert advice(QUIET) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"openvino": {"precision": "f32"}}, "bf16"),
        ({"machine": {"cores": 4, "load": 3.0}}, "load 3.0"),
        ({"torch": {"missing": "it"}}, r"draftproof[torch]"),
        ({"torch": {"device": "cpu", "threads": 4, "built for CUDA": False}}, "not built for CUDA"),
        ({"torch": {"device": "cpu", "threads": 4, "built for CUDA": True}}, "sees no GPU"),
    ],
)
def test_each_thing_that_is_missing_is_said(change: dict[str, Any], word: str) -> None:
    (line,) = advice({**QUIET, **change})
    assert word in line


def test_few_threads_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lines = advice({**QUIET, "torch": {"device": "cpu", "threads": 1, "built for CUDA": True}})
    assert any("1 of 4 cores" in line for line in lines)
