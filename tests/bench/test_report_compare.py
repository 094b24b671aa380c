"""Two made-up result files: what changed is found, what did not is not, and what cannot be compared is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.fake import PARTS, PROMPTS, FakeRunner, a_plan, result_of
from bench.test_report import announced, captured

from draftproof.bench.figures import OVERALL, Verdict
from draftproof.bench.plan import Plan, Weights, Wish
from draftproof.bench.report import terminal
from draftproof.bench.report.compare import Change, Comparison, compare, comparison_json
from draftproof.bench.results import Result
from draftproof.types import RequestError

WISH = Wish((2, 4), batches=(1, 2), short=9, long=17)


def uneven(prompt: str) -> float:
    """Every prompt has its own pace."""
    return 1.0 + 0.37 * [p.id for p in PROMPTS].index(prompt)


def measured(plan: Plan | None = None, pace: float = 1.0, **of_config: float) -> Result:
    """Steps take `pace` times PARTS, or as many times as `of_config` says."""
    plan = plan or a_plan(WISH)
    paces = {c.name: of_config.get(c.name.replace("=", ""), pace) for c in plan.configs}
    parts = {name: {part: p * s for part, s in PARTS.items()} for name, p in paces.items()}
    return result_of(plan, FakeRunner(parts=parts, slow=uneven))


def change(told: Comparison, config: str, batch: int = 1, kind: str = OVERALL) -> Change:
    return next(c for c in told.changes if (c.config, c.batch, c.kind) == (config, batch, kind))


def shown(told: Comparison, width: int = 120) -> str:
    return captured(lambda console: terminal.show_changes(told, console), width)


def test_a_file_beside_itself_did_not_change() -> None:
    told = compare(measured(), measured())
    assert {(c.ratio, c.low, c.high) for c in told.changes} == {(1.0, 1.0, 1.0)}
    assert {c.verdict for c in told.changes if c.kind == OVERALL} == {Verdict.SAME}
    assert told.differences == ()
    assert told.notes == ()
    kinds = {OVERALL, "chat", "code"}
    assert {(c.config, c.batch) for c in told.changes} == {(n, b) for n in ("plain", "k=2", "k=4") for b in (1, 2)}
    assert all({c.kind for c in told.changes if (c.config, c.batch) == ("k=2", b)} == kinds for b in (1, 2))


def test_only_what_became_faster_is_said_to() -> None:
    told = compare(measured(), measured(k2=0.5))
    assert change(told, "k=2").ratio == pytest.approx(2.0)
    assert change(told, "k=2").verdict is Verdict.FASTER
    assert change(told, "k=4").verdict is Verdict.SAME
    assert change(told, "plain").verdict is Verdict.SAME
    assert change(compare(measured(k2=0.5), measured()), "k=2").verdict is Verdict.SLOWER


def test_speed_ups_of_both_files_stand_side_by_side() -> None:
    told = compare(measured(), measured(k2=0.5))
    (pair,) = [(a, b) for a, b in told.speedups if (a.config, a.batch) == ("k=2", 1)]
    assert pair[1].ratio == pytest.approx(2 * pair[0].ratio)


def test_prompts_are_paired_by_what_they_are_and_not_by_their_place() -> None:
    turned = a_plan(WISH, PROMPTS[::-1])
    told = compare(measured(), measured(turned))
    alone = [c for c in told.changes if c.batch == 1]  # in larger batches a prompt has other company
    assert all((c.low, c.high) == pytest.approx((1.0, 1.0)) for c in alone)


def test_a_planted_wrong_pairing_is_seen() -> None:
    plan = a_plan(WISH)
    named = [
        replace(p, id=q.id, sha256=q.sha256)
        for p, q in zip(plan.prompts, plan.prompts[2:] + plan.prompts[:2], strict=True)
    ]
    wrong = replace(measured(), plan=replace(plan, prompts=tuple(named)))
    renamed = {p.id: q.id for p, q in zip(plan.prompts, named, strict=True)}
    runs = [replace(r, requests=tuple(replace(q, prompt=renamed[q.prompt]) for q in r.requests)) for r in wrong.runs]
    told = compare(measured(), replace(wrong, runs=tuple(runs)))
    assert change(told, "plain").high - change(told, "plain").low > 0.1


def test_only_prompts_of_the_same_text_and_length_count() -> None:
    plan = a_plan(WISH)
    prompts = [replace(p, sha256="0" * 64) if p.id == "code-1" else p for p in plan.prompts]
    told = compare(measured(), measured(replace(plan, prompts=tuple(prompts))))
    assert change(told, "k=2").pairs == len(plan.prompts) - 1
    assert [(d.a, d.b) for d in told.differences] == [("1", "1")]
    longer = compare(measured(), measured(a_plan(replace(WISH, long=21))))
    assert change(longer, "k=2").pairs == sum(p.length == "short" for p in plan.prompts)


def test_groups_are_the_observations_where_they_are_the_same() -> None:
    same = compare(measured(), measured(pace=0.9))
    assert change(same, "k=2", 2).units == change(same, "k=2", 2).pairs / 2
    assert same.notes == ()
    dealt = compare(measured(), measured(a_plan(replace(WISH, seed=2)), pace=0.9))
    assert change(dealt, "k=2", 2).units == change(dealt, "k=2", 2).pairs
    assert [note[:7] for note in dealt.notes] == ["batch 2"]


def test_what_differs_is_listed_with_both_values() -> None:
    other = a_plan(
        replace(WISH, temperature=1.0),
        draftproof="0.2.0",
        environment={"cpu": "none", "cores": 2, "load": [3, 3, 3], "versions": {"numpy": "2.9"}},
        target=Weights("toy", "cd", {"precision": "bf16"}),
    )
    told = compare(measured(), measured(other))
    assert {(d.name, d.a, d.b) for d in told.differences} == {
        ("draftproof", "0.1.0", "0.2.0"),
        ("temperature", "0.0", "1.0"),
        ("environment versions numpy", "", "2.9"),
        ("target fingerprint", "ab", "cd"),
        ("target settings precision", "f32", "bf16"),
    }
    assert any("target's weights" in note for note in told.notes)
    text = shown(told)
    for said in ("temperature: 0.0 → 1.0", "target fingerprint: ab → cd", "numpy: nothing → 2.9"):
        assert said in text


def test_configurations_of_one_file_alone_are_listed() -> None:
    told = compare(measured(), measured(a_plan(replace(WISH, ks=(2, 3)))))
    assert {(d.name, d.a, d.b) for d in told.differences} == {
        ("config k=4", "k 4, rule block", ""),
        ("config k=3", "", "k 3, rule block"),
    }
    assert {c.config for c in told.changes} == {"plain", "k=2"}


def test_a_truncated_file_decides_nothing_and_says_so() -> None:
    whole = measured()
    cut = replace(whole, runs=whole.runs[:-4], ended=False)
    told = compare(whole, cut)
    assert {c.verdict for c in told.changes} == {Verdict.UNFINISHED}
    assert announced(shown(told), "! B: the run is not complete", "times as fast")
    silent = replace(told, notes=())
    assert not announced(shown(silent), "! B: the run is not complete", "times as fast")


def other_prompts(plan: Plan) -> Plan:
    return replace(plan, prompts=tuple(replace(p, sha256="1" * 64) for p in plan.prompts))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: measured(other_prompts(a_plan(WISH))), "no prompt has the same text"),
        (lambda: measured(a_plan(replace(WISH, batches=(3,)))), "no batch size"),
        (lambda: replace(measured(), runs=(), ended=False), "--resume"),
    ],
)
def test_nothing_comparable_is_refused(make: Callable[[], Result], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        compare(measured(), make())


def test_the_json_has_everything_and_no_infinity() -> None:
    one = a_plan(Wish((2,), short=9, long=17), PROMPTS[:1])
    single = replace(one, groups=one.groups[:1])
    told = compare(measured(single), measured(single, pace=0.5))
    assert math.isinf(change(told, "k=2").high)
    record = json.loads(json.dumps(comparison_json(told), allow_nan=False))
    assert record["changes"][0]["high"] is None
    assert record["changes"][0]["verdict"] == "too few to say"
    assert record["changes"][0]["ratio"] == pytest.approx(2.0)
    assert set(record) == {"changes", "speedups", "differences", "notes"}


def test_the_terminal_shows_every_change() -> None:
    text = shown(compare(measured(), measured(k2=0.5)))
    for said in ("k=2, batch 1", "k=4, batch 2", "2.00 (2.00–2.00)", "1.00 (1.00–1.00)", "faster", "no difference"):
        assert said in text
    assert "nothing that the files tell" in text
