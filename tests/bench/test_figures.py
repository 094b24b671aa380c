"""Figures from made-up seconds: exact where they can be, and never more than the file allows to say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.fake import PARTS, FakeRunner, a_plan, changed_run, result_of

from draftproof.bench.figures import ALL, OVERALL, PLAIN, Figures, Speedup, Verdict, figures, times
from draftproof.bench.plan import LEAST_GROUPS, Config, Wish
from draftproof.bench.results import RequestRecord, Result
from draftproof.bench.speedups import Why, pairs, speedups, verdict
from draftproof.bench.stats import Ratio, paired_ratio, spread
from draftproof.bench.summary import summary

WISH = Wish((2, 4), batches=(1, 4), short=9, long=17)


def slower(factor: float) -> dict[str, float]:
    return {name: factor * seconds for name, seconds in PARTS.items()}


def uneven(prompt: str) -> float:
    """Prompts differ a hundredfold; what the configurations gain on them does not."""
    return 10.0 ** (int(prompt.rpartition("-")[2]) / 4)


def row(found: Figures, config: str, batch: int = 1, kind: str = OVERALL, length: str = ALL) -> Speedup:
    return next(s for s in found.speedups if (s.config, s.batch, s.kind, s.length) == (config, batch, kind, length))


def steady(**fields: object) -> FakeRunner:
    """k=2 gains nothing a step for what it costs, k=4 emits two tokens a step at 1.25 times the seconds."""
    parts = {"k=2": slower(2.0), "k=4": slower(1.25)}
    return FakeRunner(parts=parts, slow=uneven, **fields)  # type: ignore[arg-type]


def test_a_speedup_is_the_paired_ratio_of_seconds_a_token() -> None:
    found = figures(result_of(a_plan(WISH), steady()))
    assert row(found, "k=4").ratio == pytest.approx(1.6)
    assert row(found, "k=2").ratio == pytest.approx(1.0)
    assert row(found, "k=4").verdict is Verdict.FASTER
    assert row(found, "k=4").pairs == row(found, "k=4").groups == 16


def test_pairs_stay_together() -> None:
    """Planted: the same records, paired with those of other groups. The interval must tell."""
    plan = a_plan(WISH)
    honest = result_of(plan, steady())
    good = row(figures(honest), "k=4")
    assert good.high - good.low < 1e-9
    ones = [i for i, r in enumerate(honest.runs) if r.config == "k=4" and plan.groups[r.group].batch == 1]
    runs = list(honest.runs)
    for a, b in zip(ones, [*ones[1:], ones[0]], strict=True):
        runs[a] = replace(runs[a], requests=honest.runs[b].requests)
    bad = row(figures(replace(honest, runs=tuple(runs))), "k=4")
    assert bad.high - bad.low > 0.5


def test_groups_are_the_observations() -> None:
    """Four prompts that ran side by side are one observation of the machine: 16 of them, not 64."""
    found = figures(result_of(a_plan(WISH), steady()))
    assert row(found, "k=4", 4).groups == 8  # two deals of four groups
    assert row(found, "k=4", 4).pairs == 32


def test_prompts_of_a_group_do_not_pass_for_independent_ones() -> None:
    """The machine's mood meets a group as a whole: half of them slow under k=4. Prompts one by one would look surer."""
    plan = a_plan(Wish((4,), batches=(4,), short=9, long=17))
    whole = result_of(plan)
    runs = [
        replace(r, requests=tuple(map(twice, r.requests))) if r.config == "k=4" and r.group % 2 else r
        for r in whole.runs
    ]
    told = row(figures(replace(whole, runs=tuple(runs))), "k=4", 4)
    found = pairs(replace(whole, runs=tuple(runs)), "k=4", 4)
    alone = paired_ratio([p.plain for p in found], [p.other for p in found])
    assert told.ratio == pytest.approx(alone.ratio)
    assert told.high - told.low > 1.5 * (alone.high - alone.low)


def twice(request: RequestRecord) -> RequestRecord:
    return replace(request, chunks=tuple((2 * t, n) for t, n in request.chunks), end=2 * request.end)


def test_every_configuration_kind_and_length_is_reported() -> None:
    plan = a_plan(WISH)
    found = figures(result_of(plan, steady()))
    wanted = {
        (c, b, kind, length)
        for c in ("k=2", "k=4")
        for b in (1, 4)
        for kind in (OVERALL, "chat", "code")
        for length in (ALL, "short", "long")
    }
    assert {(s.config, s.batch, s.kind, s.length) for s in found.speedups} == wanted
    assert {(s.config, s.batch, s.kind, s.length) for s in found.end_to_end} == wanted
    cells = {(c.name, b) for c in plan.configs for b in (1, 4)}
    for rows in (found.latencies, found.flows, found.parts, found.predictions):
        assert {(r.config, r.batch) for r in rows} == cells


