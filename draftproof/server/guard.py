"""Lets requests through that carry the server's key. Knows the header alone, and compares in constant time."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from draftproof.server.errors import Refusal, response

OPEN = frozenset({"/", "/health", "/metrics", "/openapi.json", "/version"})  # tell nothing of anybody's texts


class KeyGuard:
    """Args: key: empty lets everybody in."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or not self._key or self._fits(scope):
            await self._app(scope, receive, send)
            return
        told = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'"
        headers = {"WWW-Authenticate": "Bearer"}
        await response(Refusal(401, told, code="invalid_api_key", headers=headers))(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = given.partition(b" ")
        return hmac.compare_digest(key.strip(), self._key) and kind.lower() == b"bearer"
