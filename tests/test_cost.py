"""The analytical cost model against known values (those of the design's test vectors, and of published tables)."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from draftproof import cost
from draftproof.cost import Best, best_k, break_even_alpha, break_even_draft_cost, expected_tokens, speedup, step_cost


@pytest.mark.parametrize(
    ("alpha", "k", "c", "expected"),
    [
        (0.8, 4, 0.1, 2.4011428571),
        (0.2, 4, 0.1, 0.8925714286),
        (0.8, 5, 0.0, 3.68928),
        (0.9, 10, 0.0, 6.861894039),
        (0.5, 5, 0.01, 1.875),
        (0.9, 24, 0.01, 7.485566138),
    ],
)
def test_speedup(alpha: float, k: int, c: float, expected: float) -> None:
    assert speedup(alpha, k, c) == pytest.approx(expected, abs=1e-9)
    assert speedup(alpha, k + 1, c) != pytest.approx(expected, abs=1e-4)  # a length that is off by one is seen


def test_parts() -> None:
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616)
    assert expected_tokens(0.2, 4) == pytest.approx(1.2496)
    assert step_cost(4, 0.1) == pytest.approx(1.4)
    assert expected_tokens(1.0, 3) == 4


@pytest.mark.parametrize(
    ("alpha", "k", "gain"),
    [(0.2, 1, 1.0909090909), (0.4, 2, 1.3), (0.6, 3, 1.6738461538), (0.8, 6, 2.46964), (0.9, 10, 3.4309470195)],
)
def test_best_draft_length_at_a_tenth(alpha: float, k: int, gain: float) -> None:
    best = best_k(alpha, 0.1)
    assert best.k == k
    assert best.speedup == pytest.approx(gain, abs=1e-9)


def test_not_speculating_is_a_candidate() -> None:
    assert best_k(0.05, 0.2).k == 0
    assert best_k(0.0, 0.0).k == 0


@pytest.mark.parametrize(
    ("alpha", "k", "c"),
    [
        (-0.1, 1, 0.1),
        (1.1, 1, 0.1),
        (math.nan, 1, 0.1),
        (0.5, -1, 0.1),
        (0.5, 1, -0.1),
        (0.5, 1, math.nan),
        (0.5, 1, math.inf),
    ],
)
def test_nonsense_is_refused(alpha: float, k: int, c: float) -> None:
    with pytest.raises(ValueError, match="got"):
        speedup(alpha, k, c)


def test_negative_share_of_operations_is_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        cost.operations_factor(0.5, 2, -0.1)


# Leviathan et al. 2022, table 1: the draft for nothing; operations and speed as printed there
PUBLISHED = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]

Operations = Callable[[float, int, float], float]


def operations_are_right(operations: Operations) -> None:
    for alpha, k, factor, gain in PUBLISHED:
        assert operations(alpha, k, 0.0) == pytest.approx(factor, abs=5.1e-3)
        assert speedup(alpha, k, 0.0) == pytest.approx(gain, abs=5.1e-3)
    assert operations(0.5, 0, 0.3) == 1.0
    assert operations(0.5, 1, 0.3) == pytest.approx(2.3 / 1.5)  # by hand: two rows of the target, one of the draft


def test_operations_factor() -> None:
    operations_are_right(cost.operations_factor)


@pytest.mark.parametrize(
    "fault",
    [
        lambda a, k, c: (k + k * c) / expected_tokens(a, k),  # the last row forgotten
        lambda a, k, c: (k + 1) / expected_tokens(a, k),  # the draft forgotten
        lambda a, k, c: (k + 1 + c) / expected_tokens(a, k),  # one draft token instead of k
        lambda a, k, c: k + 1 + k * c,  # a step, not a token
    ],
    ids=["rows", "free", "one", "step"],
)
def test_planted_operations_are_seen(fault: Operations) -> None:
    with pytest.raises(AssertionError):
        operations_are_right(fault)


def vectors_hold(model: SimpleNamespace) -> None:
    """The known values once more, for a model that may be faulty."""
    assert model.tokens(0.8, 4) == pytest.approx(3.3616)
    assert model.step(4, 0.1) == pytest.approx(1.4)
    assert model.tokens(0.8, 4) / model.step(4, 0.1) == pytest.approx(2.4011428571, abs=1e-9)
    assert model.best(0.8, 0.1) == pytest.approx((6, 2.46964))
    assert model.best(0.05, 0.2) == (0, 1.0)


def model(
    tokens: Callable[[float, int], float] = expected_tokens,
    step: Callable[[int, float], float] = step_cost,
    best: Callable[[float, float], Best] = best_k,
) -> SimpleNamespace:
    return SimpleNamespace(tokens=tokens, step=step, best=best)


def best_from_one(alpha: float, c: float) -> Best:
    return max((Best(k, speedup(alpha, k, c)) for k in range(1, 65)), key=lambda b: b.speedup)


def test_vectors() -> None:
    vectors_hold(model())


@pytest.mark.parametrize(
    "fault",
    [
        model(tokens=lambda a, k: (1 - a**k) / (1 - a)),  # the bonus token forgotten
        model(tokens=lambda a, k: 1 + k * a),  # acceptance that does not compound
        model(step=lambda k, c: k * c),  # verification for nothing
        model(step=lambda k, c: 1 + (k + 1) * c),
        model(best=best_from_one),  # plain decoding is no candidate
    ],
    ids=["bonus", "linear", "verify", "rows", "zero"],
)
def test_planted_faults_are_seen(fault: SimpleNamespace) -> None:
    with pytest.raises(AssertionError):
        vectors_hold(fault)


def test_shortest_of_equals_is_best() -> None:
    assert best_k(0.1, 0.1) == (0, 1.0)  # k = 1 gains nothing and loses nothing


Alpha = Callable[[int, float], float]


def alpha_is_right(least: Alpha) -> None:
    """Against closed forms: 1 + a = cost for k = 1, 1 + a + a^2 = cost for k = 2; and by its definition."""
    assert least(1, step_cost(1, 0.3)) == pytest.approx(0.3)
    assert least(2, step_cost(2, 0.1)) == pytest.approx((math.sqrt(1.8) - 1) / 2)
    for k, c in [(3, 0.2), (4, 0.1), (7, 0.5), (12, 0.05)]:
        alpha = least(k, step_cost(k, c))
        assert speedup(alpha, k, c) >= 1.0 - 1e-12
        assert speedup(alpha - 1e-6, k, c) < 1.0
    assert least(3, step_cost(3, 0.0)) == 0.0
    assert least(3, step_cost(3, 1.0)) == pytest.approx(1.0)
    assert least(3, step_cost(3, 1.01)) == math.inf


def test_break_even_alpha() -> None:
    alpha_is_right(break_even_alpha)


@pytest.mark.parametrize(
    "fault",
    [
        lambda k, cost: break_even_alpha(k + 1, cost),
        lambda k, cost: min(break_even_alpha(k, cost), 1.0),  # "never" taken for "if all are accepted"
        lambda k, cost: break_even_alpha(k, cost) + 2e-6,
        lambda k, cost: (cost - 1) / k,  # acceptance that does not compound
    ],
    ids=["length", "never", "late", "linear"],
)
def test_planted_break_even_is_seen(fault: Alpha) -> None:
    with pytest.raises(AssertionError):
        alpha_is_right(fault)


def test_break_even_draft_cost() -> None:
    assert break_even_draft_cost(0.8, 4) == pytest.approx(2.3616 / 4)
    for alpha, k in [(0.3, 1), (0.8, 4), (0.9, 10)]:
        largest = break_even_draft_cost(alpha, k)
        assert speedup(alpha, k, largest) == pytest.approx(1.0, abs=1e-12)
        assert speedup(alpha, k, largest + 1e-6) < 1.0
    assert break_even_draft_cost(0.5, 0) == math.inf
    assert break_even_draft_cost(0.5, 1, rest=1.6) == pytest.approx(-0.1)  # verification alone costs too much


def test_any_length_pays_from_the_draft_cost_on() -> None:
    """Leviathan et al. 2022, corollary 3.9: some k pays if alpha > c, and then by (1 + alpha) / (1 + c) at least."""
    for c in (0.05, 0.2, 0.6):
        assert best_k(c - 0.01, c).k == 0
        assert best_k(c + 0.01, c).speedup >= (1.01 + c) / (1 + c)
        assert min(break_even_alpha(k, step_cost(k, c)) for k in range(1, 33)) == pytest.approx(c)


def test_point_and_curves() -> None:
    costs = cost.Modelled(0.1)
    asked = cost.point(0.8, 4, costs, costs.draft)
    assert asked == pytest.approx(
        (0.8, 4, 3.3616, 1.4, 2.4011428571, (5 + 0.4) / 3.3616, break_even_alpha(4, 1.4), 2.3616 / 4)
    )
    line = cost.over_k(0.8, range(5), costs, costs.draft)
    assert [p.k for p in line] == [0, 1, 2, 3, 4]
    assert line[4] == asked
    assert cost.over_alpha((0.2, 0.8), 4, costs, costs.draft)[1] == asked
    assert cost.point(0.8, 4, costs, lambda _: 0.0).operations_factor == pytest.approx(5 / 3.3616)
