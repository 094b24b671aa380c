"""A tuning without a clock: made-up costs, and a runner whose seconds follow from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from bench.fake import MADE, PARTS, FakeRunner, encode

from draftproof.bench.measure import Source
from draftproof.bench.plan import Config, Plan, Wish, plan_of
from draftproof.bench.tune import Task, Tuning
from draftproof.bench.workloads import Prompt
from draftproof.length.profile import Line, Profile

MANY = [Prompt(f"{kind}-{n}", kind, "long", f"{kind} {n}") for kind in ("chat", "code") for n in range(30)]
WISH = Wish((), short=20, long=40)


def profile(draft: float = PARTS["draft"]) -> Profile:
    """The fake runner's PARTS, however many rows and sequences; `draft` seconds a token."""
    rest = sum(PARTS.values()) - PARTS["draft"] - PARTS["verify"]
    return Profile(((1.0, PARTS["verify"]),), ((1, Line(0.0, draft)),), ((1, Line(rest, 0.0)),))


def stands(most: int) -> Callable[[Config, str], int]:
    return lambda config, prompt: min(int(config.k), most)


def runner(
    most: int = 2, draft: float = PARTS["draft"], noise: float = 0.0, more: Mapping[str, float] | None = None
) -> FakeRunner:
    """Drafts of up to `most` tokens stand. `draft` seconds a draft token; `more` seconds of parts where k > 0."""
    rng = random.Random(3)
    parts = {f"k={k}": {**PARTS, "draft": k * draft, **(more or {})} for k in range(1, 9)}
    parts["plain"] = {**PARTS, "draft": 0.0}
    parts |= {f"{name} token": told for name, told in parts.items()}
    return FakeRunner(parts, stands(most), lambda prompt: rng.lognormvariate(0.0, noise))


def tuning(
    made: FakeRunner,
    wish: Wish = WISH,
    costs: Profile | None = None,
    prompts: Sequence[Prompt] = MANY,
    most: int = 8,
    minutes: float = 1e9,
    clock: Callable[[], float] = lambda: 0.0,
) -> Tuning:
    def planned(wish: Wish) -> tuple[Plan, list[Source]]:
        plan = plan_of(wish, prompts, encode, 1000, MADE)
        return plan, [Source(p.id, (1, 2, 3)) for p in plan.prompts]

    return Tuning(Task(wish, most, minutes), costs or profile(), planned, made, clock, lambda _: None)
