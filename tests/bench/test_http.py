"""A bench over HTTP against servers whose tokens are made up, by a clock that counts how often it is read."""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.fake import a_plan, changed_run
from bench.fake_server import Fake, serving
from rich.console import Console

from draftproof.bench.answers import Counted, Reader
from draftproof.bench.figures import Figures, figures
from draftproof.bench.groups import Load, Way
from draftproof.bench.http import HttpRunner, Pair
from draftproof.bench.measure import Source, measure
from draftproof.bench.plan import PLAIN, Plan, Wish
from draftproof.bench.report import html, terminal
from draftproof.bench.results import Result, create, read
from draftproof.bench.server import Probe, Server, address
from draftproof.bench.summary import summary
from draftproof.types import RequestError

WISH = Wish((3,), short=9, long=17, load=Load(Way.CLOSED))
TWO_AT_A_TIME = Wish((3,), short=9, long=17, batches=(2,), load=Load(Way.CLOSED))


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A runner collects garbage before each run, which takes long where so much is loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A new file each time."""
    return (tmp_path / f"{n}.jsonl" for n in itertools.count())  # type: ignore[return-value]


def counting() -> Callable[[], float]:
    steps = itertools.count()
    return lambda: float(next(steps))


def server_of(fake: Fake) -> Server:
    with Probe(fake.url, 10.0) as probe:
        return probe.server()


def bench(path: Path, plan: Plan, server: Fake, plain: Fake | None = None, pair: Pair | None = None) -> Result:
    pair = pair or Pair(server_of(server), server_of(plain or server), tells=plain is None, ids=True)
    sources = [Source(p.id, tuple(map(ord, p.id))) for p in plan.prompts]
    with create(path, plan) as file, HttpRunner(plan, pair, 10.0, counting()) as runner:
        measure(plan, sources, runner, file)
    return read(path)


def ratio(result: Result) -> float:
    return next(s for s in figures(result).speedups if s.kind == "overall" and s.length == "all").ratio


def test_a_request_is_told_its_draft_length(out) -> None:  # type: ignore[no-untyped-def]
    """A chunk a tick, and four tokens a chunk with k=3: exactly four times as fast."""
    plan = a_plan(Wish((3, "auto"), short=9, long=17, temperature=0.5, top_k=7, load=Load(Way.CLOSED)))
    with serving(Fake()) as fake:
        result = bench(next(out), plan, fake)
    assert {s.ratio for s in figures(result).speedups} == {4.0}
    assert {q.chunks[1:][0][1] for r in result.runs if r.config == "k=3" for q in r.requests} == {4}
    body = fake.streamed[-1]
    asked = [b["speculative"]["num_speculative_tokens"] for b in fake.streamed[3:]]  # three warm up
    assert asked == [0 if name == PLAIN else plan.config(name).k for _, name in plan.runs]
    assert (body["temperature"], body["top_k"], body["top_p"], body["model"]) == (0.5, 7, 1.0, "toy")
    assert body["prompt"] == [ord(c) for c in result.runs[-1].requests[0].prompt]
    assert all(("seed" in b) == (b["speculative"]["num_speculative_tokens"] != "auto") for b in fake.streamed)
    assert fake.resets >= len(fake.streamed)


def test_two_servers_are_paired(out) -> None:  # type: ignore[no-untyped-def]
    plan = a_plan(WISH)
    with serving(Fake(k=3, heeds=False)) as fake, serving(Fake(heeds=False, model="other")) as plain:
        result = bench(next(out), plan, fake, plain)
        assert ratio(result) == 4.0
        counts = len(fake.streamed), len(plain.streamed)
        assert counts == (1 + len(plan.groups), 1 + len(plan.groups))
        assert {b["model"] for b in plain.streamed} == {"other"}
        assert not any("speculative" in b for b in fake.streamed + plain.streamed)


def test_the_wrong_server_is_seen(out) -> None:  # type: ignore[no-untyped-def]
    """Planted: the URLs are exchanged. Servers that tell of their drafts give it away, the ratio shows it else."""
    plan = a_plan(WISH)
    with serving(Fake(k=3, heeds=False)) as fake, serving(Fake(heeds=False)) as plain:
        with pytest.raises(RequestError, match="drafted tokens while it was to decode plainly"):
            bench(next(out), plan, plain, fake)
        fake.metrics, fake.counts = False, True
        with pytest.raises(RequestError, match="drafted tokens"):
            bench(next(out), plan, plain, fake)
        fake.counts = False
        assert ratio(bench(next(out), plan, plain, fake)) == 0.25
        both = Pair(server_of(fake), server_of(fake), tells=False, ids=True)
        assert ratio(bench(next(out), plan, fake, fake, both)) == 1.0  # planted: plain runs on the same server


def test_chunks_counted_as_one_token_are_seen(out, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Planted: the client counts chunks."""
    one = lambda self: (Counted.SHARED, [(p.at, 1) for p in self._pieces])  # noqa: E731
    plan = a_plan(WISH)
    with serving(Fake()) as fake:
        monkeypatch.setattr(Reader, "_chunks", one)
        assert ratio(bench(next(out), plan, fake)) == 1.0
        monkeypatch.undo()
        assert ratio(bench(next(out), plan, fake)) == 4.0


