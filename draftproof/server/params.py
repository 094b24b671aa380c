"""From a body to engine requests: every field honoured, or refused by its name. Knows no HTTP and no thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftproof.admission import Tokenizer, rule_named
from draftproof.model.checkpoint import ModelError
from draftproof.server.bodies import ChatBody, CompletionBody, Message, Sampling
from draftproof.server.errors import Refusal, invalid, of_request
from draftproof.server.extras import check_extras, check_fields
from draftproof.server.worker import Ask
from draftproof.text import TextStream
from draftproof.types import DraftLength, RequestError, SamplingParams

_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of a body's choices: odd, so all 2**64 seeds are visited
_MOST_TEXT_PER_TOKEN = 64  # characters: a prompt with more of them than this a context token cannot fit


@dataclass(frozen=True, slots=True)
class Server:
    """What of a server the meaning of a body depends on.

    names: models that may be asked for; methods: names of the draft that is loaded; most: requests a body may make.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    context: int
    vocab: int
    methods: tuple[str, ...] = ("none",)
    rule: str = "block"
    most: int = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What a body asks for: choice i is `asks[i]`, and its text begins with `echoes[i]`, in pieces.

    With `prompt_logprobs` among the parameters there is a piece for each token of the prompt.
    """

    chat: bool
    model: str
    asks: tuple[Ask, ...]
    echoes: tuple[tuple[str, ...], ...]
    n: int
    stream: bool
    usage: bool
    running_usage: bool
    token_ids: bool
    origins: bool
    predicted: bool
    top_logprobs: int
    params: SamplingParams = field(default_factory=SamplingParams)

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices it has."""
        return sum(len(ask.prompt) for ask in self.asks[:: self.n])


def completion(body: CompletionBody, server: Server) -> Plan:
    """Raises: Refusal."""
    check_fields(body)
    logprobs = body.logprobs if body.given("logprobs") else None
    scored = logprobs if body.echo else None
    if body.max_tokens == 0 and scored is None:
        raise invalid("max_tokens", "0 is for scoring a prompt: set echo and logprobs as well, or give at least 1")
    prompts = [_encoded(prompt, body.add_special_tokens, server) for prompt in body.prompt]
    plan = _plan(body, server, prompts, body.max_tokens, logprobs, scored)
    if not body.echo:
        return plan
    if scored is not None:
        echoes = [pieces_of(server.tokenizer, tokens) for tokens in prompts]
    else:
        echoes = [(p if isinstance(p, str) else text_of(server.tokenizer, p),) for p in body.prompt]
    return replace(plan, echoes=tuple(e for e in echoes for _ in range(body.n)))


def chat(body: ChatBody, server: Server) -> Plan:
    """Raises: Refusal."""
    check_fields(body)
    if body.given("top_logprobs") and not body.logprobs:
        raise invalid("top_logprobs", "set logprobs to true as well, or leave it out")
    prompt = conversation(body.messages, server)
    plan = _plan(body, server, [prompt], _chat_limit(body, server), body.top_logprobs if body.logprobs else None)
    return replace(plan, chat=True)


def conversation(messages: Sequence[Message], server: Server) -> list[int]:
    for message in messages:
        check_extras(message, "messages")
    try:
        tokens = server.tokenizer.chat([{"role": m.role, "content": m.content} for m in messages])
    except (ModelError, ValueError) as error:
        raise Refusal(400, str(error), "messages") from error
    return _fitting(tokens, server, "messages")


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return "".join(pieces_of(tokenizer, tokens))


