"""Reports of made-up results: nothing is left out, nothing is drawn for another, and what is wrong is said first."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from bench.fake import FakeRunner, a_plan, changed_run, result_of
from pages import Page, external
from rich.console import Console

from draftproof.bench.figures import ALL, OVERALL, Figures, Passes, Speedup, Verdict, figures
from draftproof.bench.plan import Plan, Wish
from draftproof.bench.report import html, plots, tables, terminal, words
from draftproof.bench.results import Result
from draftproof.bench.workloads import Prompt
from draftproof.svg import WIDTH, Axis

HOSTILE = "<script>alert(1)</script>\"'&[bold] {{ 7*7 }}"
WISH = Wish((2, 4), batches=(1, 2), short=9, long=17)


def code_gains(config: object, prompt: str) -> int:
    return int(prompt.startswith("code") and getattr(config, "k") > 0)  # noqa: B009


def a_result(plan: Plan | None = None) -> Result:
    """Code is twice as fast under every configuration, chat as fast as before; prompts differ in length."""
    return result_of(plan or a_plan(WISH), FakeRunner(stand=code_gains, slow=lambda prompt: 1 + len(prompt) % 3))


def cut(result: Result) -> Result:
    return replace(result, runs=result.runs[:-4], ended=False)


def printed(told: Figures, width: int = 110) -> str:
    return captured(lambda console: terminal.show(told, console), width)


def captured(show: Callable[[Console], None], width: int = 110) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        show(console)
        return console.export_text()


def page(result: Result) -> str:
    return html.page(figures(result), result)


# nothing is left out


def left_out(table: tables.Table, plan: Plan) -> list[str]:
    wanted = {c.name for c in plan.speculative}
    return sorted(wanted - {*table.heads, *(row[0].text for row in table.rows)})


SUBJECTS = (
    tables.speedup,
    tables.latency,
    tables.parts,
    tables.acceptance,
    tables.acceptance_by_kind,
    tables.predicted,
)


@pytest.mark.parametrize("make", SUBJECTS)
def test_every_table_has_every_configuration_of_every_batch_size(make: Callable[[Figures, int], tables.Table]) -> None:
    told = figures(a_result())
    for batch in told.plan.batches:
        assert left_out(make(told, batch), told.plan) == []


def test_a_planted_omission_is_found() -> None:
    told = figures(a_result())
    assert left_out(tables.columns(tables.speedup(told, 1), [1]), told.plan) == ["k=4"]


def test_a_configuration_that_did_not_run_is_still_a_column() -> None:
    whole = a_result()
    some = replace(whole, runs=tuple(r for r in whole.runs if r.config != "k=4"), ended=False)
    table = tables.speedup(figures(some), 1)
    assert left_out(table, whole.plan) == []
    assert {row[2].small or row[2].text for row in table.rows} == {"not measured"}


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_narrow_terminal_loses_no_column(width: int) -> None:
    plan = a_plan(Wish((1, 2, 3, 4, 5, 6), short=9, long=17))
    told = figures(a_result(plan))
    shown = printed(told, width)
    speedups = shown.partition("latency, batch")[0]
    for config in plan.speculative:
        assert speedups.count(f" {config.name} ") == 1, config.name
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())


@pytest.mark.parametrize("width", range(40, 130, 3))
def test_no_cell_is_cut(width: int) -> None:
    told = figures(a_result(a_plan(Wish((1, 2, 3, 4, 5, 6), short=9, long=17))))
    table = tables.speedup(told, 1)
    shown = captured(lambda console: terminal.show_table(table, console), width)
    wanted = Counter(f" {c.text} ({c.small}) " for row in table.rows for c in row[1:] if c.small)
    assert {said: shown.count(said) for said in wanted} == wanted


def test_the_terminal_says_speed_ups_by_kind_and_verdicts() -> None:
    told = figures(a_result())
    rows = {row[0].text: row for row in tables.speedup(told, 1).rows}
    assert rows["code"][1] == tables.Cell("2.00", "2.00–2.00", "good")
    assert rows["chat"][1] == tables.Cell("1.00", "1.00–1.00")
    assert rows["verdict, overall"][1] == tables.Cell("faster", tone="good")
    assert list(rows) == [
        OVERALL,
        "chat",
        "code",
        "short answers",
        "long answers",
        "end to end",
        "verdict, overall",
    ]
    shown = printed(told)
    assert "2.00 (2.00–2.00)" in shown
    assert told.plan.decision[:40] in shown


# nothing is drawn for another


def wrong(picture: str, rows: Sequence[Speedup], within: tuple[float, float]) -> list[str]:
    """Kinds whose mark, interval or figures are not those of `rows`."""
    root = ET.fromstring(picture)
    x = Axis(*within, *plots.span())
    names = [t for t in root.iter("text") if t.get("text-anchor") == "end"]
    told = {names[i].text: names[i + 1].text for i in range(0, len(names), 2)}
    heights = [float(names[i].get("y", "")) - 4 for i in range(0, len(names), 2)]
    paths = list(root.iter("path"))
    ends = [_numbers(p) for p in paths if "whisker" in p.get("class", "")]
    dots = [_numbers(p) for p in paths if "dot" in p.get("class", "")]
    found = []
    for row, height, end, dot in zip(rows, heights, ends, dots, strict=True):
        right = told.get(row.kind) == f"{row.ratio:.2f} ({row.low:.2f}–{row.high:.2f})"
        drawn = [x(row.low), height, x(row.high), height, x(row.ratio), height]
        if not right or [*end, *dot[:2]] != pytest.approx(drawn, abs=0.1):
            found.append(row.kind)
    return found


def _numbers(path: ET.Element) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]


def some_speedups() -> list[Speedup]:
    values = {OVERALL: (1.3, 1.2, 1.4), "chat": (0.9, 0.8, 0.95), "code": (2.0, 1.7, 2.2), "math": (1.0, 0.9, 1.1)}
    verdicts = (Verdict.FASTER, Verdict.SLOWER, Verdict.FASTER, Verdict.SAME)
    return [
        Speedup("k=2", 1, kind, ALL, *ratio, verdict, 9, 9)
        for (kind, ratio), verdict in zip(values.items(), verdicts, strict=True)
    ]


def test_intervals_stand_at_their_own_kind() -> None:
    rows = some_speedups()
    within = plots.reach(rows)
    picture = plots.speedups(rows, within, "speed-up")
    assert wrong(picture, rows, within) == []
    tones = [p.get("class") for p in ET.fromstring(picture).iter("path") if "dot" in p.get("class", "")]
    assert tones == ["dot good", "dot bad", "dot good", "dot quiet"]


def test_a_planted_interval_of_another_kind_is_found() -> None:
    rows = some_speedups()
    within = plots.reach(rows)
    swapped = [replace(rows[i], kind=kind) for i, kind in ((0, OVERALL), (2, "chat"), (1, "code"), (3, "math"))]
    assert wrong(plots.speedups(swapped, within, ""), rows, within) == ["chat", "code"]


def test_the_page_draws_what_the_figures_say() -> None:
    result = a_result()
    told = figures(result)
    pictures = re.findall(r'<svg[^>]*aria-label="speed-up by kind of (.+?), batch (\d+)">.*?</svg>', page(result))
    whole = re.findall(r'<svg[^>]*aria-label="speed-up by kind of .+?</svg>', page(result))
    assert sorted(pictures) == [("k=2", "1"), ("k=2", "2"), ("k=4", "1"), ("k=4", "2")]
    for (config, batch), picture in zip(pictures, whole, strict=True):
        of_batch = [r for r in told.speedups if (r.batch, r.length) == (int(batch), ALL)]
        rows = [r for r in of_batch if r.config == config]
        assert wrong(picture, rows, plots.reach(of_batch)) == []


# what must be known first


def announced(shown: str, what: str, first: str) -> bool:
    """Whether `what` stands before the first figure."""
    return 0 <= shown.find(what) < shown.find(first)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (cut, "the run is not complete"),
        (lambda r: replace(r, resumed=2), "the run was interrupted and gone on with"),
        (lambda r: changed_run(r, 3, load1=9.0), "the load rose to 9.0"),
    ],
)
def test_what_is_wrong_is_said_before_any_figure(spoil: Callable[[Result], Result], what: str) -> None:
    assert what not in printed(figures(a_result()))
    assert what not in page(a_result())
    spoilt = spoil(a_result())
    shown = printed(figures(spoilt))
    assert announced(shown, f"! {what}", "times as fast")
    assert shown.count(f"! {what}") == 2  # and again where the reader ends up
    assert announced(page(spoilt), f'<p class="loud">{what}', '<div class="tile')


def test_a_planted_silence_about_truncation_is_found() -> None:
    result = cut(a_result())
    silent = replace(figures(result), notes=())
    assert not announced(printed(silent), "! the run is not complete", "times as fast")
    assert '<p class="loud">' not in html.page(silent, result)


def test_a_truncated_run_decides_nothing() -> None:
    told = figures(cut(a_result()))
    headline = words.headline(told)
    assert headline.words.startswith("Not complete")
    assert headline.lead.count("so far") == 2
    said = " ".join(Page(page(cut(a_result()))).words.replace(told.plan.decision, "").split())
    assert "Not complete" in said
    assert "not decided" in said
    assert not re.search(r"\b(faster|slower|no difference)\b", said)


def test_a_result_without_a_run_is_no_error() -> None:
    nothing = replace(a_result(), runs=(), ended=False)
    assert "nothing was compared" in printed(figures(nothing))
    source = page(nothing)
    assert "nothing was compared" in source
    assert external(source) == []


def test_rules_that_change_the_law_are_named_so() -> None:
    lossy = a_result(a_plan(Wish((2,), ("lenience:1.5",), short=9, long=17)))
    assert announced(printed(figures(lossy)), "changes the output law", "times as fast")
    assert announced(page(lossy), "changes the output law", '<div class="tile')


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((Verdict.FASTER, Verdict.FASTER), "Faster"),
        ((Verdict.SLOWER, Verdict.SLOWER), "Slower"),
        ((Verdict.SAME, Verdict.SAME), "No difference"),
        ((Verdict.FEW, Verdict.FEW), "Too few to say"),
        ((Verdict.FASTER, Verdict.SLOWER), "It depends"),
        ((Verdict.FASTER, Verdict.SAME), "It depends"),
    ],
)
def test_the_headline_is_all_verdicts(verdicts: Sequence[Verdict], said: str) -> None:
    told = figures(a_result(a_plan(Wish((2, 4), short=9, long=17))))
    given = dict(zip(("k=2", "k=4"), verdicts, strict=True))
    rows = tuple(replace(r, verdict=given[r.config]) for r in told.speedups)
    assert words.headline(replace(told, speedups=rows)).words == said


# the page


def test_the_page_needs_nothing_else() -> None:
    source = page(a_result())
    assert external(source) == []
    assert Page(source).open == []
    assert "prefers-color-scheme: dark" in source


@pytest.mark.parametrize(
    "planted", ["<script>", "<img src=x>", "<link href=y>", "<style>p {background: url(x)}</style>"]
)
def test_planted_references_are_found(planted: str) -> None:
    assert external(page(a_result()).replace("</main>", planted + "</main>"))


def test_hostile_names_stay_text() -> None:
    prompts = [Prompt(f"{HOSTILE}{n}", HOSTILE, "long", "text") for n in range(7)]
    result = a_result(a_plan(WISH, prompts, command=("draftproof", HOSTILE), draftproof=HOSTILE))
    source = page(result)
    assert "<script" not in source
    assert "{{ 7*7 }}" in source
    assert external(source) == []
    assert Page(source).open == []
    assert "[bold]" in printed(figures(result))


def test_the_page_says_how_to_repeat_it() -> None:
    plan = a_plan(WISH)
    said = " ".join(Page(page(a_result(plan))).words.split())
    for word in (
        "draftproof bench",
        plan.decision[:60],
        "toy",
        "ab",
        "ngram",
        "precision",
        "seed",
        "k=4",
        "rule block",
    ):
        assert word in said, word


def test_every_picture_is_there_and_inside_its_frame() -> None:
    source = page(a_result())
    pictures = re.findall(r"<svg.*?</svg>", source)
    labels = " ".join(ET.fromstring(p).get("aria-label", "") for p in pictures)
    for subject in ("speed-up by kind", "parts of a step", "over its rows", "by draft position", "distribution of"):
        assert subject in labels
    assert "predicted over measured" in labels
    for picture in pictures:
        root = ET.fromstring(picture)
        height = float(root.get("viewBox", "").split()[3])
        assert "nan" not in picture
        assert "inf" not in picture
        for path in root.iter("path"):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d", "")):
                assert 0 <= float(x) <= WIDTH
                assert 0 <= float(y) <= height


def test_a_huge_bench_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "_MOST_BYTES", 20_000)
    small = page(a_result())
    monkeypatch.undo()
    assert "more pictures were left out" in small
    assert "more pictures were left out" not in page(a_result())
    assert sum(map(len, re.findall(r"<svg.*?</svg>", small))) <= 20_000
    for config in ("k=2", "k=4"):
        assert f'data-name="{config}"' in small  # tables stay whole


# pictures from plain numbers


def texts(picture: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(picture).iter("text")]


def test_the_bars_of_a_step_are_as_long_as_its_parts() -> None:
    picture = plots.stack([("plain", [0.0, 0.010]), ("k=2", [0.005, 0.015])], "parts")
    bars = {}
    for path in ET.fromstring(picture).iter("path"):
        if path.get("class", "").startswith("part"):
            left, _, _, right, _ = _numbers(path)
            bars.setdefault(path.get("class", "").split()[1], []).append(right - left)
    assert bars["ink1"][1] == pytest.approx(1.5 * bars["ink1"][0], rel=0.02)
    assert bars["ink0"] == pytest.approx([0.0, bars["ink1"][1] / 3], rel=0.02)
    assert {"10.0", "20.0"} <= set(texts(picture))


def test_the_staircase_rises_with_its_seconds() -> None:
    passes = [Passes(8, 0.030, 5), Passes(1, 0.010, 900), Passes(4, 0.010, 80)]
    dots = [p for p in ET.fromstring(plots.staircase(passes, "")).iter("path") if "dot" in p.get("class", "")]
    (x1, y1, _), (x4, y4, _), (x8, y8, _) = map(_numbers, dots)
    assert x1 < x4 < x8
    assert y1 == y4 > y8
    assert [p.get("class") for p in dots] == ["dot size2", "dot size1", "dot size0"]


def test_a_cumulative_curve_reaches_the_share_that_it_should() -> None:
    values = [0.001 * i for i in range(1, 101)]
    picture = plots.cumulative([plots.Line(0, values)], 0.050, "gap", "")
    (line,) = [p for p in ET.fromstring(picture).iter("path") if "line" in p.get("class", "")]
    numbers = _numbers(line)
    y = Axis(0.0, 1.0, 180, 8)
    assert numbers[-1] == pytest.approx(y(0.5), abs=0.6)  # half of the values lie behind the edge


@pytest.mark.parametrize(("error", "tone"), [(0.04, "good"), (-0.04, "good"), (0.06, "bad"), (-0.2, "bad")])
def test_a_prediction_that_is_far_off_is_marked(error: float, tone: str) -> None:
    row = replace(figures(a_result()).predictions[0], predicted=0.01 * (1 + error), measured=0.01, error=error)
    picture = plots.predictions([row], "")
    assert [p.get("class") for p in ET.fromstring(picture).iter("path") if "dot" in p.get("class", "")] == [
        f"dot {tone}"
    ]
    assert tables._predicted(row)[3].tone == tone


def test_an_unknown_interval_is_not_drawn_to_infinity() -> None:
    row = replace(some_speedups()[0], low=0.0, high=math.inf)
    assert plots.reach([row])[1] < 2
    assert "1.30 (no interval)" in texts(plots.speedups([row], plots.reach([row]), ""))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0"), (1.2345, "1,234"), (0.0234, "23.4"), (0.00234, "2.34"), (1.2e-6, "0.0012"), (-1e-9, "0")],
)
def test_milliseconds_have_three_digits(seconds: float, said: str) -> None:
    assert tables.ms(seconds) == said
    assert tables.signed(seconds) == ("+" if seconds > 0 else "") + said


def test_a_difference_too_small_to_tell_has_no_sign() -> None:
    assert tables.signed(1e-9) == "0"
