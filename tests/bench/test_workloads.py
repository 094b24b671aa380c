"""The prompts of a bench: our own, and those of a file, broken in every way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from draftproof.bench.workloads import read_prompts
from draftproof.types import RequestError

KINDS = {"chat", "code", "summarising", "translation", "mathematics", "extraction"}


def test_sixty_prompts_of_our_own_in_six_kinds_half_short_half_long() -> None:
    prompts = read_prompts()
    assert Counter((p.kind, p.length) for p in prompts) == {(k, n): 5 for k in KINDS for n in ("short", "long")}
    assert len({p.id for p in prompts}) == len({p.text for p in prompts}) == 60


def test_passages_are_there_where_a_passage_is_needed() -> None:
    sizes = [len(p.text.split()) for p in read_prompts() if p.kind in {"summarising", "extraction"}]
    assert len(sizes) == 20
    assert 100 <= min(sizes) <= max(sizes) <= 330


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def test_both_forms_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        "",
        {"question_id": 82, "category": "math_reasoning", "turns": ["third"]},
        {"prompt": "fourth", "kind": "extraction", "length": "short"},
        {"question_id": 84, "category": "extraction", "turns": ["fifth"]},
        {"prompt": "sixth"},
    )
    told = [(p.id, p.kind, p.length, p.text) for p in read_prompts(path)]
    assert told == [
        ("81", "chat", "long", "first"),
        ("82", "math_reasoning", "long", "third"),
        ("line-4", "extraction", "short", "fourth"),  # a kind is taken at its word
        ("84", "chat", "long", "fifth"),  # MT-bench's category of that name is chat
        ("line-6", "other", "long", "sixth"),
    ]


GOOD = {"prompt": "fine", "kind": "chat"}


@pytest.mark.parametrize(
    "broken",
    [
        '{"prompt": "never closed',
        "[1, 2]",
        '"text"',
        "null",
        {"kind": "chat"},
        {"prompt": ""},
        {"prompt": " \n"},
        {"prompt": 7},
        {"turns": []},
        {"turns": "a text, no list"},
        {"turns": [{"role": "user"}]},
        {"prompt": "x", "length": "middling"},
        {"prompt": "x", "kind": 3},
        {"prompt": "x", "kind": "overall"},
        {"prompt": "x", "category": "overall"},
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, broken: object) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, GOOD, broken, GOOD)
    with pytest.raises(RequestError, match=r"p\.jsonl, line 3: "):
        read_prompts(path)


def test_a_line_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(RequestError, match="line 2"):
        read_prompts(path)


@pytest.mark.parametrize(("lines", "said"), [((), "no prompt"), ((GOOD | {"id": 1}, GOOD | {"id": "1"}), "the id 1")])
def test_empty_files_and_double_names_are_refused(tmp_path: Path, lines: tuple[object, ...], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_prompts(write(tmp_path / "p.jsonl", *lines))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_prompts(tmp_path / "nowhere.jsonl")