def pieces_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text that each token completes; the last one has what an incomplete character leaves."""
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    return (*pieces[:-1], "".join([*pieces[-1:], stream.flush()]))


def encoded(text: str, special: bool, server: Server) -> list[int]:
    """Raises: Refusal: the tokenizer has no tokens for the text."""
    try:
        return server.tokenizer.encode(text, special)
    except (RequestError, ValueError) as error:
        raise invalid("prompt", f"the tokenizer cannot read it ({error})") from error


def check_model(name: str, server: Server) -> None:
    if name and name not in server.names:
        known = ", ".join(server.names)
        raise Refusal(404, f"model: {name!r} is not here: ask for {known}", "model", "model_not_found")


def check_ids(tokens: Sequence[int], server: Server, name: str) -> None:
    """Raises: Refusal: one of them is no token of the model."""
    for token in tokens:
        if not 0 <= token < server.vocab:
            raise invalid(name, f"{token} is no token: the model has 0 .. {server.vocab - 1}")


def _encoded(prompt: str | list[int], special: bool, server: Server) -> list[int]:
    if not isinstance(prompt, str):
        check_ids(prompt, server, "prompt")
        return _fitting(prompt, server, "prompt")
    if len(prompt) > _MOST_TEXT_PER_TOKEN * server.context:
        raise invalid("prompt", f"{len(prompt)} characters do not fit into {server.context} tokens: shorten it")
    return _fitting(encoded(prompt, special, server), server, "prompt")


def _fitting(tokens: list[int], server: Server, name: str) -> list[int]:
    """The same check as the engine's, before a long list travels to it."""
    if len(tokens) >= server.context:
        raise invalid(name, f"{len(tokens)} tokens do not fit into the context of {server.context}: shorten it")
    return tokens


def _chat_limit(body: ChatBody, server: Server) -> int:
    given = {getattr(body, name) for name in ("max_tokens", "max_completion_tokens") if body.given(name)}
    if len(given) > 1:
        raise invalid("max_tokens", "it is another number than max_completion_tokens: give one of them")
    return next(iter(given), server.context)


def _plan(
    body: Sampling,
    server: Server,
    prompts: Sequence[Sequence[int]],
    limit: int,
    logprobs: int | None,
    scored: int | None = None,
) -> Plan:
    check_model(body.model, server)
    count = len(prompts) * body.n
    if count > server.most:
        raise invalid("n", f"prompts times n is {count}, this server takes {server.most}: send fewer at a time")
    params, expected = _params(body, server, limit, logprobs, scored), _prediction(body, server)
    asks = [
        Ask(tuple(prompt), _seeded(body, params, i * body.n + j), expected)
        for i, prompt in enumerate(prompts)
        for j in range(body.n)
    ]
    options = body.stream_options
    if body.given("stream_options") and not body.stream:
        raise invalid("stream_options", "it is for stream=true: leave it out")
    return Plan(
        chat=False,
        model=body.model or server.names[0],
        asks=tuple(asks),
        echoes=((),) * count,
        n=body.n,
        stream=body.stream,
        usage=options.include_usage,
        running_usage=options.continuous_usage_stats,
        token_ids=body.return_token_ids,
        origins=body.return_token_origins,
        predicted=body.given("prediction"),
        top_logprobs=logprobs or 0,
        params=params,
    )


def _params(body: Sampling, server: Server, limit: int, logprobs: int | None, scored: int | None) -> SamplingParams:
    rule = body.speculative.rule or server.rule
    try:
        rule_named(rule)
        return SamplingParams(
            temperature=body.temperature,
            top_k=max(body.top_k, 0),
            top_p=body.top_p,
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=_bias(body.logit_bias),
            min_tokens=body.min_tokens,
            max_tokens=limit,
            stop=tuple(body.stop),
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=scored,
            cache_salt=body.cache_salt,
            k=_length(body, server),
            rule=rule,
        )
    except RequestError as error:
        raise of_request(error) from error


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    bias = {int(name): value for name, value in given.items() if name.isdecimal() and len(name) < 10}
    if len(bias) != len(given):
        raise invalid("logit_bias", 'keys are token ids, each once, as in {"50256": -100}')
    return bias


def _length(body: Sampling, server: Server) -> DraftLength | None:
    """None: the engine's default."""
    asked = body.speculative
    if asked.method and asked.method not in server.methods:
        known = " or ".join(server.methods)
        raise invalid("speculative.method", f"{asked.method!r} is not loaded here: use {known}, or leave it out")
    return asked.num_speculative_tokens if asked.given("num_speculative_tokens") else None


def _prediction(body: Sampling, server: Server) -> tuple[int, ...]:
    if not body.given("prediction"):
        return ()
    if "prediction" not in server.methods:
        raise invalid("prediction", f"this server drafts with {server.methods[0]}: start it with --draft prediction")
    if not body.prediction.content:
        raise invalid("prediction", "its content is empty: leave it out")
    return tuple(encoded(body.prediction.content, False, server))


def _seeded(body: Sampling, params: SamplingParams, index: int) -> SamplingParams:
    """Choice 0 has the seed itself, the others seeds that follow from it."""
    return replace(params, seed=(body.seed + index * _STRIDE) % 2**64) if body.given("seed") else params
