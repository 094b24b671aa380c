"""What the routes share: the worker, the limits on how much is taken at a time, the server's state. Knows no HTTP
but the refusals it raises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.engine import Engine
from draftproof.server import params
from draftproof.server.answers import token_name
from draftproof.server.bodies import DetokenizeBody, TokenizeBody
from draftproof.server.errors import Refusal, closing
from draftproof.server.metrics import Metrics
from draftproof.server.params import Server
from draftproof.server.worker import Ask, Job, Worker

_GOODBYE = 1.0  # seconds in which aborted requests are told


@dataclass(frozen=True, slots=True)
class Settings:
    """`name` is what clients ask for, `root` what was loaded; `max_queue` counts requests beside those that run;
    `grace` and `body_seconds` are seconds, `max_body` bytes."""

    name: str = "toy"
    root: str = "toy"
    api_key: str = ""
    max_queue: int = 256
    max_body: int = 8 << 20
    body_seconds: float = 60.0
    grace: float = 10.0
    rule: str = "block"
    metrics_prefix: str = "draftproof"


class Service:
    """One engine behind one event loop."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.worker = Worker(engine, metrics)
        self._created = int(time.time())
        self._most = engine.max_running + settings.max_queue
        self._closing = False
        self._jobs: set[Job] = set()  # whose answers are not all sent
        draft = str(engine.settings.get("draft", "none"))
        self.server = Server(
            names=(settings.name,),
            tokenizer=engine.tokenizer,
            context=engine.context,
            vocab=engine.target.info.vocab,
            methods=methods_of(draft),
            rule=settings.rule,
            most=self._most,
        )

    def open_for_requests(self) -> None:
        """Raises: Refusal: it is not."""
        if self._closing:
            raise closing()
        if not self.worker.alive:
            raise Refusal(503, self.illness, code="engine_stopped")

    def submit(self, asks: Sequence[Ask]) -> Job:
        """Raises: Refusal: the queue is full."""
        self.open_for_requests()
        if self.worker.outstanding + len(asks) > self._most:
            self.metrics.refused.inc()
            told = f"{self.worker.outstanding} requests run or wait here, {self._most} are taken: try again later"
            raise Refusal(429, told, code="queue_full", headers={"Retry-After": "1"})
        job = self.worker.submit(asks)
        self._jobs.add(job)
        return job

    def release(self, job: Job) -> None:
        """Its answer is sent, or nobody waits for it."""
        self._jobs.discard(job)
        self.worker.abort(job)

    @property
    def unsent(self) -> int:
        """How many answers are not sent whole."""
        return len(self._jobs)

    @property
    def healthy(self) -> bool:
        return self.worker.alive and not self._closing

    @property
    def illness(self) -> str:
        return "the server is shutting down" if self._closing else "the engine has stopped: start the server anew"

    async def drain(self) -> None:
        """Take no more requests; what runs may end within the grace time, and is ended then."""
        self._closing = True
        await self._emptied(self.settings.grace)
        self.worker.abort_all("the server is shutting down")
        await self._emptied(_GOODBYE)

    async def _emptied(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while self._jobs and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    def model_card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "draftproof",
            "root": self.settings.root,
            "parent": None,
            "max_model_len": self.server.context,
        }

    def tokenized(self, body: TokenizeBody) -> dict[str, Any]:
        if body.given("messages"):
            tokens = params.conversation(body.messages, self.server)
        else:
            tokens = params.encoded(body.prompt, body.add_special_tokens, self.server)
        names = [token_name(self.server.tokenizer, t) for t in tokens] if body.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": self.server.context,
            "tokens": tokens,
            "token_strs": names,
        }

    def detokenized(self, body: DetokenizeBody) -> dict[str, Any]:
        params.check_ids(body.tokens, self.server, "tokens")
        return {"prompt": params.text_of(self.server.tokenizer, body.tokens)}


def methods_of(draft: str) -> tuple[str, ...]:
    """What a request may call the draft that is loaded: our name first, then vLLM's."""
    kind = draft.partition(":")[0]
    known = {"head": ("head", "eagle3"), "combined": ("combined",), "none": ("none",), "prediction": ("prediction",)}
    known |= {"ngram": ("ngram",), "suffix": ("suffix",)}
    return tuple(dict.fromkeys((draft, *known.get(kind, ("draft_model",)))))
