"""Text to tokens and back, chat templates, and the standard tokenizer files.

Knows the `tokenizers` library and jinja2. Does not know weights, requests in flight or the engine; incremental text
is `draftproof.text`. Decoding is by bytes, so that a text is the same whether it is decoded in one piece or token by
token; bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from draftproof.model.checkpoint import ModelError
from draftproof.types import RequestError

_SPACE = "\u2581"  # SentencePiece's visible space
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The standard files of a tokenizer: tokenizer.json as text, the other two as objects."""

    tokenizer: str
    config: Mapping[str, object]
    generation: Mapping[str, object]

    def write(self, directory: Path) -> None:
        (directory / "tokenizer.json").write_text(self.tokenizer, encoding="utf-8")
        for name, value in (("tokenizer_config", self.config), ("generation_config", self.generation)):
            text = json.dumps(dict(value), ensure_ascii=False, indent=2)
            (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


class Tokenizer:
    """A tokenizer with its chat template and its end-of-sequence tokens."""

    def __init__(self, files: TokenizerFiles, name: str = "tokenizer") -> None:
        self._name, self._config = name, files.config
        try:
            self._backend = Backend.from_str(files.tokenizer)
        except Exception as error:  # the library raises nothing more specific
            raise ModelError(f"{name}: tokenizer.json cannot be read ({error}); fetch the model again") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._style = _DecodeStyle.of(json.loads(files.tokenizer), name)
        added = self._backend.get_added_tokens_decoder()
        self._added = {i: b"" if t.special else t.content.encode() for i, t in added.items()}
        self._bytes: dict[int, bytes] = {}
        self._eos = self._find_eos(files.generation)

    @classmethod
    def from_dir(cls, path: Path) -> Tokenizer:
        """Reads tokenizer.json, and tokenizer_config.json, chat_template.jinja, generation_config.json if there."""
        return cls(read_files(path), str(path))

    @property
    def vocab(self) -> int:
        """Number of ids, added tokens included. A model may have more rows than this (padding)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def names(self) -> dict[str, int]:
        """Every token's name and id: what two models must agree on before one may draft for the other."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._eos

    @property
    def strips_space(self) -> bool:
        """Whether one space at the start of a decoded text is not part of it (SentencePiece)."""
        return self._style.strip

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids. `special` adds what the model expects around a text (BOS). Special tokens' names in the text
        become those tokens, as in Hugging Face's libraries."""
        return list(self._backend.encode(text, add_special_tokens=special).ids)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text. Nothing for special tokens and for ids without a token."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._look_up(token)
        return found

    def _look_up(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token]
        piece = self._backend.id_to_token(token)
        return b"" if piece is None else self._style.to_bytes(piece)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a list of tokens, special tokens left out."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact name."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, up to where the assistant's answer begins."""
        return self.encode(self.chat_text(messages), special=False)

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation as the chat template writes it."""
        template, tokens = self._template, self._named()
        try:
            return template.render(messages=messages, add_generation_prompt=True, tools=None, **tokens)
        except (jinja2.TemplateError, TypeError, AttributeError, ValueError, KeyError) as error:
            raise RequestError(f"messages: the model's chat template refuses them ({error})") from error

    def info(self) -> dict[str, object]:
        """What tokenizer_config.json says, special tokens as texts, and what follows from the other files."""
        tokens: dict[str, object] = dict.fromkeys(_NAMED)
        if self._eos:
            tokens["eos_token"] = self._backend.id_to_token(self._eos[0])
        added = {str(i): token.content for i, token in sorted(self._backend.get_added_tokens_decoder().items())}
        return {
            "tokenizer_class": type(self._backend).__name__,
            **self._config,
            **tokens,
            **self._named(),
            "chat_template": self._source(),
            "vocab_size": self.vocab,
            "eos_token_ids": list(self._eos),
            "added_tokens": added,
        }

    def _named(self) -> dict[str, str]:
        return {name: _content(self._config[name]) for name in _NAMED if self._config.get(name)}

    def _source(self) -> object:
        source = self._config.get("chat_template")
        if isinstance(source, list):
            named = {str(entry.get("name")): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default", next(iter(named.values()), None))
        return source

    @cached_property
    def _template(self) -> jinja2.Template:
        source = self._source()
        if not isinstance(source, str) or not source:
            raise ModelError(f"{self._name} has no chat template; use --raw to give plain text")
        try:
            return _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"{self._name}: its chat template is not valid ({error}); use --raw") from error

    def _find_eos(self, generation: Mapping[str, object]) -> tuple[int, ...]:
        listed = generation.get("eos_token_id")
        ids = [int(i) for i in (listed if isinstance(listed, list) else [listed]) if isinstance(i, int)]
        named = self._config.get("eos_token")
        own = self.id_of(_content(named)) if named else None
        return tuple(dict.fromkeys(ids + ([own] if own is not None else [])))


def read_files(path: Path) -> TokenizerFiles:
    """The tokenizer files of a directory in Hugging Face's form."""
    try:
        tokenizer = (path / "tokenizer.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "save it with a fast tokenizer (transformers: AutoTokenizer.from_pretrained(...).save_pretrained)"
        raise ModelError(f"{path}: tokenizer.json is missing or unreadable; {fix}") from error
    config = _read_object(path / "tokenizer_config.json")
    template = path / "chat_template.jinja"
    if template.is_file():
        config["chat_template"] = template.read_text(encoding="utf-8")
    generation = _read_object(path / "generation_config.json")
    if "eos_token_id" not in generation:
        generation["eos_token_id"] = _read_object(path / "config.json").get("eos_token_id")
    return TokenizerFiles(tokenizer, config, generation)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}); fetch the model again") from error
    return value if isinstance(value, dict) else {}