@pytest.mark.parametrize(
    ("fake", "counted"),
    [
        (Fake(), Counted.IDS),
        (Fake(ids=False, usage="each"), Counted.USAGE),
        (Fake(ids=False), Counted.SHARED),
        (Fake(usage=""), Counted.IDS),
        (Fake(text="\u2028"), Counted.IDS),
    ],
)
def test_every_way_of_counting_gives_the_same_speedup(out, fake: Fake, counted: Counted) -> None:  # type: ignore[no-untyped-def]
    plan = a_plan(WISH)
    with serving(fake):
        result = bench(next(out), plan, fake)
        pair = Pair(server_of(fake), server_of(fake), tells=True, ids=True)
        with Probe(fake.url, 10.0) as probe:
            assert probe.streams({**fake.streamed[-1], "max_tokens": 8}).counted == counted
    assert pair.tells
    assert ratio(result) == 4.0
    assert all(q.tokens == p.max_tokens for r in result.runs for q in r.requests for p in [_planned(plan, q.prompt)])


def _planned(plan: Plan, name: str) -> Any:
    return next(p for p in plan.prompts if p.id == name)


def test_usage_that_is_not_told_is_refused(out) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(ids=False, usage="")) as fake, pytest.raises(RequestError, match="cannot be counted"):
        bench(next(out), a_plan(WISH), fake)


def test_acceptance_by_request(out) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake()) as fake:
        found = figures(bench(next(out), a_plan(WISH), fake))
    rows = {(a.config, a.kind): a for a in found.acceptance}
    assert set(rows) == {("k=3", kind) for kind in ("overall", "chat", "code")}
    overall = rows["k=3", "overall"]
    assert overall.alpha == 1.0
    assert overall.alpha_cond == (1.0, 1.0, 1.0)
    assert overall.tokens_per_step == (9 + 17) / (3 + 5)


def test_acceptance_that_is_told_of_some_requests_alone_is_left_out(out) -> None:  # type: ignore[no-untyped-def]
    """Planted: answers with drafts of several lengths, without a histogram of each, would be missing from alpha."""
    plan = a_plan(WISH)
    with serving(Fake()) as fake:
        result = bench(next(out), plan, fake)
    at = next(i for i, r in enumerate(result.runs) if r.config == "k=3")
    request = replace(result.runs[at].requests[0], accepted=1, accepted_at=(), reached_at=())
    some = figures(changed_run(result, at, requests=(request,))).acceptance
    kind = request.prompt.partition("-")[0]
    assert {a.kind for a in figures(result).acceptance} - {a.kind for a in some} == {"overall", kind}


def test_acceptance_by_counters(out) -> None:  # type: ignore[no-untyped-def]
    """Of all requests of a run together; runs before are not counted again."""
    plan = a_plan(TWO_AT_A_TIME)
    with serving(Fake(metrics=False, counts=True)) as fake:
        found = bench(next(out), plan, fake)
    (row,) = figures(found).acceptance
    steps = sum({9: 3, 17: 5}[q.tokens] for r in found.runs if r.config == "k=3" for q in r.requests)
    drafted = [r.drafted for r in found.runs if r.config == "k=3"]
    assert sum(d.drafts for d in drafted) == steps - sum(len(r.requests) for r in found.runs if r.config == "k=3")
    assert (row.config, row.kind, row.alpha) == ("k=3", "overall", 1.0)
    assert row.tokens_per_step == sum(q.tokens for r in found.runs if r.config == "k=3" for q in r.requests) / steps
    assert {r.drafted.proposed for r in found.runs if r.config == PLAIN} == {0}


