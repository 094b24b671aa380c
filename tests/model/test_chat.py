"""Chat templates: what they see, that they are sandboxed, and whose fault a failure is."""

from __future__ import annotations

import pytest
from tiny_models import metadata

from draftproof.model.checkpoint import ModelError
from draftproof.model.gguf_vocab import build_from_gguf
from draftproof.model.tokenizer import Tokenizer, TokenizerFiles
from draftproof.types import RequestError


def test_chat_is_rendered_up_to_the_answer() -> None:
    tokenizer = Tokenizer(build_from_gguf(metadata()))
    messages = [{"role": "user", "content": "hello"}]
    assert tokenizer.chat_text(messages) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.chat(messages)
    assert ids == tokenizer.encode(tokenizer.chat_text(messages), special=False)
    assert ids.count(1) == 2


def with_template(template: object) -> Tokenizer:
    files = build_from_gguf(metadata())
    return Tokenizer(
        TokenizerFiles(files.tokenizer, {**files.config, "chat_template": template}, files.generation), "m"
    )


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{% for m in messages %}\n  {% if loop.first %}\n[{{ m.content }}]\n  {% endif %}\n{% endfor %}", "[hi]\n"),
        ("{{ bos_token }}{{ messages | tojson }}", '<|im_start|>[{"role": "user", "content": "hi"}]'),
        ("{{ {'é<': 1} | tojson }}", '{"é<": 1}'),
        ("{% for m in messages * 3 %}{{ loop.index }}{% break %}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }}", "True"),
        ([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
    ],
)
def test_templates_see_what_hugging_face_gives_them(template: object, want: str) -> None:
    assert with_template(template).chat_text([{"role": "user", "content": "hi"}]) == want


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(RequestError):
        with_template("{{ messages.append(1) }}").chat_text([])
    with pytest.raises(RequestError):
        with_template("{{ ''.__class__.__mro__[1].__subclasses__() }}").chat_text([])


def test_a_template_that_refuses_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match=r"messages: .*roles must alternate"):
        with_template("{{ raise_exception('roles must alternate') }}").chat_text([])


@pytest.mark.parametrize("template", [None, "", "{% if %}"])
def test_no_usable_template_names_the_way_out(template: str | None) -> None:
    with pytest.raises(ModelError, match="--raw"):
        with_template(template).chat([{"role": "user", "content": "hi"}])