def test_a_configuration_that_was_left_out_makes_the_result_incomplete() -> None:
    """Planted: an end line, and the worst configuration dropped from the file."""
    whole = result_of(a_plan(WISH), steady())
    found = figures(replace(whole, runs=tuple(r for r in whole.runs if r.config != "k=2")))
    assert not found.complete
    assert {s.verdict for s in (*found.speedups, *found.end_to_end)} == {Verdict.UNFINISHED}
    assert "not complete: 48 of 72" in found.notes[0]


@pytest.mark.parametrize("cut", [lambda r: replace(r, ended=False), lambda r: replace(r, runs=r.runs[:-1])])
def test_a_truncated_run_decides_nothing_and_says_so(cut: Callable[[Result], Result]) -> None:
    found = figures(cut(result_of(a_plan(WISH), steady())))
    assert not found.complete
    assert "not complete" in found.notes[0]
    assert {s.verdict for s in (*found.speedups, *found.end_to_end)} == {Verdict.UNFINISHED}
    told = summary(found)
    assert told["complete"] is False
    assert "not complete" in told["notes"][0]
    assert told["speedup"]["overall"]["k=4"]["verdict"] == Verdict.UNFINISHED.value
    assert figures(result_of(a_plan(WISH), steady())).notes == ()


def test_an_empty_result_has_no_figure() -> None:
    found = figures(Result(a_plan(WISH), ()))
    assert "0 of 72" in found.notes[0]
    assert found.speedups == found.latencies == found.flows == found.parts == found.predictions == ()
    assert json.dumps(summary(found), default=str, allow_nan=False)


@pytest.mark.parametrize(
    ("ratio", "groups", "complete", "wanted"),
    [
        (Ratio(1.1, 1.01, 1.2), LEAST_GROUPS, True, Verdict.FASTER),
        (Ratio(0.9, 0.8, 0.99), LEAST_GROUPS, True, Verdict.SLOWER),
        (Ratio(1.1, 0.99, 1.2), LEAST_GROUPS, True, Verdict.SAME),
        (Ratio(1.1, 1.0, 1.2), LEAST_GROUPS, True, Verdict.SAME),
        (Ratio(0.9, 0.8, 1.0), LEAST_GROUPS, True, Verdict.SAME),
        (Ratio(2.0, 1.9, 2.1), LEAST_GROUPS - 1, True, Verdict.FEW),
        (Ratio(2.0, 1.9, 2.1), 60, False, Verdict.UNFINISHED),
    ],
)
def test_the_decision_rule(ratio: Ratio, groups: int, complete: bool, wanted: Verdict) -> None:
    assert verdict(ratio, groups, complete) is wanted


def test_the_reading_of_the_prompt_counts_from_end_to_end_only() -> None:
    """Planted: a configuration whose first chunk comes late."""
    plan = a_plan(Wish((2,), short=9, long=17))
    honest = result_of(plan)
    runs = [r if r.config == PLAIN else replace(r, requests=tuple(map(late, r.requests))) for r in honest.runs]
    spoilt = replace(honest, runs=tuple(runs))
    pair = [next(iter(speedups(r, why))).ratio for why in Why for r in (honest, spoilt)]
    assert pair[0] == pytest.approx(pair[1])
    assert pair[3] < 0.6 * pair[2]


def late(request: RequestRecord) -> RequestRecord:
    chunks = tuple((t + 1.0, n) for t, n in request.chunks)
    return replace(request, chunks=chunks, ttft=request.ttft + 1.0, end=request.end + 1.0)


@pytest.mark.parametrize("part", PARTS)
def test_seconds_that_are_added_to_a_part_show_in_its_own_bar(part: str) -> None:
    plan = a_plan(WISH)
    more = {**slower(1.25), part: slower(1.25)[part] + 0.02}
    before, after = (figures(result_of(plan, FakeRunner(parts={"k=4": parts}))) for parts in (slower(1.25), more))
    for old, new in zip(before.parts, after.parts, strict=True):
        grown = {p for p in PARTS if new.decode[p] > old.decode[p] + 1e-12}
        assert grown == ({part} if new.config == "k=4" else set())
        if new.config == "k=4":
            assert new.decode[part] - old.decode[part] == pytest.approx(0.02)
    assert row(before, "k=4").verdict is Verdict.FASTER
    assert row(after, "k=4").verdict is Verdict.SLOWER


def test_parts_that_do_not_add_up_are_told() -> None:
    step = sum(PARTS.values())
    for unseen, sound in ((0.01 * step, True), (0.05 * step, False)):
        found = figures(result_of(a_plan(WISH), FakeRunner(unseen=unseen)))
        assert {p.sound for p in found.parts} == {sound}
        assert any("the parts account for" in note for note in found.notes) != sound


def test_seconds_that_were_counted_once_a_sequence_are_told() -> None:
    """Planted: a batch of four whose step is counted four times."""
    whole = result_of(a_plan(WISH))
    at = next(i for i, r in enumerate(whole.runs) if whole.plan.groups[r.group].batch == 4)
    spoilt = changed_run(whole, at, seconds={name: 4 * s for name, s in whole.runs[at].seconds.items()})
    assert any("the parts account for" in note for note in figures(spoilt).notes)


