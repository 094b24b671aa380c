"""The order of measuring is the recorded one, warm-up is no result, and seeds do not depend on the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.fake import FakeRunner, a_plan, sources

from draftproof.bench.figures import figures
from draftproof.bench.measure import Asked, Progress, measure
from draftproof.bench.plan import PLAIN, Config, Plan, Wish
from draftproof.bench.results import RunRecord, create, read

WISH = Wish((2, "auto"), batches=(1, 3), short=9, long=17, temperature=0.7, top_p=0.9, top_k=40)


class Cold(FakeRunner):
    """The first time that a configuration meets a batch size takes a thousand times as long."""

    def run(self, group: int, config: Config, asked: Sequence[Asked]) -> RunRecord:
        key = (config.name, len(asked))
        cold = all((name, len(a)) != key for (_, name), a in zip(self.calls, self.asked, strict=True))
        self.slow = lambda _: 1000.0 if cold else 1.0
        return super().run(group, config, asked)


def run(path: Path, plan: Plan, runner: FakeRunner) -> list[Progress]:
    said: list[Progress] = []
    with create(path, plan) as file:
        measure(plan, sources(plan), runner, file, said.append)
    return said


def test_runs_follow_the_recorded_order(tmp_path: Path) -> None:
    plan, runner = a_plan(Wish((2, 4), short=9, long=17)), FakeRunner()
    run(tmp_path / "r.jsonl", plan, runner)
    stored = read(tmp_path / "r.jsonl").plan
    assert runner.calls[3:] == [(n, name) for n, g in enumerate(stored.groups) for name in g.order]
    assert runner.calls[3:] != sorted(runner.calls[3:])


def test_warm_up_is_not_counted(tmp_path: Path) -> None:
    plan = a_plan(Wish((2, 4), batches=(1, 3), short=9, long=17))
    runner = Cold()
    run(tmp_path / "r.jsonl", plan, runner)
    assert len(runner.calls) == 6 + len(plan.runs)
    assert all(a.params.max_tokens == 12 for asked in runner.asked[:6] for a in asked)
    cold, warm = (figures(r) for r in (read(tmp_path / "r.jsonl"), read(_warm(tmp_path, plan))))
    assert cold.speedups == warm.speedups
    assert cold.latencies == warm.latencies


def _warm(tmp_path: Path, plan: Plan) -> Path:
    run(tmp_path / "warm.jsonl", plan, FakeRunner())
    return tmp_path / "warm.jsonl"


def test_only_the_draft_length_differs_between_the_runs_of_a_group(tmp_path: Path) -> None:
    plan = a_plan(Wish((2, 4), batches=(1, 3), short=9, long=17, temperature=0.7, top_p=0.9, top_k=40))
    runner = FakeRunner()
    run(tmp_path / "r.jsonl", plan, runner)
    by_group: dict[int, list[Sequence[Asked]]] = {}
    for (group, _), asked in zip(runner.calls[6:], runner.asked[6:], strict=True):
        by_group.setdefault(group, []).append(asked)
    for asked in by_group.values():
        told = [[(a.prompt, a.tokens, a.params.seed, a.params.max_tokens) for a in run] for run in asked]
        assert told[0] == told[1] == told[2]
        assert sorted(run[0].params.k for run in asked) == [0, 2, 4]  # type: ignore[type-var]
    assert {(a.params.temperature, a.params.top_p, a.params.top_k) for r in runner.asked for a in r} == {(0.7, 0.9, 40)}
    seeds = [a.params.seed for asked in by_group.values() for a in asked[0]]
    assert len(set(seeds)) == len(seeds)


def test_auto_is_passed_through() -> None:
    from draftproof.bench.measure import requests

    plan = a_plan(WISH)
    asked = requests(plan, sources(plan), plan.groups[0], plan.config("k=auto"))
    assert {a.params.k for a in asked} == {"auto"}
    assert {a.params.seed for a in asked} == {None}  # a seeded request would not learn from the others
    assert {a.params.k for a in requests(plan, sources(plan), plan.groups[0], plan.config(PLAIN))} == {0}


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    said = run(tmp_path / "r.jsonl", a_plan(), FakeRunner())
    assert said[0].done == 0
    assert said[-1].done == said[-1].total > 0
    assert [at.done for at in said] == sorted(at.done for at in said)
