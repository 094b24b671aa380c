"""The suite's four plots, from the series that results carry. Knows the form of the series, not what made them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from draftproof.svg import LEFT, RIGHT, WIDTH, Axis, Canvas, note, number, ticks

_SPREAD = 4.0  # intervals are this many standard errors each way: 1 of 16,000 honest cells lies outside
_MOST = 400  # marks that a line or a row of cells needs to look right
_LINES = 4  # e-processes drawn; the rest are lower
Series = Mapping[str, Any]


def known(plots: Mapping[str, Any]) -> list[str]:
    return [name for name in _KNOWN if name in plots]


def draw(plots: Mapping[str, Any]) -> list[tuple[str, str, Markup]]:
    """(title, caption, picture) for each plot that is known here. Series that make no sense are said to."""
    drawn = []
    for name in known(plots):
        title, caption, picture = _KNOWN[name]
        try:
            drawn.append((title, caption, picture(plots[name])))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            drawn.append((title, "", note(f"the series could not be drawn: {type(error).__name__} {error}")))
    return drawn


def expected_seen(series: Series) -> Markup:
    """Two panels over the cells by falling expectation: shares with intervals, and how many errors they are off."""
    n = float(series["n"])
    given = zip(series["expected"], series["seen"], map(str, series["labels"]), strict=True)
    cells = sorted(given, key=lambda cell: -cell[0])
    hidden = max(len(cells) - _MOST, 0)
    off = [_errors_off(float(e), float(s), n) for e, s, _ in cells]
    worst = max(range(len(cells)), key=lambda i: abs(off[i]))
    cells, off, worst = _thinned(cells, off, worst)
    canvas = Canvas(f"expected and seen shares of {len(cells)} cells", 290)
    x = Axis(-0.7, len(cells) - 0.3, LEFT, WIDTH - RIGHT)
    _shares(canvas, x, [(float(e), float(s)) for e, s, _ in cells], off, n)
    _offs(canvas, x, off, (worst, cells[worst][2]))
    words = f"{len(cells):,} cells, most probable first" + (f" ({hidden:,} calm ones left out)" if hidden else "")
    short = [(i, c[2]) for i, c in enumerate(cells)] if len(cells) <= 12 and max(len(c[2]) for c in cells) <= 6 else []
    canvas.x_ticks(x, short, 256, words)
    return canvas.render()


def _thinned(cells: list[Any], off: list[float], worst: int) -> tuple[list[Any], list[float], int]:
    """At most _MOST cells, those farthest off among them, still in order."""
    kept = sorted(sorted(range(len(cells)), key=lambda i: -abs(off[i]))[:_MOST])
    return [cells[i] for i in kept], [off[i] for i in kept], kept.index(worst)


def _shares(canvas: Canvas, x: Axis, cells: Sequence[tuple[float, float]], off: Sequence[float], n: float) -> None:
    reach = [_SPREAD * math.sqrt(max(s * (1 - s), 0.0) / n) for _, s in cells]
    high = max(max(e, s + r) for (e, s), r in zip(cells, reach, strict=True)) or 1.0
    y = Axis(0.0, high * 1.04, 150, 10)
    canvas.y_axis(y, ticks(0.0, high, 4), "share")
    half = min(0.38 * (x(1) - x(0)), 14.0)
    canvas.bars(((x(i) - half, y(e), x(i) + half, 150.0) for i, (e, _) in enumerate(cells)), "expect")
    for bad, ink in ((False, "whisker"), (True, "whisker bad")):
        canvas.path(
            (
                f"M{x(i)} {y(s - r)}V{y(s + r)}"
                for i, ((_, s), r) in enumerate(zip(cells, reach, strict=True))
                if (abs(off[i]) > _SPREAD) is bad
            ),
            ink,
        )
    for bad, ink in ((False, "dot"), (True, "dot bad")):
        canvas.dots(((x(i), y(s)) for i, (_, s) in enumerate(cells) if (abs(off[i]) > _SPREAD) is bad), ink)


def _offs(canvas: Canvas, x: Axis, off: Sequence[float], worst: tuple[int, str]) -> None:
    high = min(max(_SPREAD + 1, *(abs(v) for v in off)) * 1.1, 30.0)
    y = Axis(-high, high, 256, 172)
    canvas.bars([(LEFT, y(_SPREAD), WIDTH - RIGHT, y(-_SPREAD))], "band")
    marks = [-_SPREAD, 0.0, _SPREAD] if high < 12 else [-20.0, 0.0, 20.0] if high > 20 else [-10.0, 0.0, 10.0]
    canvas.y_axis(y, marks, "errors off")
    for bad, ink in ((False, "dot"), (True, "dot bad")):
        canvas.dots(((x(i), y(v)) for i, v in enumerate(off) if (abs(v) > _SPREAD) is bad), ink)
    at, label = worst
    if abs(off[at]) > _SPREAD:
        right = x(at) > (LEFT + WIDTH) / 2
        beside = x(at) + (-7 if right else 7)
        canvas.text(beside, y(off[at]) + 4, label, "tick bad", anchor="end" if right else "start")


def _errors_off(expected: float, seen: float, n: float) -> float:
    error = math.sqrt(max(expected * (1 - expected), 0.0) / n)
    if error == 0.0:
        return 0.0 if math.isclose(expected, seen) else math.copysign(1e9, seen - expected)
    return (seen - expected) / error


def pit(series: Series) -> Markup:
    """Bars around 1, with the band of an honest engine."""
    counts = [float(c) for c in series["bins"]]
    even = float(series["n"]) / len(counts)
    heights = [c / even for c in counts]
    spread = _SPREAD * math.sqrt((1 - 1 / len(counts)) / even)
    canvas = Canvas(f"histogram of {len(counts)} bins of the probability integral transform", 200)
    x = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT)
    high = max(1.35, 1 + 1.3 * spread, *(1.05 * h for h in heights))
    y = Axis(0.0, high, 158, 10)
    canvas.y_axis(y, ticks(0.0, high, 4), "seen / expected")
    canvas.bars([(LEFT, y(1 + spread), WIDTH - RIGHT, y(max(1 - spread, 0.0)))], "band")
    width = 1 / len(counts)
    for bad, ink in ((False, "bar"), (True, "bar bad")):
        chosen = [i for i, h in enumerate(heights) if (abs(h - 1) > spread) is bad]
        canvas.bars(((x(i * width) + 0.8, y(heights[i]), x((i + 1) * width) - 0.8, 158.0) for i in chosen), ink)
    canvas.line([(LEFT, y(1.0)), (WIDTH - RIGHT, y(1.0))], "mark")
    canvas.x_ticks(x, [(t, number(t)) for t in (0.0, 0.25, 0.5, 0.75, 1.0)], 158, "randomised PIT")
    return canvas.render()


def e_value(series: Series) -> Markup:
    """Log e-values over tokens. One line, or one for each of `names`; the highest few are drawn."""
    tokens = [float(t) for t in series["tokens"]]
    lines = _named(series)
    threshold = float(series["threshold"])
    values = [v for _, line in lines for v in line]
    low, high = min(0.0, *values), max(threshold * 1.15, *values) * 1.02
    low = max(low, -1.2 * high)  # an honest engine sinks without end: the way up is what matters
    canvas = Canvas("log e-value over tokens with its threshold", 210)
    x, y = Axis(min(tokens), max(tokens), LEFT, WIDTH - RIGHT), Axis(low, high, 168, 10)
    canvas.y_axis(y, ticks(low, high, 5), "log e-value")
    canvas.line([(LEFT, y(threshold)), (WIDTH - RIGHT, y(threshold))], "limit")
    canvas.text(LEFT + 4, y(threshold) - 4, f"fault proved above {number(threshold)}", "tick bad", anchor="start")
    for i, (name, line) in enumerate(lines):
        every = max(len(line) // _MOST, 1)
        points = list(zip(tokens, line, strict=True))
        canvas.line([(x(t), y(v)) for t, v in [*points[::every], points[-1]]], f"line line{i}")
        if name:
            canvas.text(WIDTH - RIGHT, y(line[-1]) - 4, name, f"tick ink{i}", anchor="end")
    canvas.x_ticks(x, [(t, number(t)) for t in ticks(min(tokens), max(tokens), 5)], 168, "tokens")
    return canvas.render()


def _named(series: Series) -> list[tuple[str, list[float]]]:
    given, names = series["log_e"], series.get("names")
    many = bool(given) and isinstance(given[0], list | tuple)
    lines = [[_drawable(v) for v in line] for line in (given if many else [given])]
    named = list(zip(map(str, names), lines, strict=True)) if many and names else [("", line) for line in lines]
    return sorted(named, key=lambda pair: -pair[1][-1])[:_LINES]


def _drawable(value: float | None) -> float:
    return -1e9 if value is None or math.isnan(value) else min(max(float(value), -1e9), 1e9)


def acceptance(series: Series) -> Markup:
    """Bars of what was seen with intervals, and marks of what the law says."""
    rows = list(zip(series["positions"], series["expected"], series["seen"], series["n"], strict=True))
    canvas = Canvas("acceptance by rule, then its later steps, seen and expected", 200)
    x, y = Axis(-0.5, len(rows) - 0.5, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, 158, 10)
    canvas.y_axis(y, [0.0, 0.25, 0.5, 0.75, 1.0], "accepted")
    half = min(0.34 * (x(1) - x(0)), 30.0)
    for i, (_, expected, seen, n) in enumerate(rows):
        e, s = float(expected), float(seen)
        bad = abs(_errors_off(e, s, max(float(n), 1.0))) > _SPREAD
        spread = _SPREAD * math.sqrt(max(s * (1 - s), 0.0) / max(float(n), 1.0))
        canvas.bars([(x(i) - half, y(s), x(i) + half, 158.0)], "bar bad" if bad else "bar")
        canvas.path([f"M{x(i)} {y(s - spread)}V{y(s + spread)}"], "whisker strong")
        canvas.line([(x(i) - half - 4, y(e)), (x(i) + half + 4, y(e))], "mark")
    canvas.x_ticks(x, [(i, str(row[0])) for i, row in enumerate(rows)], 158, "rule, then its later steps")
    return canvas.render()


_KNOWN: dict[str, tuple[str, str, Callable[[Series], Markup]]] = {
    "expected_seen": (
        "Expected against seen",
        "Bars are the exact law; dots are what was seen, with intervals of ±4 standard errors. Below: how many "
        "standard errors each cell is off, and the band where an honest engine stays.",
        expected_seen,
    ),
    "pit": ("PIT histogram", "Flat if tokens follow the law. The band is ±4 standard errors.", pit),
    "e_value": (
        "Evidence against the engine",
        "Betting on suspected faults: an honest engine crosses the line with no more than its share of the budget.",
        e_value,
    ),
    "acceptance": (
        "Acceptance by position",
        "Bars are seen, lines across them are what the law says, intervals are ±4 standard errors.",
        acceptance,
    ),
}
