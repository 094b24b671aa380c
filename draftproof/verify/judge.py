"""One accept rule against all checks on rules, in one call: for whoever invents a rule. See docs/add_a_check.md.

Knows no engine: a rule here is a function, its laws are dense arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftproof.verify.checks.rules import CHECKS
from draftproof.verify.contract import Budget, Floats, Result, RuleUnderTest


class PlainLaw:
    """A dense law for rules that bring none of their own."""

    def __init__(self, probs: Floats) -> None:
        self.probs = probs

    def dense(self) -> Floats:
        return self.probs


def pick(probs: Floats, u: Any) -> int:
    """Inverse CDF; `u` may be one of the enumerator's symbols."""
    return int(np.searchsorted(np.cumsum(probs), u * probs.sum(), side="right"))


def judge(
    verdict: Callable[[Sequence[Any], Any, Any], Any], acceptance: str = "", seed: int = 1, level: str = "default"
) -> list[Result]:
    """Joint law, acceptance, edges and purity of one rule, `verdict(rows, (tokens, laws), noise)`.

    Rows and laws are `PlainLaw`s; draft tokens are drawn with `noise.uniform(i, "draft")`. `acceptance`: see
    `RuleUnderTest`.
    """

    def draw(law: PlainLaw, noise: Any, offset: int) -> int:
        return pick(law.probs, noise.uniform(offset, "draft"))

    rule = RuleUnderTest("rule", verdict, draw, PlainLaw, lambda tokens, laws: (tokens, laws), acceptance)
    budget = Budget(level=level, seed=seed)
    return [check.judged((rule,), budget) for check in CHECKS]
