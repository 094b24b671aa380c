"""Any OpenAI-compatible server as an engine under test, by the fields that are public; the base of the HTTP adapters.

Knows /v1/completions. An engine of its own is a subclass that says what it needs and gets beyond that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from draftproof.verify.adapters.registry import Drafting, Form, Mode, Setup
from draftproof.verify.adapters.sampling import OnlySamples
from draftproof.verify.adapters.wire import Wire
from draftproof.verify.contract import Ability, EngineError, Job, Sample
from draftproof.verify.plan import VerifyError

SEEDS = 2**32 - 1  # seeds of HTTP engines are taken modulo this: some have 32 bits, and all ones for "any"
WIDTH = 16  # requests under way

Stop = Callable[[], None]
Running = tuple[str, Stop]  # where a server is, and how it is ended


class HttpEngine(OnlySamples):
    """An engine behind HTTP.

    Args:
        speculative: where jobs with k > 0 go.
        plain: starts the server where jobs with k = 0 go, when the first one comes; None if `speculative` takes them.
        described: versions and settings, for the report.
    """

    path: ClassVar[str] = "/v1/completions"
    offers: ClassVar[frozenset[Ability]] = frozenset({Ability.BATCH})

    def __init__(
        self,
        name: str,
        speculative: Running,
        plain: Callable[[], Running] | None,
        described: Mapping[str, str],
        rules: tuple[str, ...] = ("",),
        width: int = WIDTH,
    ) -> None:
        self.name, self.rules = name, rules
        self.abilities = self.offers | ({Ability.PLAIN} if plain is not None else frozenset())
        self._plain = plain
        self._wires, self._stops = {True: Wire(speculative[0])}, [speculative[1]]
        self._pool, self._lock = ThreadPoolExecutor(width, "verify request"), threading.Lock()
        try:
            self.model, version = self._model(self._wires[True]), self._version(self._wires[True])
        except BaseException:
            self.close()
            raise
        self._described = {**({"version": version} if version else {}), "model": self.model, **described}

    def describe(self) -> Mapping[str, str]:
        """The same for every start of the engine, so without its port."""
        return self._described

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        return list(self._pool.map(self._one, jobs))

    def _one(self, job: Job) -> Sample:
        answer = self.wire(job).json(self.path, self.body(job))
        try:
            sample = self.read(answer, job)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"answered garbage ({type(error).__name__}: {error}): {str(answer)[:200]}") from error
        if sample.finish == "length" and len(sample.tokens) < job.params.max_tokens:
            raise EngineError(
                f"returned {len(sample.tokens)} of {job.params.max_tokens} tokens, and says that the limit was reached"
            )
        return sample

    def wire(self, job: Job) -> Wire:
        """The connection to the server that this job is for."""
        speculates = job.params.k > 0 or self._plain is None
        with self._lock:
            if speculates not in self._wires and self._plain is not None:
                url, stop = self._plain()
                self._stops.append(stop)
                self._wires[speculates] = Wire(url)
            return self._wires[speculates]

    def body(self, job: Job) -> dict[str, Any]:
        """The request of a job: all that a server's own defaults would fill in is said."""
        p = job.params
        told: dict[str, Any] = {
            "model": self.model,
            "prompt": list(job.prompt),
            "max_tokens": p.max_tokens,
            "temperature": p.temperature,
            "top_p": p.top_p,
        }
        if job.seed is not None:
            told["seed"] = job.seed % SEEDS
        return told | ({"stop": list(p.stop)} if p.stop else {})

    def read(self, answer: Any, job: Job) -> Sample:
        """The sample that an answer to this job holds."""
        del job
        choice = answer["choices"][0]
        if choice.get("token_ids") is None:
            raise EngineError("tells no token ids")
        usage = answer.get("usage") or {}
        return Sample(
            tuple(choice["token_ids"]),
            str(choice["finish_reason"]),
            text=choice.get("text"),
            usage=usage.get("completion_tokens"),
        )

    def _model(self, wire: Wire) -> str:
        """The name that requests give."""
        try:
            return str(wire.json("/v1/models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{wire.url}/v1/models lists no model") from error

    def _version(self, wire: Wire) -> str:
        """The engine's own; "" where it does not say."""
        try:
            return str(wire.json("/version")["version"])
        except (EngineError, KeyError, TypeError):
            return ""

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for wire in self._wires.values():
            wire.close()
        for stop in self._stops:
            stop()


def nothing() -> None:
    """How a server that we did not start is ended: not at all."""


def found(setup: Setup) -> tuple[Running, Callable[[], Running] | None]:
    """Servers that run already: `url`, and the option plain_url for the same model without speculation."""
    plain = setup.options.get("plain_url", "")
    return (setup.url, nothing), ((lambda: (plain, nothing)) if plain else None)


class WordsEngine(HttpEngine):
    """A server that tells words and no ids: a token is found by its word, in the log-probabilities or the text."""

    def __init__(self, words: Sequence[str], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._ids = {word: i for i, word in enumerate(words)}

    def body(self, job: Job) -> dict[str, Any]:
        return super().body(job) | {"return_token_ids": True, "logprobs": 1}

    def read(self, answer: Any, job: Job) -> Sample:
        choice = answer["choices"][0]
        if choice.get("token_ids") is not None:
            return super().read(answer, job)
        told = (choice.get("logprobs") or {}).get("tokens")
        pieces = told if told is not None else list(choice["text"])
        unknown = [piece for piece in pieces if piece not in self._ids]
        if unknown:
            raise EngineError(f"{unknown[0]!r} is none of the {len(self._ids)} words that were told")
        tokens = tuple(self._ids[piece] for piece in pieces)
        usage = (answer.get("usage") or {}).get("completion_tokens")
        return Sample(tokens, str(choice["finish_reason"]), text=choice["text"], usage=usage)


class OpenAIAdapter:
    """A server that somebody else started, of a kind that no other adapter knows."""

    name, form = "openai", Form.HF
    packages: tuple[str, ...] = ()
    modes: Mapping[str, Mode] = {"served": Mode("as the server was started", Drafting.LOOKUP)}

    def missing(self, setup: Setup) -> str:
        return "" if setup.url else "any OpenAI-compatible server: start it yourself and say where it is by --url"

    def engine(self, setup: Setup) -> HttpEngine:
        if missing := self.missing(setup):
            raise VerifyError(missing)
        speculative, plain = found(setup)
        words = _words(setup)
        told = {"engine": "any OpenAI-compatible server", "url": setup.url, "drafts": "not told"}
        return WordsEngine(words, self.name, speculative, plain, told)


def _words(setup: Setup) -> Sequence[str]:
    """The words of the vocabulary in the order of their ids: a file, or the toys'."""
    if "words" not in setup.options:
        from draftproof.verify.toy import WORDS

        return WORDS
    path = Path(setup.options["words"])
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise VerifyError(f"words={path} cannot be read: {error}") from error


ADAPTER = OpenAIAdapter()