def test_a_loaded_machine_and_a_pause_are_told() -> None:
    whole = result_of(a_plan(WISH))
    assert "load rose to 7.0" in " ".join(figures(changed_run(whole, 5, load1=7.0)).notes)
    assert "gone on with" in " ".join(figures(replace(whole, resumed=1)).notes)


def test_gaps_are_told_by_token_and_by_chunk() -> None:
    plan = a_plan(Wish((2,), short=9, long=17))
    whole = result_of(plan)
    told = RequestRecord("x", 1.0, 8.0, ((1.0, 1), (2.0, 2), (8.0, 3)), 6, "length", steps=3, first=1)
    at = next(i for i, r in enumerate(whole.runs) if r.config == PLAIN)
    only = replace(whole, runs=(replace(whole.runs[at], requests=(told,)),))
    found = times(only, PLAIN, 1)
    assert found.ttft == (1.0,)
    assert found.gap_chunk == (1.0, 6.0)
    assert found.gap_token == (0.5, 0.5, 2.0, 2.0, 2.0)
    assert found.per_token == (7.0 / 5,)
    assert found.end_to_end == (8.0,)


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([float(i) for i in range(1, 101)]) == (100, 50.0, 90.0, 99.0)
    assert spread([3.0]) == (1, 3.0, 3.0, 3.0)
    assert spread([2.0, 1.0]) == (2, 1.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no value"):
        spread([])


def test_throughput_and_memory() -> None:
    plan = a_plan(WISH)
    whole = result_of(plan)
    found = figures(changed_run(whole, 3, peak_bytes=1 << 30))
    flow = next(f for f in found.flows if (f.config, f.batch) == (PLAIN, 4))
    runs = [r for r in whole.runs if r.config == PLAIN and plan.groups[r.group].batch == 4]
    assert flow.tokens == 2 * 8 * (9 + 17)
    assert flow.tokens_per_second == pytest.approx(flow.tokens / sum(r.wall for r in runs))
    assert max(f.peak_bytes for f in found.flows) == 1 << 30


def test_acceptance_is_that_of_the_positions() -> None:
    def stands(config: Config, prompt: str) -> int:
        return 0 if not config.k else 2 if prompt.startswith("chat") else 1

    found = figures(result_of(a_plan(WISH), FakeRunner(stand=stands)))
    told = {(a.config, a.kind): a for a in found.acceptance if a.batch == 1}
    assert PLAIN not in {config for config, _ in told}
    assert told["k=4", "chat"].alpha_cond == (1.0, 1.0, 0.0)
    assert told["k=4", "chat"].alpha == pytest.approx(2 / 3)
    assert told["k=4", "code"].alpha == pytest.approx(1 / 2)
    assert told["k=2", "chat"].alpha == 1.0
    assert told["k=4", "chat"].tokens_per_step > told["k=4", "code"].tokens_per_step


def test_the_staircase_is_the_mean_over_passes() -> None:
    found = figures(result_of(a_plan(Wish((2,), short=9, long=17))))
    assert [p.rows for p in found.staircase] == [1, 3]
    assert all(p.seconds == pytest.approx(PARTS["verify"]) for p in found.staircase)


def test_an_answer_that_ends_with_its_first_chunk_is_left_out_and_told() -> None:
    plan = a_plan(Wish((2,), short=9, long=17))
    whole = result_of(plan)
    request = replace(whole.runs[0].requests[0], chunks=((0.1, 1),), tokens=1, steps=1)
    found = figures(changed_run(whole, 0, requests=(request,)))
    assert row(found, "k=2").pairs == 15
    assert "1 answers ended with their first chunk" in " ".join(found.notes)


def test_few_groups_and_one_group() -> None:
    plan = a_plan(Wish((2,), short=9, long=17))
    few = replace(plan, groups=plan.groups[: LEAST_GROUPS - 1])
    assert row(figures(result_of(few)), "k=2").verdict is Verdict.FEW
    one = figures(result_of(replace(plan, groups=plan.groups[:1])))
    assert (row(one, "k=2").low, row(one, "k=2").high) == (0.0, math.inf)
    assert summary(one)["speedup"]["overall"]["k=2"]["high"] is None


def test_the_json_has_the_promised_fields() -> None:
    told = json.loads(json.dumps(summary(figures(result_of(a_plan(WISH), steady()))), allow_nan=False))
    assert {"speedup", "configs", "seconds", "latency"} <= set(told)
    assert told["speedup"]["overall"]["k=4"]["ratio"] == pytest.approx(1.6)
    assert set(told["speedup"]["overall"]["k=4"]) >= {"ratio", "low", "high", "verdict"}
    assert set(told["speedup"]["by_kind"]) == {"chat", "code"}
    assert set(told["speedup"]["by_batch"]) == {"1", "4"}
    assert [c["name"] for c in told["configs"]] == [PLAIN, "k=2", "k=4"]
    assert set(told["seconds"]["4"]["k=4"]["seconds"]) == set(PARTS)
    assert set(told["latency"]["1"]["plain"]) == {"ttft", "per_token", "gap_token", "gap_chunk", "end_to_end"}
