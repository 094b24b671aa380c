"""What an OpenAI-compatible server is and can do, asked before anything is measured.

Knows the paths of vLLM, llama-server, SGLang and our own server. Knows no plan and no load.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from draftproof.bench.answers import Answer, Gone, Lines, Reader, said
from draftproof.bench.counters import counters
from draftproof.types import DraftLength, RequestError

COMPLETIONS = "/v1/completions"
METRICS = "/metrics"
RESET = "/reset_prefix_cache"
HEADERS = {"Accept-Encoding": "identity"}  # nothing is to be unpacked while chunks are timed

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Server:
    """`context` is the most tokens of prompt and answer, sys.maxsize where that is not told; so "" for texts.

    `counts` if it has counters of drafts, `resets` if its prefix cache can be emptied.
    """

    url: str
    model: str
    version: str = ""
    owner: str = ""
    context: int = sys.maxsize
    counts: bool = False
    resets: bool = False


def address(url: str, option: str, remote: bool) -> str:
    """The URL that the paths are appended to.

    Raises:
        RequestError: it is none, or it is of another machine and `remote` is False.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise RequestError(f"{option} {url}: give a URL such as http://127.0.0.1:8000, without name or password")
    if not remote and not _loopback(parts.hostname):
        raise RequestError(
            f"{option} {url} is another machine: a load test may be taken for an attack there and slows its users "
            "down; if it is yours to load, say so by --allow-remote"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(slots=True)
class Probe:
    """Asks one server, one thing after the other.

    Raises:
        RequestError: from every method: the server is not there, or it does not do what a bench needs.
    """

    url: str
    timeout: float
    _client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        # trust_env: a proxy of the environment would be timed with the server
        self._client = httpx.Client(timeout=self.timeout, trust_env=False, headers=HEADERS)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def server(self) -> Server:
        told = self._json("GET", "/v1/models")
        match told:
            case {"data": [{"id": str(model)}, *_]}:
                more: Mapping[str, Any] = told["data"][0]
            case _:
                raise RequestError(f"{self.url} is no OpenAI-compatible server: /v1/models says {said(told)}")
        match self._json("GET", "/version"):
            case {"version": str(version)}:
                pass
            case _:
                version = ""
        return Server(
            url=self.url,
            model=model,
            version=version,
            owner=str(more.get("owned_by") or ""),
            context=int(more.get("max_model_len") or sys.maxsize),
            counts=counters(self._ask("GET", METRICS).text).told,
            resets=self._ask("POST", RESET).is_success,
        )

    def encode(self, model: str, text: str) -> tuple[int, ...]:
        """A user's message in the model's chat template. Empty if the server does not tell tokens.

        By vLLM's /tokenize, or by llama-server's /apply-template and /tokenize.
        """
        messages = [{"role": "user", "content": text}]
        found = self._json("POST", "/tokenize", {"model": model, "messages": messages})
        if not _tokens(found):
            match self._json("POST", "/apply-template", {"messages": messages}):
                case {"prompt": str(prompt)}:
                    body = {"content": prompt, "add_special": True, "parse_special": True}
                    found = self._json("POST", "/tokenize", body)
        return _tokens(found)

    def takes(self, model: str, prompt: Prompt, more: Mapping[str, Any]) -> bool:
        """Whether it answers such a request."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **more}
        return self._ask("POST", COMPLETIONS, body).is_success

    def speculates(self, model: str, prompt: Prompt, ks: Sequence[DraftLength]) -> bool:
        """Whether a request's draft length is heeded: it refuses one that cannot be, and takes those asked for."""
        bodies = [{"speculative": {"num_speculative_tokens": k}} for k in (-1, 0, *ks)]
        heeded = not self.takes(model, prompt, bodies[0]) and self.takes(model, prompt, bodies[1])
        for k, body in zip(ks, bodies[2:], strict=True):
            if heeded and not self.takes(model, prompt, body):
                raise RequestError(f"--k {k}: {self.url} refuses that draft length; leave it out")
        return heeded

    def streams(self, body: Mapping[str, Any]) -> Answer:
        """One streamed answer, of which the times mean nothing."""
        reader, lines = Reader(), Lines()
        try:
            with self._client.stream("POST", self.url + COMPLETIONS, json=body) as response:
                if not response.is_success:
                    raise refused(self.url, response.status_code, response.read())
                for piece in response.iter_bytes():
                    for n, data in enumerate(lines.feed(piece)):
                        reader.take(data, float(n))
        except httpx.HTTPError as error:
            raise gone(self.url, error) from error
        return reader.answer()

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """None if it has no such path, or answers with something else."""
        response = self._ask(method, path, body)
        try:
            return response.json() if response.is_success else None
        except ValueError:
            return None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            return self._client.request(method, self.url + path, json=body)
        except httpx.HTTPError as error:
            raise gone(self.url, error) from error


def _tokens(told: Any) -> tuple[int, ...]:
    match told:
        case {"tokens": [int(), *_] as tokens}:
            return tuple(tokens)
    return ()


def gone(url: str, error: Exception) -> Gone:
    why = str(error) or type(error).__name__
    return Gone(f"the server at {url} is not there ({why}): start it and try again")


def refused(url: str, status: int, content: bytes) -> RequestError:
    text = content.decode(errors="replace")
    try:
        told = said(httpx.Response(status, text=text).json())
    except ValueError:
        told = said(text)
    return RequestError(f"the server at {url} refused a request, {status}: {told or 'without a word'}")
