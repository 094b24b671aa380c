"""The picture of a cost scenario: speed-up over k, and the break-even line. The only module that needs matplotlib.

Knows points, no option and no formula. No display, no state that outlives a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftproof.cost import Point

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "draftproof", "font.size": 10.0}
_TITLE, _WIDTH = "draftproof cost", 120
_DARK, _QUIET, _RED = "#222222", "#777777", "#d62728"


def draw(path: Path, curves: Sequence[Sequence[Point]], asked: Point, note: str, given: str) -> None:
    """Write the picture; the suffix says which kind. `curves[i]` is over k at one alpha; `note` and `given` are printed
    on it.

    Raises:
        OSError: the file cannot be written.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(11.5, 5.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _gains(left, curves, asked)
        _line(right, curves[0], asked)
        figure.suptitle(f"{_TITLE}: {note}\n{fill(given, _WIDTH)}", color=_DARK, parse_math=False)
        about = {"Title": _TITLE, "Description": f"{note}; {given}"}
        figure.savefig(path, dpi=150, metadata=about | ({"Date": None} if path.suffix.lower() == ".svg" else {}))


def _gains(axes: Axes, curves: Sequence[Sequence[Point]], asked: Point) -> None:
    """Speed-up over k, a curve an alpha, its best k ringed."""
    colours = matplotlib.colormaps["viridis_r"]
    for i, curve in enumerate(curves):
        colour = colours(0.15 + 0.85 * i / max(1, len(curves) - 1))
        best = max(curve, key=lambda point: point.speedup)
        label = f"alpha {best.alpha:g}: best k {best.k}, {best.speedup:.2f} ×"
        axes.plot([p.k for p in curve], [p.speedup for p in curve], "o-", ms=3, lw=1.5, color=colour, label=label)
        axes.plot(best.k, best.speedup, "o", ms=9, mfc="none", mec=colour, mew=1.5)
    axes.axhline(1.0, color=_QUIET, lw=1, ls="--", label="plain decoding")
    axes.plot(asked.k, asked.speedup, "D", ms=6, color=_RED, label=f"asked: k {asked.k}, {asked.speedup:.2f} ×")
    axes.set(xlabel="draft length k", ylabel="speed-up over plain decoding", title="speed-up (ring: best k)")
    axes.set_ylim(bottom=0)
    _finish(axes, 3)


def _line(axes: Axes, curve: Sequence[Point], asked: Point) -> None:
    """The smallest alpha that pays, over k; above 1 there is none, and the line ends."""
    lengths, alphas = [p.k for p in curve if p.k], [p.break_even_alpha for p in curve if p.k]
    slower = [min(alpha, 1.0) for alpha in alphas]
    axes.plot(lengths, alphas, "o-", ms=3, lw=1.5, color=_DARK, label="break-even")
    axes.fill_between(lengths, slower, 0.0, color=_RED, alpha=0.12, lw=0, label="slower than plain decoding")
    axes.plot(asked.k, asked.alpha, "D", ms=6, color=_RED, label=f"asked: k {asked.k}, alpha {asked.alpha:g}")
    axes.set(
        xlabel="draft length k", ylabel="acceptance alpha", title="where speculation breaks even", ylim=(0.0, 1.02)
    )
    _finish(axes, 2)


def _finish(axes: Axes, columns: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns, fontsize=9, frameon=False)
