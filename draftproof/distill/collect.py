"""Training data from the target itself: texts that it writes, with its own hidden states at every token.

Data come in rounds that depend on (seed, round) alone: user turns and articles that the target makes up, then answers
to those turns, to templates and to questions about the articles, at several temperatures. A round is one file, which is
there complete or not at all, so a run that was stopped goes on where it was. Knows nothing of heads or training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.distill import prompts
from draftproof.draft.base import Ask, Seen
from draftproof.engine import Engine
from draftproof.model.checkpoint import ModelError
from draftproof.model.load import Loaded
from draftproof.types import Draft, Output, SamplingParams

_TURNS, _ARTICLES, _TEMPLATES, _READINGS = 96, 24, 64, 64  # requests of a round
_TURN_TOKENS, _ARTICLE_TOKENS, _ANSWER_TOKENS = 48, 112, 96
_TEMPERATURES = (0.0, 1.0, 0.0, 1.0, 0.7)  # of answers, in turn
_RUNNING = 128
_BLANK = "\ue000"  # stands where the user's words begin

Tokens = tuple[int, ...]


class Text(NamedTuple):
    """A text of `tokens`, of which the first `prompt` were given, and the target's states after each of them."""

    tokens: NDArray[np.int32]  # [n]
    states: NDArray[np.float16]  # [n, layers, width]
    prompt: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Requests of a round by kind, and the most tokens of each kind. Smaller in tests."""

    turns: int = _TURNS
    articles: int = _ARTICLES
    templates: int = _TEMPLATES
    readings: int = _READINGS
    turn_tokens: int = _TURN_TOKENS
    article_tokens: int = _ARTICLE_TOKENS
    answer_tokens: int = _ANSWER_TOKENS


class Recorder:
    """A proposer that proposes nothing and keeps the target's hidden states, until they are taken."""

    def __init__(self) -> None:
        self._states: dict[int, list[NDArray[np.float16]]] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft() for _ in asks]

    def observe(self, seen: Sequence[Seen]) -> None:
        for s in seen:
            if s.hidden is None:
                raise ValueError("the target was loaded without hidden_layers: there is nothing to record")
            rows = self._states.setdefault(s.view.request.id, [])
            del rows[s.start :]  # rows that are fed again
            rows.extend(s.hidden.astype(np.float16))

    def forget(self, request: int) -> None:
        del request  # the states outlive the request: they are what it was made for

    def take(self, request: int, count: int) -> NDArray[np.float16]:
        return np.stack(self._states.pop(request)[:count])


