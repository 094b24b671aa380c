"""Which checks run on which engine and world: the legs of `draftproof verify`, and the kill matrix of its mutants.

Knows every check and the built-in worlds. Adapters are imported when a leg of theirs is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from draftproof.verify import toy
from draftproof.verify.checks import acceptance, bitwise, blackbox, ends, law, lossy, numerics, rules, stream
from draftproof.verify.contract import Budget, Check, Mutant, Verdict
from draftproof.verify.mutants import MUTANTS, WORLDS
from draftproof.verify.outcome import Kill
from draftproof.verify.plan import Leg, VerifyError, statistical

TOY_CHECKS: tuple[Check, ...] = (
    *rules.CHECKS,
    *law.CHECKS,
    *acceptance.CHECKS,
    *bitwise.CHECKS,
    *ends.CHECKS,
    *stream.CHECKS,
    *blackbox.CHECKS,
    *numerics.CHECKS,
)
NGRAM_CHECKS: tuple[Check, ...] = (
    law.LawJoint(coarser=2.0),
    law.LawPenalties(),
    *bitwise.CHECKS,
    *ends.CHECKS,
    *stream.CHECKS,
)
AGREEING_CHECKS: tuple[Check, ...] = (bitwise.Speculation(), *ends.CHECKS)
REAL_CHECKS: tuple[Check, ...] = (
    law.LawTruncated(),
    *bitwise.CHECKS,
    ends.Pairs(),
    ends.Books(),
    numerics.GreedyMargin(),
)
LOSSY_RULES = ("lenience:1.5", "typical:0.3")  # measured, not judged
EXACT_RULES = ("block", "token", "sampled", "coupled")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. `model` "toy" is the built-in pair of tiny checkpoints, "torch:toy" the same pair
    on PyTorch."""

    model: str = "toy"
    drafts: tuple[str, ...] = ()
    rules: tuple[str, ...] = (*EXACT_RULES, *LOSSY_RULES)
    folder: Path = Path("toy")  # where toy checkpoints are written


def legs(options: Options) -> list[Leg]:
    """One leg a draft, on the chosen model."""
    from draftproof.verify.adapters import draftproof as ours

    exact = tuple(r for r in options.rules if r in EXACT_RULES)
    if options.model in {"toy", "torch:toy"}:
        return _toy_legs(options, exact)
    made = []
    for draft in options.drafts or ("ngram", options.model):
        engine = ours.real_engine(options.model, draft, exact, "int8")
        world = ours.real_world(engine, options.model)
        made.append(Leg(f"{options.model}, draft {draft}", lambda e=engine: e, world, REAL_CHECKS))  # type: ignore[misc]
    return made


def _toy_legs(options: Options, exact: tuple[str, ...]) -> list[Leg]:
    """Greedy texts are told apart best where the draft is often right: the agreeing pair."""
    from draftproof.verify.adapters import draftproof as ours

    measured = tuple(lossy.LossyDistance(r) for r in options.rules if r not in EXACT_RULES)
    plan: dict[str, dict[str, tuple[Check, ...]]] = {
        "model": {"spread": (*TOY_CHECKS, *measured) if exact else measured, "agreeing": AGREEING_CHECKS * bool(exact)},
        "ngram": {"spread": NGRAM_CHECKS * bool(exact)},
    }
    backend, where = ("torch:", " on torch") if options.model == "torch:toy" else ("", "")
    made = []
    if unknown := [d for d in options.drafts if d not in plan]:
        raise VerifyError(f"the toys have no draft {unknown[0]!r}: give one of {', '.join(plan)}, or name a --model")
    for draft in options.drafts or tuple(plan):
        for name, checks in plan[draft].items():
            pair = toy.pair(name)
            engine = partial(ours.toy_engine, pair, options.folder / name, draft, exact, backend)
            made.append(Leg(f"toy {name}, {draft} draft{where}", engine, toy.world(pair), checks))
    return made


def all_checks() -> dict[str, Check]:
    return {c.name: c for c in (*TOY_CHECKS, *REAL_CHECKS)}


def mutant_matrix(
    budget: Budget, seeds: Sequence[int] = (1,), said: Callable[[str], None] = lambda _: None
) -> Iterator[Kill]:
    """Each mutant against the check that must kill it; killed only if it falls at every seed."""
    for mutant in MUTANTS:
        said(mutant.name)
        yield kill(mutant, budget, seeds)


def kill(mutant: Mutant, budget: Budget, seeds: Sequence[int]) -> Kill:
    check, world = all_checks()[mutant.check], WORLDS[mutant.world]()
    results = (check.run(mutant.make(world), world, replace(budget, seed=s), share(budget)) for s in seeds)
    killed = all(r.verdict is Verdict.FAILS for r in results)
    return Kill(mutant.name, mutant.what, mutant.check, mutant.check if killed else None, killed)


def share(budget: Budget) -> float:
    """What one check of the default legs may spend of the budget."""
    return budget.alpha / sum(map(statistical, (*TOY_CHECKS, *AGREEING_CHECKS, *NGRAM_CHECKS)))
