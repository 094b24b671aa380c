"""The pictures of a bench, Knows rows of figures, no result file and no page.

Seconds come in, milliseconds are drawn. `ink` is a line's place in the page's palette, the same in every picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from draftproof.bench.figures import OVERALL, Passes, Prediction, Speedup, Verdict
from draftproof.bench.report.tables import CLOSE, interval, ms
from draftproof.svg import LEFT, RIGHT, WIDTH, Axis, Canvas, number, ticks

INKS = 8  # colours of the palette; behind them they come again, dashed
_NAMES = 104.0  # room for the names of rows
_SAID = 108.0  # room for figures behind rows
_ROW = 17.0
_TOP, _FOOT = 8.0, 34.0
_MOST = 160  # points that a curve needs to look right
_TONES = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}


class Line(NamedTuple):
    """Values by position, or values to be counted."""

    ink: int
    values: Sequence[float]


def span() -> tuple[float, float]:
    """Left and right edge of the axis of pictures with rows."""
    return _NAMES, WIDTH - _SAID


def reach(rows: Sequence[Speedup]) -> tuple[float, float]:
    """The range that pictures side by side share; 1 is always in it, an unknown end of an interval is not."""
    known = [v for r in rows for v in (r.ratio, *((r.low, r.high) if math.isfinite(r.high) else ()))]
    low, high = min((1.0, *known)), max((1.0, *known))
    spare = max(0.06 * (high - low), 0.02)
    return low - spare, high + spare


def speedups(rows: Sequence[Speedup], within: tuple[float, float], label: str) -> Markup:
    """A dot and its interval for each row, the line of no difference, and the figures behind."""
    foot = _TOP + _ROW * len(rows)
    canvas, x = Canvas(label, foot + _FOOT), Axis(*within, *span())
    canvas.x_axis(x, ticks(*within, 5), _TOP, foot, "times as fast as plain decoding")
    canvas.line([(x(1.0), _TOP), (x(1.0), foot)], "even")
    for i, row in enumerate(rows):
        y, tone = _TOP + _ROW * (i + 0.5), _TONES.get(row.verdict, "quiet")
        canvas.text(_NAMES - 8, y + 4, _fitted(row.kind), "tick whole" if row.kind == OVERALL else "tick", anchor="end")
        canvas.line([(x(row.low), y), (x(row.high), y)], f"whisker {tone}")
        canvas.dots([(x(row.ratio), y)], f"dot {tone}")
        canvas.text(WIDTH - 2, y + 4, f"{row.ratio:.2f} ({interval(row.low, row.high)})", f"tick {tone}", anchor="end")
    return canvas.render()


def stack(rows: Sequence[tuple[str, Sequence[float]]], label: str) -> Markup:
    """A bar a row, cut into its parts in order, with the total in milliseconds behind."""
    most = max((sum(parts) for _, parts in rows), default=0.0) or 1e-3
    foot = _TOP + _ROW * len(rows)
    canvas, x = Canvas(label, foot + _FOOT), Axis(0.0, most * 1e3, _NAMES, WIDTH - 58)
    canvas.x_axis(x, ticks(0.0, most * 1e3, 4), _TOP, foot, "milliseconds a step")
    for i, (name, parts) in enumerate(rows):
        y, left = _TOP + _ROW * i, 0.0
        canvas.text(_NAMES - 8, y + _ROW / 2 + 4, _fitted(name), anchor="end")
        for ink, seconds in enumerate(parts):
            canvas.bars([(x(left), y + 3, x(left + seconds * 1e3), y + _ROW - 2)], f"part {ink_of(ink)}")
            left += seconds * 1e3
        canvas.text(x(left) + 5, y + _ROW / 2 + 4, ms(left / 1e3), anchor="start")
    return canvas.render()


def staircase(passes: Sequence[Passes], label: str) -> Markup:
    """Milliseconds of a pass over its rows. A larger dot stands for more passes."""
    canvas = Canvas(label, 212)
    wide, high = max(p.rows for p in passes), max(p.seconds for p in passes) * 1e3
    x, y = Axis(0.0, wide * 1.03, LEFT, WIDTH - RIGHT), Axis(0.0, high * 1.06 or 1.0, 180, _TOP)
    canvas.y_axis(y, ticks(0.0, high, 5), "milliseconds a pass")
    ordered = sorted(passes, key=lambda p: p.rows)
    points = [(x(p.rows), y(p.seconds * 1e3)) for p in ordered]
    canvas.line(points, "thread")
    most = max(p.count for p in passes)
    for at, p in zip(points, ordered, strict=True):
        canvas.dots([at], f"dot size{_size(p.count, most)}")
    canvas.x_ticks(x, [(t, number(t)) for t in ticks(0.0, wide, 8) if t == round(t)], 180, "rows in a pass")
    return canvas.render()


def _size(count: int, most: int) -> int:
    return 2 if count * 10 >= most else 1 if count * 100 >= most else 0


def acceptance(lines: Sequence[Line], label: str) -> Markup:
    """Share accepted at each draft position among the steps that reached it."""
    longest = max(len(line.values) for line in lines)
    canvas = Canvas(label, 212)
    x, y = Axis(0.7, longest + 0.3, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, 180, _TOP)
    canvas.y_axis(y, [0.0, 0.25, 0.5, 0.75, 1.0], "accepted if reached")
    for line in lines:
        points = [(x(i + 1), y(v)) for i, v in enumerate(line.values)]
        canvas.line(points, f"line {ink_of(line.ink)}")
        canvas.dots(points, f"dot {ink_of(line.ink)}")
    canvas.x_ticks(x, [(i, str(i)) for i in range(1, longest + 1)], 180, "draft position")
    return canvas.render()


def cumulative(lines: Sequence[Line], high: float, name: str, label: str) -> Markup:
    """Share of values at or below each, up to `high` seconds; lines that go on behind it end below 1."""
    canvas = Canvas(label, 212)
    x, y = Axis(0.0, high * 1e3 or 1.0, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, 180, _TOP)
    canvas.y_axis(y, [0.0, 0.25, 0.5, 0.75, 1.0], "share of values")
    for line in lines:
        canvas.line([(x(t * 1e3), y(s)) for t, s in _steps(line.values, high)], f"line {ink_of(line.ink)}")
    canvas.x_ticks(x, [(t, number(t)) for t in ticks(0.0, high * 1e3, 6)], 180, f"{name}, milliseconds")
    return canvas.render()


def _steps(values: Sequence[float], high: float) -> list[tuple[float, float]]:
    """Corners of the cumulative curve at about _MOST of the values."""
    ordered, points = sorted(values), [(0.0, 0.0)]
    chosen = sorted({round(i * (len(ordered) - 1) / _MOST) for i in range(_MOST + 1)}) if ordered else []
    for i in chosen:
        if ordered[i] > high:
            break
        points += [(ordered[i], points[-1][1]), (ordered[i], (i + 1) / len(ordered))]
    return [*points, (high, points[-1][1])]


def predictions(rows: Sequence[Prediction], label: str) -> Markup:
    """How many times the measured time per token was predicted, with the band that a good prediction stays in."""
    ratios = [1.0 + r.error for r in rows]
    low, high = min((1 - 1.6 * CLOSE, *ratios)), max((1 + 1.6 * CLOSE, *ratios))
    foot = _TOP + _ROW * len(rows)
    canvas, x = Canvas(label, foot + _FOOT), Axis(low - 0.01, high + 0.01, *span())
    canvas.bars([(x(1 - CLOSE), _TOP, x(1 + CLOSE), foot)], "band")
    canvas.x_axis(x, ticks(low, high, 4), _TOP, foot, "predicted / measured time a token")
    canvas.line([(x(1.0), _TOP), (x(1.0), foot)], "even")
    for i, (row, share) in enumerate(zip(rows, ratios, strict=True)):
        y, tone = _TOP + _ROW * (i + 0.5), "good" if abs(share - 1) <= CLOSE else "bad"
        canvas.text(_NAMES - 8, y + 4, _fitted(row.config), anchor="end")
        canvas.dots([(x(share), y)], f"dot {tone}")
        canvas.text(WIDTH - 2, y + 4, f"{ms(row.predicted)} / {ms(row.measured)} ms", f"tick {tone}", anchor="end")
    return canvas.render()


def ink_of(place: int) -> str:
    return f"ink{place % INKS}" + (" again" if place >= INKS else "")


def _fitted(name: str) -> str:
    return name if len(name) <= 15 else name[:14] + "…"
