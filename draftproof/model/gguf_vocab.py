"""Builds standard tokenizer files from the metadata of a GGUF file.

Knows the two vocabulary kinds of the Llama family (byte-level BPE and SentencePiece with scores). Does not know the
file they came from, weights or chat. A pre-tokenizer that is not in the list is refused: a near miss splits text
differently from what the model was trained on, and nothing but the quality of the answers would tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from draftproof.model.checkpoint import ModelError
from draftproof.model.tokenizer import TokenizerFiles

Json = dict[str, object]

_SPACE = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<end_of_turn>")

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class _Splitter:
    """How text is cut before merging. No `regex` means GPT-2's own."""

    regex: str = ""
    digits: bool = False
    compose: bool = False  # Unicode NFC first
    whole_words: bool = False  # a word that is a token needs no merges
    bos: bool = False  # unless the file says otherwise


_GPT2 = _Splitter()
_LLAMA = _Splitter(regex=_LLAMA3, whole_words=True, bos=True)
_QWEN = _Splitter(regex=_QWEN2, compose=True)
SPLITTERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _Splitter(digits=True),
    "llama-bpe": _LLAMA,
    "llama-v3": _LLAMA,
    "llama3": _LLAMA,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
}


def build_from_gguf(meta: Mapping[str, object], name: str = "GGUF") -> TokenizerFiles:
    """tokenizer.json, tokenizer_config.json and generation_config.json of a GGUF file's vocabulary."""
    vocab = _Vocabulary(meta, name)
    kind = meta.get("tokenizer.ggml.model")
    if kind == "gpt2":
        data = _byte_level(vocab)
    elif kind == "llama":
        data = _sentence_piece(vocab)
    else:
        vocab.refuse(f"the tokenizer kind {kind} is not supported; use a model with a gpt2 or llama one")
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = vocab.special(field)
        if token is not None:
            config[f"{key}_token"] = vocab.tokens[token]
    if meta.get("tokenizer.chat_template"):
        config["chat_template"] = meta["tokenizer.chat_template"]
    return TokenizerFiles(json.dumps(data, ensure_ascii=False), config, {"eos_token_id": vocab.ends()})


class _Vocabulary:
    """Typed access to the tokenizer's metadata."""

    def __init__(self, meta: Mapping[str, object], name: str) -> None:
        self.meta, self.name = meta, name
        self.tokens = [str(t) for t in self.items("tokens")]
        if not self.tokens:
            self.refuse("holds no vocabulary (tokenizer.ggml.tokens); use a file that holds a whole language model")
        self.types = self.items("token_type") or [_NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            self.refuse("has a vocabulary and token types of different lengths; fetch or convert the model again")

    def refuse(self, message: str) -> NoReturn:
        raise ModelError(f"{self.name}: {message}")

    def items(self, key: str) -> Sequence[object]:
        value = self.meta.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, list) else []

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.meta.get(f"tokenizer.ggml.{key}", default))

    def special(self, key: str) -> int | None:
        token = self.meta.get(f"tokenizer.ggml.{key}_token_id")
        return token if isinstance(token, int) and 0 <= token < len(self.tokens) else None

    def table(self) -> dict[str, int]:
        """Ids by token, without the rows that only pad the matrix."""
        pairs = zip(self.tokens, self.types, strict=True)
        return {token: i for i, (token, kind) in enumerate(pairs) if kind != _UNUSED}

    def added(self) -> list[Json]:
        flags: Json = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        pairs = enumerate(zip(self.tokens, self.types, strict=True))
        chosen = [(i, token, kind) for i, (token, kind) in pairs if kind in (_UNKNOWN, _CONTROL, _USER) and token]
        return [{"id": i, "content": token, **flags, "special": kind != _USER} for i, token, kind in chosen]

    def ends(self) -> list[int]:
        """Tokens after which nothing follows. The order is: the file's own, then by name."""
        named = [i for i, t in enumerate(self.tokens) if t in _END_NAMES and self.types[i] == _CONTROL]
        own = [self.special(key) for key in ("eos", "eot", "eom")]
        return list(dict.fromkeys([i for i in own if i is not None] + named))

    def bos_template(self, default: bool) -> Json | None:
        bos = self.special("bos")
        if bos is None or not self.flag("add_bos_token", default):
            return None
        name = self.tokens[bos]
        first, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        second = {"Sequence": {"id": "B", "type_id": 1}}
        known = {name: {"id": name, "ids": [bos], "tokens": [name]}}
        pair = [first, text, second]
        return {"type": "TemplateProcessing", "single": [first, text], "pair": pair, "special_tokens": known}


def _document(vocab: _Vocabulary, bpe: Json, **sections: object) -> Json:
    model: Json = {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, **bpe}
    head: Json = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocab.added()}
    return {**head, **sections, "model": model}


def _byte_level(vocab: _Vocabulary) -> Json:
    pre = str(vocab.meta.get("tokenizer.ggml.pre", "default"))
    if pre not in SPLITTERS:
        vocab.refuse(f"the pre-tokenizer {pre} is not supported; known are {', '.join(SPLITTERS)}")
    how = SPLITTERS[pre]
    merges = [str(m).split(" ", 1) for m in vocab.items("merges")]
    bpe: Json = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": how.whole_words}
    level: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not how.regex}
    steps: list[Json] = [level]
    if how.digits:
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    if how.regex:
        split: Json = {"type": "Split", "pattern": {"Regex": how.regex}, "behavior": "Isolated", "invert": False}
        steps.insert(0, split)
    return _document(
        vocab,
        {**bpe, "vocab": vocab.table(), "merges": merges},
        normalizer={"type": "NFC"} if how.compose else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        post_processor=vocab.bos_template(default=how.bos),
        decoder={**level, "add_prefix_space": True, "use_regex": True},
    )


def _sentence_piece(vocab: _Vocabulary) -> Json:
    prefix = vocab.flag("add_space_prefix", True)
    unknown = vocab.special("unknown")
    bpe: Json = {"unk_token": None if unknown is None else vocab.tokens[unknown], "fuse_unk": True}
    spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back: Json = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    undo: list[Json] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        undo.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    before: list[Json] = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    return _document(
        vocab,
        {**bpe, "byte_fallback": True, "ignore_merges": False, "vocab": vocab.table(), "merges": _merges(vocab)},
        normalizer={"type": "Sequence", "normalizers": [*before, spaces]},
        pre_tokenizer=None,
        post_processor=vocab.bos_template(default=True),
        decoder={"type": "Sequence", "decoders": undo},
    )


def _merges(vocab: _Vocabulary) -> list[list[str]]:
    """SentencePiece merges the pair whose result scores highest: BPE with merges in the order of the scores."""
    scores = vocab.items("scores")
    if len(scores) != len(vocab.tokens):
        vocab.refuse("has a llama vocabulary without scores; fetch or convert the model again")
    pieces = {token: i for i, token in enumerate(vocab.tokens) if vocab.types[i] == _NORMAL}
    found: list[tuple[float, int, int, str, str]] = []
    for token, i in pieces.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                found.append((-float(str(scores[i])), pieces[left], pieces[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]
