"""Tokenizers: both vocabulary kinds of GGUF files, special tokens, ends, and the standard files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import MERGES, SPECIALS, TEMPLATE, TOKENS, TYPES, metadata

from draftproof.model.checkpoint import ModelError
from draftproof.model.fetch import smollm2_gguf
from draftproof.model.gguf_vocab import SPLITTERS, build_from_gguf
from draftproof.model.tokenizer import Tokenizer, TokenizerFiles
from draftproof.text import TextStream

SPACE = "\u2581"
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{b:02X}>" for b in range(256)),
    SPACE,
    *"abcd",
    "ab",
    "cd",
    "bc",
    "abcd",
    SPACE + "a",
]
SCORES = [0.0] * 259 + [-1.0] + [-9.0] * 4 + [-2.0, -3.0, -1.5, -4.0, -2.5]
PIECE_TYPES = [2, 3, 3] + [6] * 256 + [1] * 10


def tiny(**changes: object) -> Tokenizer:
    return Tokenizer(build_from_gguf(metadata(**changes)))


def spm(**changes: object) -> Tokenizer:
    base: dict[str, object] = {"model": "llama", "tokens": PIECES, "token_type": PIECE_TYPES, "scores": SCORES}
    base |= {"merges": None, "pre": "default", "unknown_token_id": 0}
    return tiny(**{**base, **changes})


def names(tokenizer: Tokenizer, text: str, special: bool = False) -> list[str]:
    return [TOKENS[i] for i in tokenizer.encode(text, special)]


@given(text=st.text())
def test_byte_level_text_survives(text: str) -> None:
    tokenizer = SHARED["gpt2"]
    ids = tokenizer.encode(text, special=False)
    if not any(name in text for name in SPECIALS):
        assert tokenizer.decode(ids) == text


@given(text=st.text("abcd é😀\n" + SPACE))
def test_sentence_piece_text_survives(text: str) -> None:
    tokenizer = SHARED["llama"]
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace(SPACE, " ")


@given(ids=st.lists(st.integers(0, max(len(TOKENS), len(PIECES)) + 5)), kind=st.sampled_from(["gpt2", "llama"]))
def test_streamed_text_is_decoded_text_for_any_tokens(ids: list[int], kind: str) -> None:
    tokenizer = SHARED[kind]
    stream = TextStream(tokenizer)
    assert "".join(stream.push(i) for i in ids) + stream.flush() == tokenizer.decode(ids)


SHARED = {"gpt2": tiny(), "llama": spm()}


def test_decoding_agrees_with_the_tokenizers_library() -> None:
    for tokenizer in SHARED.values():
        for text in ("hello hello é 😀 abcd", " abab cd", "a<|im_end|>b", "tail " + "😀"):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == tokenizer._backend.decode(ids, skip_special_tokens=True)


def test_merges_are_applied_in_order() -> None:
    assert names(tiny(), "hello hello") == ["hello", "Ġhello"]


def _split(pre: str, text: str) -> list[str]:
    backend: Any = tiny(pre=pre)._backend
    return [piece.replace("Ġ", " ") for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "want"),
    [
        ("gpt-2", "it's 1234 OK", ["it", "'s", " 1234", " OK"]),
        ("default", "it's 1234 OK", ["it", "'s", " 1234", " OK"]),
        ("smollm", "it's 1234 OK", ["it", "'s", " ", "1", "2", "3", "4", " OK"]),
        ("smollm", "٣٤", ["Ù£", "Ù¤"]),
        ("llama-bpe", "IT'S 12345 (OK)", ["IT", "'S", " ", "123", "45", " (", "OK", ")"]),
        ("llama3", "a.b", ["a", ".b"]),
        ("qwen2", "IT'S 123 (OK)", ["IT", "'S", " ", "1", "2", "3", " (", "OK", ")"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(pre: str, text: str, want: list[str]) -> None:
    assert _split(pre, text) == want


def test_qwen_composes_characters_first() -> None:
    assert tiny(pre="qwen2").decode(tiny(pre="qwen2").encode("e\u0301")) == "é"
    assert tiny(pre="smollm").decode(tiny(pre="smollm").encode("e\u0301")) == "e\u0301"


def test_llama3_takes_a_whole_word_without_its_merges() -> None:
    tokens, types = [*TOKENS, "world"], [*TYPES, 1]
    word = len(TOKENS)
    assert tiny(pre="llama-bpe", tokens=tokens, token_type=types, add_bos_token=False).encode("world") == [word]
    assert tiny(pre="smollm", tokens=tokens, token_type=types).encode("world") != [word]


@pytest.mark.parametrize(
    ("pre", "stated", "added"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_bos_is_added_as_the_file_says(pre: str, stated: bool | None, added: bool) -> None:
    tokenizer = tiny(pre=pre, add_bos_token=stated)
    assert names(tokenizer, "hello", special=True) == (["<|im_start|>"] if added else []) + ["hello"]
    assert names(tokenizer, "hello", special=False) == ["hello"]


def test_special_tokens_are_tokens_and_not_text_while_user_tokens_are_both() -> None:
    tokenizer = tiny()
    ids = tokenizer.encode("<|im_end|>hello<tool>", special=False)
    assert [TOKENS[i] for i in ids] == ["<|im_end|>", "hello", "<tool>"]
    assert tokenizer.decode(ids) == "hello<tool>"
    assert tokenizer.token_bytes(2) == b""
    assert tokenizer.token_bytes(10**6) == b""


def test_ends_are_the_files_own_and_known_control_tokens() -> None:
    assert tiny().eos_ids == (2, 0)
    assert tiny(token_type=[1, *TYPES[1:]]).eos_ids == (2,)
    assert tiny(eos_token_id=0, eot_token_id=1).eos_ids == (0, 1, 2)


def _highest_score_first(text: str) -> list[str]:
    """SentencePiece's own rule: join the neighbours whose piece scores highest, leftmost first."""
    scores = {p: s for p, s, t in zip(PIECES, SCORES, PIECE_TYPES, strict=True) if t == 1}
    parts = list(SPACE + text.replace(" ", SPACE))
    while True:
        joined = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not joined:
            return parts
        at = -max(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text("abcd ", min_size=1, max_size=12))
