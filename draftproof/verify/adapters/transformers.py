"""Hugging Face transformers: assisted generation and prompt lookup, in a worker process, one job at a time.

Knows the words of `generate`; the worker `workers/hf.py` calls it.
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
        Ability.COUNTS,
        Ability.LOGPROBS,
        Ability.REPETITION,
        Ability.LOGIT_BIAS,
        Ability.MIN_TOKENS,
        Ability.MIN_P,
        Ability.STOP_TOKENS,
    }
)
_RULES = {"assisted": "token", "ensemble": "token"}  # as its source names the paper that it follows


class Transformers:
    name = "transformers"
    form = Form.HF
    packages = ("torch>=2.6", "transformers>=5", "numpy")
    modes: Mapping[str, Mode] = MappingProxyType(
        {
            "assisted": Mode("a draft model, as many draft tokens as each job asks for", Drafting.MODEL),
            "assisted-default": Mode("a draft model, draft lengths by the library's own defaults", Drafting.MODEL),
            "lookup": Mode("prompt lookup", Drafting.LOOKUP),
            "plain": Mode("no speculation", Drafting.NONE, Promise.PLAIN),
            "ensemble": Mode(
                "a draft model with assistant_ensemble_weight, documented to trade the law for acceptance",
                Drafting.MODEL,
                Promise.APPROXIMATE,
            ),
        }
    )

    def missing(self, setup: Setup) -> str:
        return environment.missing(setup.home, self.name, "transformers")

    def engine(self, setup: Setup) -> Hosted:
        python = environment.interpreter(setup.home, self.name, "transformers")
        child = Child(python, "hf.py", setup.home / self.name / f"{setup.mode}.log")
        asked = {"mode": setup.mode, "target": setup.target, "draft": setup.draft, "options": dict(setup.options)}
        more = {Ability.STEPS} if setup.mode in _RULES else set()
        if self.modes[setup.mode].drafting is not Drafting.MODEL:  # to a draft model the tokenizer is not handed on
            more.add(Ability.STOP_STRINGS)
        return Hosted(self.name, child, asked, _ABILITIES | more, (_RULES.get(setup.mode, ""),))


ADAPTER = Transformers()
