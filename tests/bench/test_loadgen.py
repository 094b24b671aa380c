"""Load in made-up time: the loop's clock jumps to whatever is due next."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import replace
from statistics import mean

import pytest
from bench.fake import a_plan

from draftproof.bench.groups import Load, Way, arrivals
from draftproof.bench.loadgen import Clock, Send, closed, planned
from draftproof.bench.plan import Wish, changed, plan_from_json, plan_json
from draftproof.types import RequestError

Drive = Callable[[Send[int], Clock], Awaitable[list[int]]]
OPEN = Wish((2,), short=9, long=17, batches=(1, 2), load=Load(Way.OPEN, (0.5, 4.0)))
CLOSED = Wish((2,), short=9, long=17, batches=(1, 3), load=Load(Way.CLOSED))


class Jumping(selectors.DefaultSelector):
    loop: Virtual

    def select(self, timeout: float | None = None):  # type: ignore[no-untyped-def]
        self.loop.now += timeout or 0.0
        return super().select(0)


class Virtual(asyncio.SelectorEventLoop):
    now = 100.0

    def __init__(self) -> None:
        selector = Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(drive: Drive, seconds: list[float]) -> tuple[list[float], list[float], list[int]]:
    """When each request was sent, when it was due, and the answers. Times are seconds since the start."""
    sent, due = dict[int, float](), dict[int, float]()

    async def main() -> list[int]:
        clock = asyncio.get_running_loop().time
        began = clock()

        async def send(place: int, at: float) -> int:
            sent[place], due[place] = clock() - began, at - began
            await asyncio.sleep(seconds[place])
            return place

        return await drive(send, clock)

    with asyncio.Runner(loop_factory=Virtual) as runner:
        answers = runner.run(main())
    return [sent[i] for i in range(len(sent))], [due[i] for i in range(len(due))], answers


def test_a_closed_loop_keeps_so_many_under_way() -> None:
    sent, due, answers = run(lambda send, clock: closed(6, 2, send, clock), [3.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    assert sent == due == pytest.approx([0.0, 0.0, 1.0, 2.0, 3.0, 3.0])
    assert answers == list(range(6))


def test_waves_are_no_closed_loop() -> None:
    """Planted: the next requests begin when all of the last ones have ended."""

    async def waves(send: Send[int], clock: Clock) -> list[int]:
        return [a for i in (0, 2, 4) for a in await asyncio.gather(*(send(i + j, clock()) for j in range(2)))]

    assert run(waves, [3.0, 1.0, 1.0, 1.0, 2.0, 1.0])[0] != pytest.approx([0.0, 0.0, 1.0, 2.0, 3.0, 3.0])


def test_an_open_loop_waits_for_nobody() -> None:
    at = (1.0, 2.0, 2.5, 9.0)
    sent, due, answers = run(lambda send, clock: planned(at, send, clock), [10.0, 1.0, 10.0, 1.0])
    assert sent == pytest.approx(at)
    assert due == pytest.approx(at)
    assert answers == [0, 1, 2, 3]


def test_waiting_arrivals_are_seen() -> None:
    """Planted: a request waits for the one before, as a client with one connection would."""

    async def queued(send: Send[int], clock: Clock) -> list[int]:
        began, answers = clock(), []
        for place, at in enumerate((1.0, 2.0)):
            await asyncio.sleep(max(began + at - clock(), 0.0))
            answers.append(await send(place, began + at))
        return answers

    sent, due, _ = run(queued, [10.0, 1.0])
    assert sent == pytest.approx([1.0, 11.0])  # so `late` is 9 seconds
    assert due == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("open_loop", [False, True])
def test_one_failure_calls_the_others_off(open_loop: bool) -> None:
    ended: list[int] = []

    async def send(place: int, due: float) -> int:
        await asyncio.sleep(1.0 if place == 1 else 50.0)
        if place == 1:
            raise RequestError("broken")
        ended.append(place)
        return place

    async def main() -> list[int]:
        clock = asyncio.get_running_loop().time
        return await (planned((0.0, 0.0, 0.0), send, clock) if open_loop else closed(3, 3, send, clock))

    with asyncio.Runner(loop_factory=Virtual) as runner, pytest.raises(RequestError, match="broken"):
        runner.run(main())
    assert ended == []


def test_the_same_seed_plans_the_same_arrivals() -> None:
    plan = a_plan(OPEN)
    assert plan_json(plan) == plan_json(a_plan(OPEN))
    other = a_plan(replace(OPEN, seed=2))
    assert {g.arrivals for g in plan.groups}.isdisjoint({g.arrivals for g in other.groups})
    assert "groups" in changed(plan, other)
    assert "load" in changed(plan, a_plan(replace(OPEN, load=Load(Way.OPEN, (0.5, 8.0)))))
    for group in plan.groups:
        assert len(group.arrivals) == len(group.prompts)
        assert list(group.arrivals) == sorted(group.arrivals)


def test_a_plan_with_a_load_is_whole_after_a_file() -> None:
    import json

    for wish in (OPEN, CLOSED):
        plan = a_plan(wish)
        assert changed(plan_from_json(json.loads(json.dumps(plan_json(plan)))), plan) == []
    assert {g.arrivals for g in a_plan(CLOSED).groups} == {()}


def test_plans_of_before_there_were_loads_are_read() -> None:
    plan = a_plan()
    told = plan_json(plan)
    del told["load"]
    told["groups"] = [{k: v for k, v in g.items() if k != "arrivals"} for g in told["groups"]]
    assert changed(plan_from_json(told), plan) == []


def gaps(times: tuple[float, ...]) -> list[float]:
    return [b - a for a, b in zip((0.0, *times), times, strict=False)]


def exponential(found: list[float], rate: float) -> bool:
    """Mean, and the share above it and above twice it, to about four standard errors of 20,000 gaps."""
    shares = [sum(g > n / rate for g in found) / len(found) for n in (1, 2)]
    return abs(mean(found) * rate - 1) < 0.03 and abs(shares[0] - 0.368) < 0.014 and abs(shares[1] - 0.135) < 0.01


def test_arrivals_are_a_poisson_process() -> None:
    assert exponential(gaps(arrivals(random.Random(1), 4.0, 20_000)), 4.0)
    assert not exponential(gaps(arrivals(random.Random(1), 4.0, 20_000)), 5.0)
    rng = random.Random(1)
    assert not exponential([rng.uniform(0.0, 0.5) for _ in range(20_000)], 4.0)  # planted: the mean alone is right


def test_sizes_of_groups() -> None:
    assert [Load(Way.CLOSED).size(batch, 60) for batch in (1, 4, 16, 60)] == [1, 16, 60, 60]
    assert [Load(Way.OPEN, (1.0,)).size(1, count) for count in (6, 60)] == [6, 32]
    with pytest.raises(RequestError, match="--concurrency 7: there are only 6"):
        Load(Way.CLOSED).size(7, 6)


def test_loads_have_names() -> None:
    assert Load().called(4) == "batch 4"
    assert Load(Way.CLOSED).called(4) == "4 at a time"
    assert Load(Way.OPEN, (0.5, 2.0)).called(2) == "2 a second"
