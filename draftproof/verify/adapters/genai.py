"""OpenVINO GenAI: its continuous batching pipeline with a draft model or prompt lookup, in a worker process.

Keys and values are kept in f32, for the draft as well: with the default of 8 bits a text depends on how it was cut into
passes. Knows the pipeline's options; the worker `workers/ovgenai.py` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from draftproof.verify.adapters import environment
from draftproof.verify.adapters.hosted import Child, Hosted
from draftproof.verify.adapters.registry import Drafting, Form, Mode, Promise, Setup
from draftproof.verify.contract import Ability

_ABILITIES = frozenset(
    {
        Ability.SEEDS,
        Ability.PLAIN,
        Ability.BATCH,
        Ability.COUNTS,
        Ability.LOGPROBS,
        Ability.REPETITION,
        Ability.MIN_P,
        Ability.STOP_TOKENS,
    }
)


class GenAI:
    """Options: kv (KV_CACHE_PRECISION, f32), threads (1), batched_tokens (max_num_batched_tokens, 16384).

    Its presence and frequency penalties are documented to shrink a logit's magnitude, which is another definition than
    the suite's; they are not offered.
    """

    name = "genai"
    form = Form.OPENVINO
    packages = ("openvino-genai>=2026.4,<2027",)
    modes: Mapping[str, Mode] = MappingProxyType(
        {
            "draft": Mode("a draft model", Drafting.MODEL),
            "lookup": Mode("prompt lookup", Drafting.LOOKUP),
            "plain": Mode("no speculation", Drafting.NONE, Promise.PLAIN),
        }
    )

    def missing(self, setup: Setup) -> str:
        return environment.missing(setup.home, self.name, "openvino_genai")

    def engine(self, setup: Setup) -> Hosted:
        python = environment.interpreter(setup.home, self.name, "openvino_genai")
        child = Child(python, "ovgenai.py", setup.home / self.name / f"{setup.mode}.log")
        asked = {"mode": setup.mode, "target": setup.target, "draft": setup.draft, "options": dict(setup.options)}
        return Hosted(self.name, child, asked, _ABILITIES)


ADAPTER = GenAI()
