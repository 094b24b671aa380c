"""The kill matrix of `draftproof verify` at twenty seeds, and honest repetitions of its statistical core.

Prints one JSON object: for each planted fault the check that must kill it and at how many seeds it did; for the honest
decoder the number of repetitions of the statistical checks and the smallest p-value over all of them, which an honest
engine keeps above alpha. A line on stderr tells each fault as it is done.
Usage: python benchmarks/kill_matrix.py --seeds 20 --repetitions 1000 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

from draftproof.verify import suite
from draftproof.verify.checks import law
from draftproof.verify.contract import Budget, Mutant, Verdict
from draftproof.verify.mutants import HONEST, MUTANTS, WORLDS

_PART = 50  # honest repetitions handed to a process at a time


def killed(mutant: Mutant, seeds: int) -> dict[str, object]:
    fallen = [s for s in range(1, seeds + 1) if suite.kill(mutant, Budget(), (s,)).killed]
    return {"name": mutant.name, "expected_check": mutant.check, "killed_at": len(fallen), "of": seeds}


def kills(pool: ProcessPoolExecutor, seeds: int) -> Iterator[dict[str, object]]:
    for done in as_completed([pool.submit(killed, mutant, seeds) for mutant in MUTANTS]):
        row = done.result()
        print("{killed_at} of {of}: {name} ({expected_check})".format_map(row), file=sys.stderr, flush=True)
        yield row


def p_values(seeds: range) -> list[tuple[float, bool]]:
    """law/ends at the quick level, seed by seed: the whole path from samples over looks to p-values."""
    world = WORLDS["tabular"]()
    engine = next(v for v in HONEST if v.name == "honest").make(world)
    budget = Budget(level="quick", tv=0.1)
    results = [law.LawEnds().run(engine, world, replace(budget, seed=s), 1e-6) for s in seeds]
    return [(r.p_value, r.verdict is Verdict.FAILS) for r in results]


def honest(pool: ProcessPoolExecutor, repetitions: int) -> dict[str, object]:
    parts = [range(s, min(s + _PART, repetitions + 1)) for s in range(1, repetitions + 1, _PART)]
    seen = [pair for part in pool.map(p_values, parts) for pair in part]
    return {"repetitions": len(seen), "failures": sum(f for _, f in seen), "smallest_p": min(p for p, _ in seen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = sorted(kills(pool, args.seeds), key=lambda row: str(row["name"]))
        survivors = [row for row in rows if row["killed_at"] != row["of"]]
        told = {"honest": honest(pool, args.repetitions), "survivors": survivors, "mutants": rows}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
