"""What speculation did for finished requests, under vLLM's names. Knows outputs; knows no JSON shape around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from draftproof.types import Output


def speculation(outputs: Sequence[Output]) -> dict[str, object]:
    """Of all the outputs together.

    `num_spec_steps` are the steps that proposed something; `mean_acceptance_length` is their accepted tokens and one
    more a step; entry j of `acceptance_histogram` counts those that accepted j tokens; `num_spec_tokens` is the
    longest draft. Without a draft the two ratios are null: there is nothing to divide.
    """
    steps = [step for output in outputs for step in output.steps if step.proposed]
    drafted, accepted = sum(len(s.proposed) for s in steps), sum(s.accepted for s in steps)
    longest = max((len(s.proposed) for s in steps), default=0)
    counts = Counter(s.accepted for s in steps)
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": accepted / drafted if steps else None,
        "acceptance_histogram": [counts[j] for j in range(longest + 1)] if steps else [],
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": longest,
    }
