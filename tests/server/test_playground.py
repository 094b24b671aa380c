"""The page at `/`: it comes whole from this server, its own script alone may run, and it is told what it must know."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from typing import Any

import pytest
from server.serving import Reply, Running, drafted, serving, toy

from draftproof.server import playground


def check_self_contained(got: Reply) -> None:
    """Nothing is fetched from elsewhere, and the policy lets the page's script run and no other."""
    html, policy = got.body.decode(), got.headers["content-security-policy"]
    assert not re.search(r"(?:src|href|url|import)\s*[=(]\s*[\"']?(?:https?:)?//", html)
    assert html.count("<script>") == 1
    script = html.partition("<script>")[2].partition("</script>")[0]
    assert f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline'" not in policy.partition("script-src")[2]


def facts(running: Running) -> Any:
    html = running.send("GET", "/").body.decode()
    return json.loads(html.partition('id="server">')[2].partition("</script>")[0])


def test_it_is_one_self_contained_page() -> None:
    with serving(drafted()) as running:
        got = running.send("GET", "/")
        assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
        check_self_contained(got)
        told = facts(running)
        assert (told["model"], told["draft"], told["context"]) == ("toy", "toy-draft", running.engine.context)
        assert (told["speculates"], told["adapts"], told["chats"], told["key"]) == (True, False, True, False)
        assert told["rules"] == ["token", "block", "sampled", "coupled"]


def test_what_it_asks_is_taken() -> None:
    """The body that its script sends; the names are the script's."""
    with serving(drafted()) as running:
        script = running.send("GET", "/").body.decode()
        names = ("model", "temperature", "max_tokens", "seed", "stream", "return_token_origins", "speculative")
        assert all(re.search(rf"^ +{name}(:|,)", script, re.M) for name in names)
        asked = {"model": "toy", "temperature": 1, "max_tokens": 9, "seed": 4294967295, "stream": True}
        more = {"return_token_origins": True, "speculative": {"num_speculative_tokens": 0, "rule": "coupled"}}
        for path, prompt in (
            ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("completions", {"prompt": "a"}),
        ):
            got = running.send("POST", f"/v1/{path}", {**asked, **more, **prompt})
            assert (got.status, b'"origin":"plain"' in got.body) == (200, True)


def test_it_opens_without_the_key_and_says_that_one_is_needed() -> None:
    with serving(toy(), api_key="sesame") as running:
        got = running.send("GET", "/")
        assert got.status == 200
        assert b"sesame" not in got.body
        assert (facts(running)["key"], facts(running)["speculates"]) == (True, False)


def test_names_are_text() -> None:
    """A model's name cannot become a part of the page."""
    page = playground.render(
        playground._TEMPLATE,
        {"server": {"model": "</script><b>", "draft": "<i>", "speculates": True, "rules": [], "context": 9}},
    )
    assert "</script><b>" not in page
    assert "<i></i>" in page  # the page's own
    assert "<b>&lt;i&gt;" in page


@pytest.mark.parametrize(
    "fault",
    [
        lambda page: page._replace(html=page.html.replace('"use strict"', '"use  strict"')),
        lambda page: page._replace(html=page.html.replace("<body>", '<body><img src="//elsewhere/x.png">')),
        lambda page: page._replace(policy=page.policy + " 'unsafe-inline'"),
    ],
    ids=["another script", "fetches", "open policy"],
)
def test_planted_page_is_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = playground.page
    monkeypatch.setattr("draftproof.server.app.page", lambda service: fault(made(service)))
    with serving(toy()) as running, pytest.raises(AssertionError):
        check_self_contained(running.send("GET", "/"))
