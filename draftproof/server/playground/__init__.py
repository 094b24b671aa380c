"""The page at `/`: type a prompt, watch its tokens arrive. One self-contained document that asks this server alone.

Knows what the page must be told about the server; how it looks and what it does is in the files beside this one.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.accept import RULES
from draftproof.admission import Tokenizer
from draftproof.model.checkpoint import ModelError
from draftproof.page import render
from draftproof.server.service import Service
from draftproof.types import RequestError

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'"


class Page(NamedTuple):
    """`policy` is a Content-Security-Policy under which the page's own script runs, and nothing else does."""

    html: str
    policy: str


def page(service: Service) -> Page:
    html = render(_TEMPLATE, {"server": _facts(service)})
    script = html.partition("<script>")[2].partition("</script>")[0]
    allowed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Page(html, f"{_POLICY}; frame-ancestors 'none'; script-src 'sha256-{allowed}'")


def _facts(service: Service) -> dict[str, Any]:
    settings, engine = service.settings, service.worker.engine
    return {
        "model": settings.name,
        "draft": service.server.methods[0],
        "speculates": engine.speculates,
        "adapts": engine.speculates and engine.adapts,
        "rules": list(dict.fromkeys((*RULES, settings.rule))),
        "rule": settings.rule,
        "context": service.server.context,
        "chats": _chats(engine.tokenizer),
        "key": bool(settings.api_key),
    }


def _chats(tokenizer: Tokenizer) -> bool:
    """Whether the model has a chat template."""
    try:
        return bool(tokenizer.chat([{"role": "user", "content": "a"}]))
    except (RequestError, ModelError):
        return False
