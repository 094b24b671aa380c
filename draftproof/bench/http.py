"""Runs a group on an OpenAI-compatible server, or on two of which one decodes plainly; writes down when tokens came.

What a server does not tell stays empty. Knows no result file and no statistics.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

import httpx

from draftproof.bench.answers import Answer, Lines, Reader
from draftproof.bench.counters import Counters, between, counters
from draftproof.bench.environment import load
from draftproof.bench.groups import Way
from draftproof.bench.loadgen import Clock, closed, planned
from draftproof.bench.measure import Asked
from draftproof.bench.plan import PLAIN, Config, Plan
from draftproof.bench.results import Drafted, RequestRecord, RunRecord
from draftproof.bench.server import COMPLETIONS, HEADERS, METRICS, RESET, Server, gone, refused
from draftproof.types import RequestError


@dataclass(frozen=True, slots=True)
class Pair:
    """Where plain decoding is measured, and where the other configurations; the same server may do both.

    `tells` if `server` is told each request's draft length; `ids` if prompts are sent as tokens and not as texts.
    `more` are fields of every request that only this server knows.
    """

    server: Server
    plain: Server
    tells: bool
    ids: bool
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, config: Config) -> Server:
        return self.plain if config.name == PLAIN else self.server

    def body(self, config: Config, asked: Asked) -> dict[str, Any]:
        """All that would otherwise be filled in by a server's own defaults is said."""
        params, server = asked.params, self.of(config)
        told: dict[str, Any] = {
            "model": server.model,
            "prompt": list(asked.tokens) if self.ids else asked.text,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": params.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
            **self.more,
        }
        if params.seed is not None:
            told["seed"] = params.seed
        if self.tells and server == self.server:
            rule = {} if config.rule == "block" else {"rule": config.rule}
            told["speculative"] = {"num_speculative_tokens": config.k, **rule}
        return told


class HttpRunner:
    """Keeps connections from run to run. `timeout` is the longest wait for a chunk, in seconds."""

    def __init__(self, plan: Plan, pair: Pair, timeout: float, clock: Clock = perf_counter) -> None:
        self._plan, self._pair, self._clock = plan, pair, clock
        self._loop = asyncio.Runner()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)  # requests must not queue here
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, headers=HEADERS)

    def __enter__(self) -> HttpRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.run(self._client.aclose())
        self._loop.close()

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        """See Runner.

        Raises:
            Gone: the server is not there any more.
            RequestError: it refused a request, or drafts where it is to decode plainly.
        """
        gc.collect()  # garbage of the run before is not this one's
        return self._loop.run(self._run(group, config, asked))

    async def _run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        server = self._pair.of(config)
        if server.resets:
            await self._quick("POST", server, RESET)
        before = await self._counters(server)
        began = self._clock()

        async def send(place: int, due: float) -> RequestRecord:
            return await self._ask(server, self._pair.body(config, asked[place]), asked[place].prompt, due, began)

        records = await self._driven(group, len(asked), send)
        wall = self._clock() - began
        drafted = between(before, await self._counters(server))
        if config.name == PLAIN:
            _check_plain(server, records, drafted)
        return RunRecord(
            group=group,
            config=config.name,
            wall=wall,
            peak_bytes=0,
            load1=load()[0],
            requests=tuple(records),
            tokens_per_step=_tokens_per_step(records, drafted),
            drafted=drafted,
        )

    async def _driven(self, group: int, count: int, send: Any) -> list[RequestRecord]:
        planned_group = self._plan.groups[group]
        if self._plan.load.way == Way.OPEN:
            return await planned(planned_group.arrivals[:count], send, self._clock)
        return await closed(count, planned_group.batch, send, self._clock)

    async def _ask(
        self, server: Server, body: Mapping[str, Any], prompt: str, due: float, began: float
    ) -> RequestRecord:
        reader, lines, late = Reader(), Lines(), self._clock() - due
        try:
            async with self._client.stream("POST", server.url + COMPLETIONS, json=body) as response:
                if not response.is_success:
                    raise refused(server.url, response.status_code, await response.aread())
                async for piece in response.aiter_bytes():
                    for data in lines.feed(piece):
                        reader.take(data, self._clock() - due)
        except httpx.HTTPError as error:
            raise gone(server.url, error) from error
        return record(reader.answer(), prompt, self._clock() - due, due - began, late)

    async def _counters(self, server: Server) -> Counters:
        return counters((await self._quick("GET", server, METRICS)).text) if server.counts else Counters()

    async def _quick(self, method: str, server: Server, path: str) -> httpx.Response:
        try:
            return await self._client.request(method, server.url + path)
        except httpx.HTTPError as error:
            raise gone(server.url, error) from error


def record(answer: Answer, prompt: str, end: float, due: float, late: float) -> RequestRecord:
    """Every step emits one token more than it accepts, so that steps follow where drafts are told."""
    drafts, chunks = answer.drafts, answer.chunks
    return RequestRecord(
        prompt=prompt,
        ttft=chunks[0][0] if chunks else end,
        end=end,
        chunks=chunks,
        tokens=answer.tokens,
        finish=answer.finish,
        proposed=drafts.proposed,
        accepted=drafts.accepted,
        accepted_at=drafts.accepted_at,
        reached_at=drafts.reached_at,
        steps=max(answer.tokens - drafts.accepted, 1) if drafts.told and chunks else 0,
        first=chunks[0][1] if chunks else 0,
        due=due,
        late=late,
    )


def _tokens_per_step(records: Sequence[RequestRecord], drafted: Drafted) -> float:
    """0 where the server tells of no drafts."""
    tokens = sum(r.tokens for r in records)
    steps = sum(r.steps for r in records) or (tokens - drafted.accepted if drafted.drafts else 0)
    return tokens / steps if steps > 0 else 0.0


def _check_plain(server: Server, records: Sequence[RequestRecord], drafted: Drafted) -> None:
    if drafted.proposed or any(r.proposed for r in records):
        raise RequestError(
            f"{server.url} drafted tokens while it was to decode plainly: give --plain-server a server without "
            "speculation, and keep others away from both meanwhile"
        )
