"""The kill matrix of `draftproof verify` at twenty seeds, and honest repetitions of its statistical core.

Prints one JSON object: for each planted fault the check that must kill it and at how many seeds it did; for the honest
decoder the number of repetitions of the statistical checks and the smallest p-value over all of them, which an honest
engine keeps above alpha. Usage: python benchmarks/kill_matrix.py --seeds 20 --repetitions 1000
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from draftproof.verify import suite
from draftproof.verify.checks import law
from draftproof.verify.contract import Budget, Verdict
from draftproof.verify.mutants import HONEST, MUTANTS, WORLDS


def kills(seeds: int) -> list[dict[str, object]]:
    rows = []
    for mutant in MUTANTS:
        fallen = sum(suite.kill(mutant, Budget(), (seed,)).killed for seed in range(1, seeds + 1))
        rows.append({"name": mutant.name, "expected_check": mutant.check, "killed_at": fallen, "of": seeds})
    return rows


def honest(repetitions: int) -> dict[str, object]:
    """law/ends at the quick level, seed by seed: the whole path from samples over looks to p-values."""
    world = WORLDS["tabular"]()
    engine = next(v for v in HONEST if v.name == "honest").make(world)
    budget = Budget(level="quick", tv=0.1)
    results = [law.LawEnds().run(engine, world, replace(budget, seed=s), 1e-6) for s in range(1, repetitions + 1)]
    failures = sum(r.verdict is Verdict.FAILS for r in results)
    return {"repetitions": repetitions, "failures": failures, "smallest_p": min(r.p_value for r in results)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=1000)
    args = parser.parse_args()
    print(json.dumps({"honest": honest(args.repetitions), "mutants": kills(args.seeds)}, indent=1))


if __name__ == "__main__":
    main()
