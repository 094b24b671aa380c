"""The prompts of a bench: sixty of our own, or those of a file of JSON lines. Knows no tokenizer and no model."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.types import RequestError

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
LENGTHS = ("short", "long")
OVERALL = "overall"  # all kinds together
# MT-bench's categories, which are part of Spec-Bench
_CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message. `length` says which of the two output lengths its answer may have."""

    id: str
    kind: str
    length: str
    text: str


def read_prompts(path: Path = BUILT_IN) -> list[Prompt]:
    """Prompts of a file: a JSON object a line, with `prompt` and `kind`, or as in Spec-Bench with `question_id`,
    `category` and `turns`, of which the first is used. `id`, and `length` (short or long), may stand beside it;
    without, answers are long.

    Raises:
        RequestError: the file cannot be used; the message names the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RequestError(f"--prompts {path} cannot be read: {error.strerror or error}") from error
    found = [_read(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise RequestError(f"--prompts {path} holds no prompt: give one JSON object a line")
    names = Counter(p.id for p in found)
    twice = next((p.id for p in found if names[p.id] > 1), None)
    if twice is not None:
        raise RequestError(f"--prompts {path}: two prompts have the id {twice}: give each its own")
    return found


def _read(path: Path, number: int, line: bytes) -> Prompt:
    try:
        return _prompt(json.loads(line.decode("utf-8")), number)
    except ValueError as error:
        raise RequestError(f"--prompts {path}, line {number}: {error}; mend or remove that line") from error


def _prompt(record: Any, number: int) -> Prompt:
    match record:
        case {"prompt": str(text)} | {"turns": [str(text), *_]} if text.strip():
            fields = dict(record)
        case _:
            raise ValueError("not an object with a text `prompt`, or a list `turns` that begins with one")
    name = fields.get("id", fields.get("question_id", f"line-{number}"))
    length = fields.get("length", "long")
    if length not in LENGTHS:
        raise ValueError(f"length {length!r} is neither short nor long")
    return Prompt(str(name), _kind(fields), length, text)


def _kind(fields: dict[str, Any]) -> str:
    kind, category = fields.get("kind"), fields.get("category")
    match kind, category:
        case str(), _ if kind != OVERALL:
            return str(kind)
        case None, str() if category != OVERALL:
            return "chat" if category in _CHAT else str(category)
        case None, None:
            return "other"
    raise ValueError(f"`kind` or `category` is not a text, or is {OVERALL!r}, which is kept for all kinds together")