def _content(token: object) -> str:
    """A special token's text, stored as a string or as an AddedToken object."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


@dataclass(frozen=True, slots=True)
class _DecodeStyle:
    """How a token's name becomes bytes, as the decoder section of tokenizer.json says."""

    byte_level: bool
    fallback: bool
    strip: bool

    @classmethod
    def of(cls, data: Mapping[str, Any], name: str) -> _DecodeStyle:
        decoder = data.get("decoder") or {}
        steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
        kinds = {str(step.get("type")): step for step in steps}
        if set(kinds) == {"ByteLevel"}:
            return cls(byte_level=True, fallback=False, strip=False)
        if not all(_is_sentence_piece(step) for step in steps):
            fix = "use a model with a byte-level or SentencePiece BPE"
            raise ModelError(f"{name}: the tokenizer's decoder ({', '.join(kinds)}) is not supported; {fix}")
        meta = kinds.get("Metaspace", {"prepend_scheme": "never"})
        scheme = meta.get("prepend_scheme", "always" if meta.get("add_prefix_space", True) else "never")
        return cls(False, fallback="ByteFallback" in kinds, strip="Strip" in kinds or scheme != "never")

    def to_bytes(self, piece: str) -> bytes:
        if self.byte_level:
            return bytes(_BYTE[c] for c in piece) if all(c in _BYTE for c in piece) else piece.encode()
        if self.fallback and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE, " ").encode()


def _is_sentence_piece(step: Mapping[str, Any]) -> bool:
    match step.get("type"):
        case "ByteFallback" | "Fuse":
            return True
        case "Replace":
            return bool(step["pattern"] == {"String": _SPACE} and step["content"] == " ")
        case "Strip":
            return bool(step["content"] == " " and step["start"] == 1 and step["stop"] == 0)
        case "Metaspace":
            return bool(step["replacement"] == _SPACE)
    return False


def _byte_table() -> dict[str, int]:
    """GPT-2's printable character of each byte, inverted."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in shown}
    table |= {chr(0x100 + n): b for n, b in enumerate(b for b in range(256) if b not in set(shown))}
    return table


_BYTE = _byte_table()


class _Generation(Extension):
    """The `{% generation %}` blocks that some templates hold for training: their body, unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as Hugging Face sets it up for chat templates."""
    extensions = ["jinja2.ext.loopcontrols", _Generation]
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env
