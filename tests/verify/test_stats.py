"""The budget: looks and Holm spend alpha once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from draftproof.verify.stats import Looks, holm, power_at


class EachLookSpendsAll(Looks):
    def alpha_at(self, i: int) -> float:
        return self.alpha


class SharesByFraction(Looks):
    def alpha_at(self, i: int) -> float:
        return self.alpha * self.fractions[i]


def spends_once(looks: Looks) -> None:
    assert math.fsum(looks.alpha_at(i) for i in range(len(looks))) == pytest.approx(looks.alpha, rel=1e-12)
    assert looks.alpha_at(len(looks) - 1) > 0.5 * looks.alpha
    for i in range(len(looks)):
        assert looks.adjusted(i, looks.alpha_at(i)) == pytest.approx(looks.alpha)


def test_looks_spend_alpha_once() -> None:
    spends_once(Looks(1e-6))
    spends_once(Looks(0.01, (0.5, 1.0), (0.2, 0.8)))


@pytest.mark.parametrize("wrong", [EachLookSpendsAll, SharesByFraction])
def test_alpha_spent_twice_is_noticed(wrong: type[Looks]) -> None:
    with pytest.raises(AssertionError):
        spends_once(wrong(1e-6))


def test_looks_grow_to_the_whole_sample() -> None:
    looks = Looks(1e-6)
    assert looks.sizes(6400) == (100, 400, 1600, 6400)
    assert looks.sizes(1) == (1, 1, 1, 1)
    n = looks.samples_for(160, 0.99, 0.02)
    assert power_at(n, 160, looks.alpha_at(3), 0.02) >= 0.99 > power_at(n, 160, looks.alpha_at(0), 0.02)
    assert looks.adjusted(0, 0.9) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        ((0.5, 1.0), (0.5, 0.6)),
        ((0.5, 1.0), (1.0,)),
        ((0.5, 0.9), (0.5, 0.5)),
        ((1.0, 0.5), (0.5, 0.5)),
        ((0.5, 0.5, 1.0), (0.2, 0.3, 0.5)),
        ((0.5, 1.0), (0.0, 1.0)),
        ((), ()),
    ],
)
def test_plans_that_overspend_or_do_not_end_are_refused(wrong: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    with pytest.raises(ValueError):
        Looks(0.01, *wrong)


def test_alpha_must_be_a_rate() -> None:
    with pytest.raises(ValueError, match="alpha"):
        Looks(0.0)


Procedure = Callable[[Mapping[str, float], float], set[str]]


def closed(p_values: Mapping[str, float], alpha: float) -> set[str]:
    """Holm's procedure from first principles: the closure of Bonferroni tests of all intersections."""
    names = list(p_values)
    sets = [s for size in range(1, len(names) + 1) for s in itertools.combinations(names, size)]
    kept = [set(s) for s in sets if min(p_values[n] for n in s) > alpha / len(s)]
    return {name for name in names if not any(name in s for s in kept)}


def is_holm(procedure: Procedure) -> None:
    rng = np.random.default_rng(4)
    for size in (1, 2, 5):
        for _ in range(300):
            values = {str(i): float(p) for i, p in enumerate(rng.random(size) ** 4)}
            assert procedure(values, 0.05) == closed(values, 0.05)
    assert procedure({"a": 0.01, "b": 0.04, "c": 0.03}, 0.06) == {"a", "b", "c"}
    assert procedure({"a": 0.05, "b": 0.05}, 0.05) == set()


def test_holm_is_the_closure_of_bonferroni() -> None:
    is_holm(holm)
    assert holm({}, 0.05) == set()
    assert holm({"a": 0.0, "b": 1.0}, 1e-6) == {"a"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, alpha: {n for n in p if p[n] <= alpha},  # each spends all
        lambda p, alpha: {n for n in p if p[n] <= alpha / len(p)},  # Bonferroni: less power
        lambda p, alpha: {n for r, n in enumerate(sorted(p, key=p.__getitem__)) if p[n] <= alpha / (len(p) - r)},
        lambda p, alpha: {n for r, n in enumerate(sorted(p, key=p.__getitem__)) if p[n] <= alpha * (r + 1) / len(p)},
    ],
    ids=["uncorrected", "bonferroni", "no stop at the first failure", "false discovery rate"],
)
def test_other_procedures_are_noticed(wrong: Procedure) -> None:
    with pytest.raises(AssertionError):
        is_holm(wrong)


def test_holm_refuses_what_is_no_p_value() -> None:
    for wrong in (math.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="p-value"):
            holm({"a": wrong}, 0.05)