def test_what_a_server_does_not_tell_is_left_out(out) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake(metrics=False)) as fake:
        result = bench(next(out), a_plan(TWO_AT_A_TIME), fake)
    found = figures(result)
    assert found.complete
    assert found.speedups
    assert found.latencies
    assert (found.parts, found.acceptance, found.staircase, found.predictions) == ((), (), (), ())
    told = summary(found)
    assert told["load"] == {"way": "closed loop", "batches": {"2": "2 at a time"}}
    assert told["seconds"] == told["acceptance"] == told["predicted"] == {}
    page, shown = html.page(found, result), _shown(found)
    for text in (page, shown):
        assert "2 at a time" in text
        assert "atch 2" not in text
    assert "Where a step goes" not in page
    assert "a step by part" not in shown
    assert " 0\n" not in shown  # memory that is not known is not nothing


def _shown(found: Figures) -> str:
    console = Console(file=io.StringIO(), width=200)
    terminal.show(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_late_client_is_told_and_a_busy_server_is_not(out) -> None:  # type: ignore[no-untyped-def]
    with serving(Fake()) as fake:
        result = bench(next(out), a_plan(TWO_AT_A_TIME), fake)
    requests = result.runs[0].requests
    on_time = tuple(replace(q, late=0.01) for q in requests)
    runs = tuple(replace(r, requests=tuple(replace(q, late=0.0) for q in r.requests), load1=99.0) for r in result.runs)
    quiet = replace(result, runs=(replace(runs[0], requests=on_time), *runs[1:]))
    assert figures(quiet).notes == ()
    late = (replace(on_time[0], late=0.25), *on_time[1:])
    (note,) = figures(changed_run(quiet, 0, requests=late)).notes
    assert "0.25 s behind its time" in note


def test_a_closed_loop_keeps_requests_apart(out) -> None:  # type: ignore[no-untyped-def]
    plan = a_plan(TWO_AT_A_TIME)
    with serving(Fake()) as fake:
        result = bench(next(out), plan, fake)
    for run in result.runs:
        group = plan.groups[run.group]
        assert len(group.prompts) == 8
        assert [q.prompt for q in run.requests] == [plan.prompts[i].id for i in group.prompts]
        for request in run.requests:
            times = [t for t, _ in request.chunks]
            assert times == sorted(set(times))
            assert 0 < request.ttft <= times[-1] < request.end
        assert len({q.due for q in run.requests}) == 8


def test_an_open_loop_follows_the_plan(out) -> None:  # type: ignore[no-untyped-def]
    plan = a_plan(Wish((3,), short=9, long=17, load=Load(Way.OPEN, (2000.0,))))
    with serving(Fake()) as fake:
        pair = Pair(server_of(fake), server_of(fake), tells=True, ids=True)
        sources = [Source(p.id, (1, 2)) for p in plan.prompts]
        path = next(out)
        with create(path, plan) as file, HttpRunner(plan, pair, 10.0) as runner:
            measure(plan, sources, runner, file)
    for run in read(path).runs:
        assert _as_planned(plan, run.group, [q.due for q in run.requests])
        assert not _as_planned(plan, run.group, [q.due + 1e-3 * n for n, q in enumerate(run.requests)])  # planted
        assert all(q.late >= 0 for q in run.requests)


def _as_planned(plan: Plan, group: int, due: list[float]) -> bool:
    """All are moved by the same, which is what it takes to begin."""
    moved = [d - a for d, a in zip(due, plan.groups[group].arrivals, strict=True)]
    return max(moved) - min(moved) < 1e-9


@pytest.mark.parametrize(
    ("url", "remote", "said"),
    [
        ("http://127.0.0.1:8000/v1/", False, "http://127.0.0.1:8000"),
        ("http://localhost:8000/", False, "http://localhost:8000"),
        ("http://[::1]:8000/prefix", False, "http://[::1]:8000/prefix"),
        ("http://192.0.2.1:8000", True, "http://192.0.2.1:8000"),
    ],
)
def test_addresses(url: str, remote: bool, said: str) -> None:
    assert address(url, "--server", remote) == said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://192.0.2.1:8000", "--allow-remote"),
        ("http://127.0.0.1.example.org", "--allow-remote"),
        ("http://0.0.0.0:8000", "--allow-remote"),
        ("http://example.org", "may be taken for an attack"),
        ("127.0.0.1:8000", "give a URL"),
        ("ftp://127.0.0.1", "give a URL"),
        ("http://me:secret@127.0.0.1", "without name or password"),
    ],
)
def test_addresses_that_are_refused(url: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        address(url, "--server", False)