class Rounds:
    """Args: the target, loaded with hidden_layers; the folder of the rounds' files; the seed of everything."""

    def __init__(self, target: Loaded, folder: Path, seed: int, sizes: Sizes | None = None) -> None:
        self._tokenizer, self._recorder = target.tokenizer, Recorder()
        self._engine = Engine(target.model, target.tokenizer, self._recorder, k=0, max_running=_RUNNING)
        self._folder, self._seed, self._sizes = folder, seed, sizes or Sizes()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        return self._folder / f"round-{number:04d}.npz"

    def make(self, number: int, said: Callable[[int], None] = lambda _: None) -> int:
        """Write a round's file unless it is there. Returns the number of its tokens; `said` hears of new ones."""
        path = self.path(number)
        if not path.exists():
            save(path, list(self._texts(random.Random(f"{self._seed} {number}"), said)))
        return count(path)

    def _texts(self, rng: random.Random, said: Callable[[int], None]) -> Iterator[Text]:
        s = self._sizes
        openings = [self._opening(rng) for _ in range(s.turns)]
        articles = [self._asked(prompts.article(rng), rng) for _ in range(s.articles)]
        first = [*((o, 1.0, s.turn_tokens) for o in openings), *((a, 1.0, s.article_tokens) for a in articles)]
        written = self._run(first, rng, said)
        yield from (text for _, text in written)
        texts = [self._tokenizer.decode(o.tokens).strip() for o, _ in written]
        turns, passages = texts[: s.turns], texts[s.turns :]
        asked = [t for t in turns if t] + [prompts.asking(rng) for _ in range(s.templates)]
        asked += [prompts.reading(rng, [p for p in passages if p] or [""]) for _ in range(s.readings)]
        wanted = [
            (self._asked(text, rng), _TEMPERATURES[n % len(_TEMPERATURES)], s.answer_tokens)
            for n, text in enumerate(asked)
        ]
        yield from (text for _, text in self._run(wanted, rng, said))

    def _asked(self, text: str, rng: random.Random) -> Tokens:
        """The user's words as the model wants to be asked; plain text for a model that does not chat."""
        try:
            tokens = self._tokenizer.chat([{"role": "user", "content": text}])
        except ModelError:
            tokens = self._tokenizer.encode(text)
        return tuple(tokens[-(self._engine.context // 2) :]) or (self._any_token(rng),)

    def _opening(self, rng: random.Random) -> Tokens:
        """What stands before the user's first word. A model that does not chat begins with any token at all."""
        try:
            whole = self._tokenizer.chat_text([{"role": "user", "content": _BLANK}])
        except ModelError:
            return (self._any_token(rng),)
        return tuple(self._tokenizer.encode(whole.partition(_BLANK)[0], special=False))

    def _any_token(self, rng: random.Random) -> int:
        """One that has a text: special tokens begin nothing."""
        while True:
            token = rng.randrange(self._tokenizer.vocab)
            if self._tokenizer.token_bytes(token):
                return token

    def _run(
        self, wanted: Sequence[tuple[Tokens, float, int]], rng: random.Random, said: Callable[[int], None]
    ) -> list[tuple[Output, Text]]:
        engine, outputs = self._engine, dict[int, Output]()
        seeds = [rng.getrandbits(64) for _ in wanted]
        params = [
            SamplingParams(temperature=t, max_tokens=n, seed=s, k=0) for (_, t, n), s in zip(wanted, seeds, strict=True)
        ]
        names = [engine.add(prompt, p) for (prompt, _, _), p in zip(wanted, params, strict=True)]
        try:
            while engine.busy:
                for event in engine.step():
                    said(len(event.tokens))
                    if event.output is not None:
                        outputs[event.request] = event.output
        finally:
            for name in names:
                engine.abort(name)
        return [(outputs[name], self._text(outputs[name])) for name in names]

    def _text(self, output: Output) -> Text:
        """The last token was never fed, so nothing is known of what comes after it: it is left out."""
        tokens = [*output.prompt, *output.tokens]
        n = len(tokens) - bool(output.tokens)
        states = self._recorder.take(output.request, n)
        return Text(np.array(tokens[:n], dtype=np.int32), states, len(output.prompt))


def save(path: Path, texts: Sequence[Text]) -> None:
    """One file of many texts, renamed into place when it is complete.

    Raises:
        ModelError: there is no room for it.
    """
    arrays: Mapping[str, NDArray[np.generic]] = {
        "sizes": np.array([len(t.tokens) for t in texts], dtype=np.int64),
        "prompts": np.array([t.prompt for t in texts], dtype=np.int64),
        "tokens": np.concatenate([t.tokens for t in texts]),
        "states": np.concatenate([t.states for t in texts]),
    }
    draft = path.with_suffix(".tmp")
    try:
        with draft.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        draft.rename(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written ({error.strerror or error}): free some space") from error


def read(path: Path) -> list[Text]:
    """The texts of one file.

    Raises:
        ModelError: the file is damaged.
    """
    try:
        with np.load(path) as arrays:
            sizes, given, tokens, states = (arrays[name] for name in ("sizes", "prompts", "tokens", "states"))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} is damaged ({error}): delete it, it will be made again") from error
    ends = np.cumsum(sizes)
    return [
        Text(tokens[end - size : end], states[end - size : end], int(n))
        for end, size, n in zip(ends, sizes, given, strict=True)
    ]


def count(path: Path) -> int:
    """Tokens in a file, without reading the states."""
    with np.load(path) as arrays:
        return int(arrays["sizes"].sum())
