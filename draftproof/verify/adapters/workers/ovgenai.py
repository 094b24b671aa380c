"""Jobs for OpenVINO GenAI. Runs in an interpreter that has openvino_genai; see `lines.py`."""

from __future__ import annotations

import platform
import random
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

Dict = dict[str, Any]
_ALL = 2**31  # as top_k: no token is left out
_SEEDS = 2**32
_BATCH = 256
_TOKENS = 1 << 14  # of a pass: all that a batch of toy prompts can have


def make(setup: Dict) -> tuple[Dict, Any]:
    options = setup["options"]
    kv = options.get("kv", "f32")
    device = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kv,
        "INFERENCE_NUM_THREADS": int(options.get("threads", "1")),
    }
    engine = Engine(setup, device)
    said = {"openvino_genai": genai.__version__, "openvino": ov.__version__, "python": platform.python_version()}
    return {
        **said,
        "mode": setup["mode"],
        "max_num_batched_tokens": str(engine.tokens),
        **{k: str(v) for k, v in device.items()},
    }, engine.answer


class Engine:
    """One pipeline that speculates and one that does not, for jobs with k = 0."""

    def __init__(self, setup: Dict, device: Dict) -> None:
        self._setup, self._device, self._mode = setup, device, setup["mode"]
        self.tokens = int(setup["options"].get("batched_tokens", _TOKENS))
        more: Dict = {}
        if self._mode == "draft":
            more["draft_model"] = genai.draft_model(setup["draft"], "CPU", **device)
        elif self._mode == "lookup":
            more["prompt_lookup"] = True
        self._fast = self._pipeline(more)
        self._plain = self._pipeline({}) if more else self._fast

    def _pipeline(self, more: Dict) -> Any:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = 1, _BATCH
        scheduler.max_num_batched_tokens = self.tokens
        scheduler.enable_prefix_caching = False
        return genai.ContinuousBatchingPipeline(self._setup["target"], scheduler, "CPU", {**self._device, **more})

    def answer(self, request: Dict) -> Dict:
        jobs = request["jobs"]
        drafted = [n for n, job in enumerate(jobs) if job["params"]["k"] > 0]
        plain = [n for n, job in enumerate(jobs) if job["params"]["k"] == 0]
        samples: list[Dict] = [{}] * len(jobs)
        for pipeline, chosen in ((self._fast, drafted), (self._plain, plain)):
            for start in range(0, len(chosen), _BATCH):
                part = chosen[start : start + _BATCH]
                for n, sample in zip(part, self._run(pipeline, [jobs[n] for n in part]), strict=True):
                    samples[n] = sample
        return {"samples": samples}

    def _run(self, pipeline: Any, jobs: list[Dict]) -> list[Dict]:
        handles = [
            pipeline.add_request(
                n, ov.Tensor(np.array([job["prompt"]], dtype=np.int64)), self._config(job["params"], job)
            )
            for n, job in enumerate(jobs)
        ]
        told: list[Dict] = [{"tokens": [], "logprobs": [], "finish": "length", "bursts": []} for _ in jobs]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for handle, sample in zip(handles, told, strict=True):
                if handle.can_read():
                    _take(sample, handle.read())
        speculated = pipeline is self._fast and self._mode != "plain"
        return [self._sample(job["params"], sample, speculated) for job, sample in zip(jobs, told, strict=True)]

    def _config(self, params: Dict, job: Dict) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = params["max_tokens"]
        config.do_sample = params["temperature"] > 0
        if config.do_sample:
            config.temperature, config.top_p = params["temperature"], params["top_p"]
            config.top_k, config.min_p = params["top_k"] or _ALL, params["min_p"]
        config.rng_seed = (random.getrandbits(32) if job["seed"] is None else job["seed"]) % _SEEDS
        config.repetition_penalty = params["repetition_penalty"]
        config.presence_penalty, config.frequency_penalty = params["presence_penalty"], params["frequency_penalty"]
        config.logprobs = int(params["logprobs"])
        config.ignore_eos = params["ignore_eos"] and not params["stop_token_ids"]  # it would ignore stop tokens too
        config.stop_token_ids, config.stop_strings = set(params["stop_token_ids"]), set(params["stop"])
        if params["k"] > 0 and self._mode != "plain":
            config.num_assistant_tokens = params["k"]
            if self._mode == "lookup":
                config.max_ngram_size = 2
        return config

    def _sample(self, params: Dict, told: Dict, speculated: bool) -> Dict:
        """A stop token is left out, as the suite counts. A step that gave more than one token had a draft accepted."""
        tokens, bursts = told["tokens"], told.pop("bursts")
        if told["finish"] == "stop" and tokens and tokens[-1] in params["stop_token_ids"]:
            tokens.pop()
            told["logprobs"] = told["logprobs"][: len(tokens)]
        if not params["logprobs"]:
            del told["logprobs"]
        if speculated:
            told["proposed"] = sum(burst - 1 for burst in bursts)  # of those that it does not accept it says nothing
        return told


def _take(sample: Dict, outputs: Any) -> None:
    (output,) = outputs.values()
    sample["tokens"] += [int(t) for t in output.generated_ids]
    sample["logprobs"] += [float(p) for p in output.generated_log_probs]
    sample["bursts"].append(len(output.generated_ids))
    if output.finish_reason == genai.GenerationFinishReason.STOP:
        sample["finish"] = "stop"
