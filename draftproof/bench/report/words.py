"""What a bench says first, in the words that terminal and page share. Knows figures and no layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftproof.bench.figures import ALL, OVERALL, Figures, Speedup, Verdict
from draftproof.bench.report.tables import interval, short

_HEADLINES = {
    Verdict.FASTER: ("Faster", "good"),
    Verdict.SLOWER: ("Slower", "bad"),
    Verdict.FEW: ("Too few to say", "warn"),
}


class Headline(NamedTuple):
    words: str
    tone: str
    lead: str


def headline(figures: Figures) -> Headline:
    """The verdict of all configurations and batch sizes together, and a sentence for each batch size."""
    rows = overall(figures)
    far = "" if figures.complete else ", so far"
    lead = "\n".join(
        _sentence(f"{figures.plan.load.called(b).capitalize()}{far}", [r for r in rows if r.batch == b])
        for b in figures.plan.batches
    )
    if not figures.complete:
        return Headline("Not complete: nothing is decided", "bad", lead)
    verdicts = {r.verdict for r in rows}
    if len(verdicts) == 1:
        words, tone = _HEADLINES.get(verdicts.pop(), ("No difference", "info"))
        return Headline(words, tone, lead)
    return Headline("It depends", "warn", lead)


def overall(figures: Figures) -> list[Speedup]:
    return [r for r in figures.speedups if (r.kind, r.length) == (OVERALL, ALL)]


def _sentence(batch: str, rows: Sequence[Speedup]) -> str:
    if not rows:
        return f"{batch}: nothing was compared."
    best = max(rows, key=lambda r: r.ratio)
    counts = {v: sum(r.verdict is v for r in rows) for v in Verdict}
    told = ", ".join(f"{n} {short(v)}" for v, n in counts.items() if n)
    return (
        f"{batch}: {best.config} is {best.ratio:.2f} times as fast as plain decoding "
        f"({interval(best.low, best.high)}). Configurations: {told}."
    )


def loud(figures: Figures) -> list[str]:
    """What must be known before any figure is read."""
    changes = "every configuration but plain decoding changes the output law: what is compared is not the same text"
    return [*figures.notes, *([changes] if figures.plan.lossy else [])]
