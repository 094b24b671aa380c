"""`draftproof cost`: what it prints, writes and refuses, and that each output says what it is."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import draftproof.cli
from draftproof.cli import cost, cost_report, main
from draftproof.types import RequestError

SCENARIO = "analytical scenario, not a measurement"
DOCS = Path(__file__).parent.parent.parent / "docs" / "cost.md"
SEED = ("--alpha", "0.8", "--k", "4", "--draft-cost", "0.1")

Run = Callable[..., str]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cost.register(parser.add_subparsers(required=True))
    return parser.parse_args(["cost", *words])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command and gives what it wrote to standard output; nothing else is written."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> str:
        assert cost.run(parse(*words)) == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out

    return run


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example file of the documentation, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    Path("steps.json").write_text(text, encoding="utf-8")
    return "steps.json"


def says_scenario(told: str, measured: bool = False) -> None:
    assert SCENARIO in told
    assert ("measured times, modelled acceptance" in told) is measured


def test_json(run: Run) -> None:
    told = json.loads(run(*SEED, "--json"))
    assert told["scenario"] == SCENARIO
    assert told["formula"]["speedup"] == "expected_tokens / step_cost"
    assert told["formula"]["step_cost"] == "1 + k draft_cost"
    assert told["inputs"]["draft_cost"] == 0.1
    assert told["inputs"]["draft_operations_given"] is False
    values = {
        "expected_tokens": 3.3616,
        "step_cost": 1.4,
        "speedup": 2.4011428571,
        "best_k": 6,
        "best_speedup": 2.46964,
        "operations_factor": 5.4 / 3.3616,
        "break_even_draft_cost": 0.5904,
    }
    assert {name: told[name] for name in values} == pytest.approx(values)
    alpha = told["break_even_alpha"]
    assert 1 + alpha + alpha**2 + alpha**3 + alpha**4 == pytest.approx(1.4)
    assert told["over_k"][4]["speedup"] == told["speedup"]
    assert [row["k"] for row in told["over_k"]] == list(range(13))
    best = {row["alpha"]: (row["best_k"], row["best_speedup"]) for row in told["over_alpha"]}
    assert {alpha: k for alpha, (k, _) in best.items()} == {0.2: 1, 0.4: 2, 0.6: 3, 0.8: 6, 0.9: 10}
    assert best[0.9][1] == pytest.approx(3.4309470195)


def test_json_has_no_number_that_json_has_not(run: Run) -> None:
    told = json.loads(run("--alpha", "0.3", "--k", "0", "--draft-cost", "1.5", "--json"), parse_constant=pytest.fail)
    assert told["break_even_draft_cost"] is None  # there is no draft to pay for
    assert told["over_k"][1]["break_even_alpha"] is None  # a draft dearer than the target never pays
    assert told["best_k"] == 0


def test_curves_reach_the_asked_and_the_best_length(run: Run) -> None:
    told = json.loads(run("--alpha", "0.95", "--k", "20", "--draft-cost", "0.01", "--json"))
    assert told["best_k"] > 20
    assert told["best_k"] in [row["k"] for row in told["over_k"]]
    shown = run("--alpha", "0.95", "--k", "20", "--draft-cost", "0.01")
    assert re.search(r"^ *20 .* asked *$", shown, re.MULTILINE)
    assert re.search(rf"^ *{told['best_k']} .* best *$", shown, re.MULTILINE)
    assert re.search(r"^ *40 .* asked *$", run("--alpha", "0.2", "--k", "40", "--draft-cost", "0.1"), re.MULTILINE)


def test_share_of_operations(run: Run) -> None:
    told = json.loads(run(*SEED, "--draft-operations", "0", "--json"))
    assert told["operations_factor"] == pytest.approx(5 / 3.3616)
    assert told["inputs"]["draft_operations"] == 0
    assert told["inputs"]["draft_operations_given"] is True
    assert "as its share of time" in run(*SEED)
    assert "as given" in run(*SEED, "--draft-operations", "0")


def test_slower_is_called_slower(run: Run) -> None:
    told = run("--alpha", "0.2", "--k", "4", "--draft-cost", "0.1")
    assert "0.8926 ×, slower than plain decoding" in told
    assert "0 (do not speculate)" in run("--alpha", "0.1", "--k", "4", "--draft-cost", "0.2")
    assert "slower" not in run(*SEED)
    assert "64 (the longest tried)" in run("--alpha", "1", "--k", "4", "--draft-cost", "0")


@pytest.mark.parametrize(
    ("suffix", "signature"), [(".svg", b"<?xml"), (".png", b"\x89PNG\r\n\x1a\n"), (".PNG", b"\x89PNG\r\n\x1a\n")]
)
def test_plot(run: Run, tmp_path: Path, suffix: str, signature: bytes) -> None:
    path = tmp_path / f"cost{suffix}"
    assert run(*SEED, "--plot", str(path)) == run(*SEED)  # and prints as without it
    picture = path.read_bytes()
    assert picture.startswith(signature)
    says_scenario(picture.decode("latin-1"))


def test_picture_is_labelled(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cost.svg"
    run(*SEED, "--plot", str(path))
    words = [re.sub("<.*?>", "", text) for text in re.findall(r"<text.*?</text>", path.read_text(), re.DOTALL)]
    for wanted in ("draft length k", "speed-up over plain decoding", "acceptance alpha", "plain decoding"):
        assert wanted in words
    for alpha, k in [(0.2, 1), (0.4, 2), (0.6, 3), (0.8, 6), (0.9, 10)]:
        assert any(word.startswith(f"alpha {alpha}: best k {k},") for word in words)
    assert any(SCENARIO in word for word in words)  # on the picture itself, not in its metadata only
    assert any("draft cost 0.1" in word for word in words)
    again = tmp_path / "again.svg"
    run(*SEED, "--plot", str(again))
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "words", [("--alpha", "1", "--k", "0", "--draft-cost", "0"), ("--alpha", "0", "--k", "64", "--draft-cost", "2")]
)
def test_pictures_at_the_edges(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "edge.svg"
    run(*words, "--plot", str(path))
    says_scenario(path.read_text(encoding="utf-8"))


def test_measured(run: Run, steps: str, tmp_path: Path) -> None:
    told = json.loads(run("--alpha", "0.6", "--k", "4", "--measured", steps, "--json"))
    says_scenario(told["scenario"], measured=True)
    assert told["inputs"]["batch"] == 1
    assert "T_verify(k, B)" in told["formula"]["step_cost"]
    assert told["step_cost"] == pytest.approx(0.0153 / 0.0117)
    assert told["speedup"] == pytest.approx(2.3056 * 0.0117 / 0.0153)
    assert [row["k"] for row in told["over_k"]] == [0, 1, 2, 4, 8]  # nothing in between is made up
    assert [(row["batch"], row["best_k"]) for row in told["over_batch"]] == [(1, 4), (16, 0)]
    says_scenario(run("--alpha", "0.6", "--k", "4", "--measured", steps, "--batch", "16"), measured=True)
    path = tmp_path / "measured.svg"
    run("--alpha", "0.6", "--k", "4", "--measured", steps, "--plot", str(path))
    says_scenario(path.read_text(encoding="utf-8"), measured=True)


def test_name_of_a_file_is_no_formula(run: Run, steps: str) -> None:
    """Dollar signs would be typeset as mathematics, or refused as broken mathematics."""
    Path("$_{b$.json").write_text(Path(steps).read_text(encoding="utf-8"), encoding="utf-8")
    run("--alpha", "0.6", "--k", "4", "--measured", "$_{b$.json", "--plot", "named.svg")
    assert "$_{b$.json" in Path("named.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("way", ["table", "json", "plot"])
def test_planted_silence_is_seen(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """An output that does not say what it is fails the check that the tests above rely on."""
    monkeypatch.setattr(cost_report, "NOTE", "speculative decoding")
    path = tmp_path / "cost.svg"
    told = run(*SEED, *{"table": (), "json": ("--json",), "plot": ("--plot", str(path))}[way])
    with pytest.raises(AssertionError):
        says_scenario(path.read_text(encoding="utf-8") if way == "plot" else told)


def test_planted_key_left_out_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(asked: Any) -> dict[str, object]:
        return {name: value for name, value in cost_report.report(asked).items() if name != "scenario"}

    monkeypatch.setattr(cost, "report", silent)
    with pytest.raises(AssertionError):
        says_scenario(run(*SEED, "--json"))


def replaced(name: str, value: str) -> list[str]:
    words = list(SEED)
    if name in words:
        words[words.index(name) + 1] = value
        return words
    return [*words, name, value]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("--alpha", "1.2", "--alpha 1.2: give a number from 0 to 1"),
        ("--alpha", "-0.1", "--alpha -0.1: give a number"),
        ("--alpha", "nan", "--alpha nan: give a number"),
        ("--alpha", "most", "--alpha most: give a number"),
        ("--k", "-1", "--k -1: give a whole number from 0 to 64"),
        ("--k", "1.5", "--k 1.5: give a whole number"),
        ("--k", "65", "--k 65: give a whole number"),
        ("--k", "9" * 5000, "give a whole number"),
        ("--draft-cost", "-0.1", "--draft-cost -0.1: give a number"),
        ("--draft-cost", "inf", "--draft-cost inf: give a number"),
        ("--draft-operations", "-1", "--draft-operations -1: give a number"),
        ("--batch", "4", "--batch 4 has no effect without --measured"),
        ("--plot", "cost.pdf", "--plot cost.pdf: the name must end in .svg or .png"),
        ("--plot", "cost", "must end in"),
        ("--plot", "no/such/folder.svg", "cannot be written"),
    ],
)
def test_refusals(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        cost.run(parse(*replaced(name, value)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--k", "3"), "--k 3 was not measured at batch 1: the file has 0, 1, 2, 4, 8"),
        (("--k", "2", "--batch", "4"), "--batch 4 was not measured: the file has 1, 16"),
        (("--k", "2", "--batch", "17"), "--batch 17: give a whole number"),
        (("--k", "2", "--batch", "0"), "--batch 0 was not measured"),
    ],
)
def test_what_was_not_measured_is_refused(steps: str, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        cost.run(parse("--alpha", "0.5", "--measured", steps, *words))


def test_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    for content, message in [(b"{", "not a JSON object"), (b"\xff", "decode"), (b'{"steps": []}', '"version"')]:
        path.write_bytes(content)
        with pytest.raises(RequestError, match=message) as caught:
            cost.run(parse("--alpha", "0.5", "--k", "1", "--measured", str(path)))
        assert str(caught.value).startswith(f"--measured {path}: ")
    with pytest.raises(RequestError, match="No such file"):
        cost.run(parse("--alpha", "0.5", "--k", "1", "--measured", str(tmp_path / "none.json")))


def test_matplotlib_is_needed_only_for_plots(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "draftproof.cli.cost_plot", raising=False)
    monkeypatch.delattr(draftproof.cli, "cost_plot", raising=False)
    says_scenario(run(*SEED))
    with pytest.raises(RequestError, match=r"pip install 'draftproof\[plot\]'"):
        cost.run(parse(*SEED, "--plot", str(tmp_path / "cost.svg")))


def test_matplotlib_is_not_imported_before() -> None:
    code = "import sys\nfrom draftproof.cli import cost\nassert 'matplotlib' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_status_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cost", *SEED]) == 0
    assert main.main(["cost", *replaced("--alpha", "2")]) == 2
    assert capsys.readouterr().err == "draftproof: --alpha 2: give a number from 0 to 1\n"
    with pytest.raises(SystemExit) as ended:
        main.main(["cost", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "example: draftproof cost --alpha 0.8 --k 4 --draft-cost 0.1" in shown
    assert SCENARIO in " ".join(shown.split())


def test_examples_of_the_documentation(run: Run, steps: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    commands = re.findall(r"^`draftproof cost (.*)` prints$", text, re.MULTILINE)
    printed = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert len(commands) == len(printed) == 2
    for command, expected in zip(commands, printed, strict=True):
        lines = [line.rstrip() for line in run(*command.split()).splitlines()]
        assert "\n".join(lines).strip() == expected.strip()
