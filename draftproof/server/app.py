"""The HTTP application: routes, limits, streams. What bodies mean is `params`, what answers look like `answers`.

Made for one event loop: every handler runs on it, and the engine's thread talks to it through jobs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from draftproof import __version__
from draftproof.server import params
from draftproof.server.answers import Answer
from draftproof.server.bodies import B, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parsed
from draftproof.server.errors import Refusal, body_of, failed, of_request, response
from draftproof.server.guard import KeyGuard
from draftproof.server.openapi import description
from draftproof.server.params import Plan
from draftproof.server.playground import Page, page
from draftproof.server.service import Service
from draftproof.server.worker import Job, JobError
from draftproof.types import RequestError

T = TypeVar("T")
_PATIENCE = 8  # limits' worth of a body that is too large are read, since most clients listen only once it is sent
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def application(service: Service) -> Starlette:
    """The ASGI application; its lifespan starts and stops the engine's thread."""
    routes = [
        Route("/v1/completions", partial(_generate, service, CompletionBody, params.completion), methods=["POST"]),
        Route("/v1/chat/completions", partial(_generate, service, ChatBody, params.chat), methods=["POST"]),
        Route("/v1/models", partial(_models, service)),
        Route("/v1/models/{name:path}", partial(_model, service)),
        Route("/tokenize", partial(_tokenize, service), methods=["POST"]),
        Route("/detokenize", partial(_detokenize, service), methods=["POST"]),
        Route("/tokenizer_info", partial(_tokenizer_info, service)),
        Route("/reset_prefix_cache", partial(_reset_prefix_cache, service), methods=["POST"]),
        Route("/health", partial(_health, service)),
        Route("/metrics", partial(_metrics, service)),
        Route("/version", _version),
        Route("/openapi.json", partial(_told, description())),
        Route("/", partial(_playground, page(service))),
    ]
    app = Starlette(
        routes=routes,
        lifespan=partial(_lifespan, service),
        exception_handlers={Refusal: _refused, HTTPException: _not_found, ClientDisconnect: _left, Exception: _broken},
    )
    app.add_middleware(KeyGuard, key=service.settings.api_key)
    return app


@asynccontextmanager
async def _lifespan(service: Service, _: Starlette) -> AsyncIterator[None]:
    service.worker.start()
    yield
    await service.worker.stop()


async def _generate(
    service: Service, kind: type[B], meaning: Callable[[B, params.Server], Plan], request: Request
) -> Response:
    service.open_for_requests()
    data = await _body(request, service)
    plan = await run_in_threadpool(lambda: meaning(parsed(kind, data), service.server))
    job = service.submit(plan.asks)
    try:
        await _unless_gone(request, _admitted(job))
        answer = Answer(plan, service.server.tokenizer)
        if plan.stream:
            return _Stream(_events(job, answer, plan), lambda: service.release(job))
        whole = await _unless_gone(request, _collected(job, answer))
    except BaseException:
        service.release(job)
        raise
    service.release(job)
    return _json(whole)


async def _admitted(job: Job) -> None:
    try:
        await job.admitted()
    except RequestError as error:
        raise of_request(error) from error
    except JobError as error:
        raise failed(str(error)) from error


async def _collected(job: Job, answer: Answer) -> dict[str, Any]:
    try:
        while not answer.done:
            for arrival in await job.arrivals():
                for _ in answer.push(arrival.choice, arrival.event):
                    pass
    except JobError as error:
        raise failed(str(error)) from error
    return answer.whole()


async def _events(job: Job, answer: Answer, plan: Plan) -> AsyncIterator[str]:
    """Server-sent events. An error that comes after the first one is an event itself."""
    try:
        while not answer.done:
            for arrival in await job.arrivals():
                for part in answer.push(arrival.choice, arrival.event):
                    yield _sent(answer.chunk(part))
        if plan.usage:
            yield _sent(answer.last_chunk())
    except JobError as error:
        yield _sent(body_of(failed(str(error))))
    yield "data: [DONE]\n\n"


def _sent(data: dict[str, Any]) -> str:
    return f"data: {_dumped(data)}\n\n"


def _dumped(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json(data: object) -> Response:
    return Response(_dumped(data), media_type="application/json")


class _Stream(StreamingResponse):
    """Releases its job however it ends, its reader gone included."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], release: Callable[[], None]) -> None:
        super().__init__(events, headers=_STREAM_HEADERS)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is given up when the client goes away.

    Raises: ClientDisconnect.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, service: Service) -> bytes:
    """Raises: Refusal: it is too large, or does not come."""
    most, seconds = service.settings.max_body, service.settings.body_seconds
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= most:
                    data += chunk
                elif size > _PATIENCE * most:
                    break
    except TimeoutError as error:
        raise Refusal(408, f"the body did not arrive within {seconds:g} seconds") from error
    if size > most:
        told = f"the body has more than {most} bytes: send less at a time"
        raise Refusal(413, told, code="body_too_large", headers={"Connection": "close"})
    return bytes(data)


async def _read(request: Request, service: Service, kind: type[B]) -> B:
    data = await _body(request, service)
    body = await run_in_threadpool(parsed, kind, data)
    params.check_model(getattr(body, "model", ""), service.server)
    for name in body.extras:
        raise Refusal(400, f"{name}: this server does not know it: leave it out", name)
    return body


async def _models(service: Service, _: Request) -> Response:
    return _json({"object": "list", "data": [service.model_card(name) for name in service.server.names]})


async def _model(service: Service, request: Request) -> Response:
    name = request.path_params["name"]
    params.check_model(name, service.server)
    return _json(service.model_card(name))


async def _tokenize(service: Service, request: Request) -> Response:
    body = await _read(request, service, TokenizeBody)
    if body.given("prompt") == body.given("messages"):
        raise Refusal(400, "prompt: give either a prompt or messages", "prompt")
    return _json(await run_in_threadpool(service.tokenized, body))


async def _detokenize(service: Service, request: Request) -> Response:
    body = await _read(request, service, DetokenizeBody)
    return _json(await run_in_threadpool(service.detokenized, body))


async def _tokenizer_info(service: Service, _: Request) -> Response:
    return _json(await run_in_threadpool(service.server.tokenizer.info))


async def _reset_prefix_cache(service: Service, _: Request) -> Response:
    service.open_for_requests()
    service.worker.reset_prefix_cache()
    return _json({"status": "ok"})


async def _health(service: Service, _: Request) -> Response:
    if not service.healthy:
        return response(Refusal(503, service.illness))
    return _json({"status": "ok"})


async def _metrics(service: Service, _: Request) -> Response:
    text, kind = await run_in_threadpool(service.metrics.page)
    return Response(text, headers={"Content-Type": kind})


async def _version(_: Request) -> Response:
    return _json({"version": __version__})


async def _told(data: dict[str, Any], _: Request) -> Response:
    return _json(data)


async def _playground(made: Page, _: Request) -> Response:
    return HTMLResponse(made.html, headers={"Content-Security-Policy": made.policy, "Cache-Control": "no-cache"})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return response(error)


async def _not_found(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return response(Refusal(error.status_code, error.detail, headers=error.headers))


async def _left(_: Request, __: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=499)


async def _broken(_: Request, error: Exception) -> Response:
    return response(Refusal(500, f"the server failed on this request: {type(error).__name__}", code="internal_error"))