def test_sentence_piece_merges_follow_the_scores(text: str) -> None:
    tokenizer = SHARED["llama"]
    assert [PIECES[i] for i in tokenizer.encode(text, special=False)] == _highest_score_first(text)


def test_sentence_piece_bos_prefix_and_bytes() -> None:
    assert [PIECES[i] for i in spm().encode("é")] == ["<s>", SPACE, "<0xC3>", "<0xA9>"]
    plain = spm(add_space_prefix=False)
    assert [PIECES[i] for i in plain.encode("a a", special=False)] == ["a", SPACE + "a"]
    assert plain.decode(plain.encode(" a")) == " a"
    assert spm().eos_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"pre": "tekken"}, "pre-tokenizer tekken is not supported; known are default, gpt-2, smollm"),
        ({"model": "bert"}, "tokenizer kind bert"),
        ({"tokens": None}, "no vocabulary"),
        ({"token_type": [1, 2]}, "different lengths"),
        ({"model": "llama"}, "without scores"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, object], pattern: str) -> None:
    with pytest.raises(ModelError, match=pattern):
        tiny(**changes)


def test_every_splitter_loads() -> None:
    for pre in SPLITTERS:
        assert tiny(pre=pre).vocab == len(TOKENS)


def test_rows_that_only_pad_the_matrix_are_no_tokens() -> None:
    tokenizer = tiny(tokens=[*TOKENS, "[PAD1]", "[PAD2]"], token_type=[*TYPES, 5, 5])
    assert tokenizer.vocab == len(TOKENS)
    assert tokenizer.token_bytes(len(TOKENS)) == b""


def test_files_come_back_the_same(tmp_path: Path) -> None:
    build_from_gguf(metadata()).write(tmp_path)
    again, first = Tokenizer.from_dir(tmp_path), tiny()
    messages = [{"role": "user", "content": "hello é"}]
    assert again.chat(messages) == first.chat(messages)
    assert again.eos_ids == first.eos_ids
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE


def test_a_template_file_and_config_eos_are_found(tmp_path: Path) -> None:
    build_from_gguf(metadata()).write(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    (tmp_path / "config.json").write_text('{"eos_token_id": [0, 2]}')
    (tmp_path / "chat_template.jinja").write_text("T")
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert (tokenizer.eos_ids, tokenizer.chat_text([])) == ((0, 2), "T")


def test_a_missing_or_broken_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_dir(tmp_path)
    build_from_gguf(metadata()).write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        Tokenizer.from_dir(tmp_path)


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    files = build_from_gguf(metadata())
    data = {**json.loads(files.tokenizer), "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer(TokenizerFiles(json.dumps(data), {}, {}))


def test_merges_that_name_no_token_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        tiny(merges=[*MERGES, "zz zz"])


# Made with transformers 5.24 from the same file, its pre-tokenizer preceded by Digits(individual_digits=True), which
# SmolLM2's own tokenizer has and transformers' reader of GGUF files leaves out.
VERIFIED = {
    "Hello, world!": [19556, 28, 905, 17],
    "def f(x):\n    return x**2\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 198],
    "2024: 12345 + 67": [34, 32, 34, 36, 42, 216, 33, 34, 35, 36, 37, 1232, 216, 38, 39],
    "naïve 😀 你好": [3546, 46494, 40303, 218, 216, 18645, 250, 48392, 138],
    "  \n\n\t  tabs": [256, 14436, 216, 29416],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
}


@pytest.mark.model
def test_the_default_models_tokens_are_those_of_its_makers() -> None:
    from draftproof.model.gguf import read

    tokenizer = Tokenizer(read(smollm2_gguf())[1])
    assert {text: tokenizer.encode(text) for text in VERIFIED} == VERIFIED
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.vocab == 49152
    chat = tokenizer.chat_text([{"role": "user", "content": "Hi there"}])
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    )
