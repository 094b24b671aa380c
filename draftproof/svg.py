"""A few marks on a canvas with axes, as inline SVG. Colours are the page's classes. Knows no plot and no result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, LEFT, RIGHT = 460.0, 46.0, 12.0


@dataclass(frozen=True, slots=True)
class Axis:
    """Values `low` to `high` on pixels `start` to `end`. Values outside are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / span * (self.end - self.start), 1)


class Canvas:
    """Collects marks; `render` gives the picture. `label` is what a reader who cannot see it is told."""

    def __init__(self, label: str, height: float) -> None:
        self._label, self._height = label, height
        self._marks: list[Markup] = []

    def path(self, moves: Iterable[str], kind: str) -> None:
        drawn = "".join(moves)
        if drawn:
            self._marks.append(Markup('<path class="{}" d="{}"/>').format(kind, drawn))

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        if points:
            self.path((f"{'L' if i else 'M'}{_n(x)} {_n(y)}" for i, (x, y) in enumerate(points)), kind)

    def dots(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Round ends of lines without length: many dots in one element."""
        self.path((f"M{_n(x)} {_n(y)}h0" for x, y in points), kind)

    def bars(self, boxes: Iterable[tuple[float, float, float, float]], kind: str) -> None:
        """Boxes given as left, top, right, bottom."""
        self.path((f"M{_n(a)} {_n(d)}V{_n(b)}H{_n(c)}V{_n(d)}z" for a, b, c, d in boxes), kind)

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle", turn: int = 0) -> None:
        turned = Markup(' transform="rotate({} {} {})"').format(turn, _n(x), _n(y)) if turn else Markup("")
        mark = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}"{}>{}</text>')
        self._marks.append(mark.format(kind, _n(x), _n(y), anchor, turned, words))

    def y_axis(self, axis: Axis, ticks: Sequence[float], name: str) -> None:
        self.path((f"M{LEFT:g} {_n(axis(t))}H{WIDTH - RIGHT:g}" for t in ticks), "grid")
        for tick in ticks:
            self.text(LEFT - 5, axis(tick) + 3.5, number(tick), anchor="end")
        self.text(11, (axis.start + axis.end) / 2, name, "axis", turn=-90)

    def x_ticks(self, axis: Axis, ticks: Iterable[tuple[float, str]], y: float, name: str) -> None:
        for value, words in ticks:
            self.text(axis(value), y + 13, words)
        self.text((axis.start + axis.end) / 2, y + 27, name, "axis")

    def x_axis(self, axis: Axis, ticks: Sequence[float], top: float, y: float, name: str) -> None:
        """Upright lines from `top` down to `y`, figures and name below."""
        self.path((f"M{axis(t)} {_n(top)}V{_n(y)}" for t in ticks), "grid")
        self.x_ticks(axis, [(t, number(t)) for t in ticks], y, name)

    def render(self) -> Markup:
        head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _n(WIDTH), _n(self._height), self._label
        )
        return head + Markup("").join(self._marks) + Markup("</svg>")


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers within the range."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def note(words: str) -> Markup:
    """A remark in place of a picture."""
    return Markup('<p class="quiet">{}</p>').format(escape(words))


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
