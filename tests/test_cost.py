"""The analytical cost model against known values (those of the design's test vectors)."""

from __future__ import annotations

import pytest

from draftproof.cost import best_k, expected_tokens, speedup, step_cost


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


@pytest.mark.parametrize(("alpha", "k", "c"), [(-0.1, 1, 0.1), (1.1, 1, 0.1), (0.5, -1, 0.1), (0.5, 1, -0.1)])
def test_nonsense_is_refused(alpha: float, k: int, c: float) -> None:
    with pytest.raises(ValueError, match="got"):
        speedup(alpha, k, c)
