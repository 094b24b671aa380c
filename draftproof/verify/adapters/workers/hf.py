"""Jobs for Hugging Face transformers. Runs in an interpreter that has torch and transformers; see `lines.py`."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

Dict = dict[str, Any]
_GREATEST = 1 << 62  # of the seeds that torch takes


def make(setup: Dict) -> tuple[Dict, Any]:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(setup["options"].get("threads", "1")))
    engine = Engine(setup)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    said = {**versions, "python": platform.python_version(), "dtype": "float32", "batch": "1", **engine.settings}
    return said, lambda request: {"samples": [engine.sample(job) for job in request["jobs"]]}


class Engine:
    def __init__(self, setup: Dict) -> None:
        self._mode, options = setup["mode"], setup["options"]
        self._target = AutoModelForCausalLM.from_pretrained(setup["target"], dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(setup["target"])
        ends = self._target.generation_config.eos_token_id
        self._eos = ends if isinstance(ends, list) else [] if ends is None else [ends]
        self._target.generation_config = GenerationConfig()  # jobs say all there is to say
        self._weight = float(options.get("ensemble_weight", "0.25"))
        self._draft = None
        self._steps: list[tuple[int, int]] = []
        self.settings = {"mode": self._mode}
        if self._mode in ("assisted", "assisted-default", "ensemble"):
            self._draft = AutoModelForCausalLM.from_pretrained(setup["draft"], dtype=torch.float32).eval()
            self._draft.generation_config = GenerationConfig()
        if self._mode == "ensemble":
            self.settings["assistant_ensemble_weight"] = str(self._weight)
        for generator in (AssistedCandidateGenerator, PromptLookupCandidateGenerator):
            self._watch(generator)

    def _watch(self, generator: Any) -> None:
        """Note of each pass how many tokens were proposed and accepted: the library tells both to this method."""
        kept, steps = generator.update_candidate_strategy, self._steps

        def update(self: Any, input_ids: Any, scores: Any, num_matches: int) -> Any:
            steps.append((scores.shape[1] - 1, int(num_matches)))
            return kept(self, input_ids, scores, num_matches)

        generator.update_candidate_strategy = update

    def sample(self, job: Dict) -> Dict:
        params, prompt = job["params"], job["prompt"]
        if job["seed"] is not None:
            torch.default_generator.manual_seed(job["seed"] % _GREATEST)
        self._steps.clear()
        stops = [*params["stop_token_ids"], *([] if params["ignore_eos"] else self._eos)]
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(params, stops),
                **self._speculation(params),
            )
        tokens = out.sequences[0, len(prompt) :].tolist()
        told = self._ended(params, stops, tokens)
        if params["logprobs"]:
            rows = torch.cat(out.logits).log_softmax(-1)
            told["logprobs"] = [float(rows[i, t]) for i, t in enumerate(told["tokens"])]
        return told | self._counts(params)

    def _config(self, params: Dict, stops: list[int]) -> GenerationConfig:
        sampled = params["temperature"] > 0
        warped = {"temperature": params["temperature"], "top_k": params["top_k"], "top_p": params["top_p"]}
        if params["min_p"]:
            warped["min_p"] = params["min_p"]
        bias = {(token,): value for token, value in params["logit_bias"]}
        return GenerationConfig(
            do_sample=sampled,
            max_new_tokens=params["max_tokens"],
            min_new_tokens=params["min_tokens"] or None,
            repetition_penalty=params["repetition_penalty"],
            sequence_bias=bias or None,
            eos_token_id=stops or None,
            pad_token_id=0,
            stop_strings=list(params["stop"]) or None,
            output_logits=params["logprobs"],
            return_dict_in_generate=True,
            assistant_ensemble_weight=self._weight if self._mode == "ensemble" and params["k"] else None,
            **(warped if sampled else {}),
        )

    def _speculation(self, params: Dict) -> Dict:
        more: Dict = {"tokenizer": self._tokenizer} if params["stop"] else {}
        if self._mode == "plain" or params["k"] == 0:
            return more
        if self._draft is None:
            return more | {"prompt_lookup_num_tokens": params["k"]}
        if self._mode != "assisted-default":
            own = self._draft.generation_config
            own.num_assistant_tokens, own.num_assistant_tokens_schedule = params["k"], "constant"
            own.assistant_confidence_threshold = 0.0
        return more | {"assistant_model": self._draft}

    def _ended(self, params: Dict, stops: list[int], tokens: list[int]) -> Dict:
        """The library keeps what ended a text at its end; the suite leaves it out. A stop that is elsewhere stays."""
        told: Dict = {"tokens": tokens, "finish": "length", "usage": len(tokens)}
        if tokens and tokens[-1] in stops:
            return told | {"tokens": tokens[:-1], "finish": "stop", "usage": len(tokens) - 1}
        if not params["stop"]:
            return told
        text = self._tokenizer.decode(tokens)
        found = [s for s in params["stop"] if text.endswith(s) and s not in text[:-1]]
        if not found:
            return told | {"text": text}
        text = text[: -len(max(found, key=len))]
        kept = next(n for n in range(len(tokens) + 1) if len(self._tokenizer.decode(tokens[:n])) >= len(text))
        return told | {"tokens": tokens[:kept], "finish": "stop", "text": text, "usage": kept}

    def _counts(self, params: Dict) -> Dict:
        if params["k"] == 0 or self._mode == "plain":
            return {}
        proposed, accepted = (sum(step[i] for step in self._steps) for i in (0, 1))
        told: Dict = {"proposed": proposed, "accepted": accepted}
        return told if self._mode == "assisted-default" else told | {"steps": self._steps.copy()}
