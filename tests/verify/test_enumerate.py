"""The enumerator: symbolic uniforms, races, replay, and what it must refuse."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from draftproof.verify import enumerate as enumerator
from draftproof.verify.enumerate import EnumerationError, Fixed, PathNoise, joint_law, law_of, mean_of, race_joint

WEIGHTS = np.array([0.1, 0.0, 0.2, 0.3, 0.4])


class Plain(NamedTuple):
    weights: tuple[float, ...]

    def dense(self) -> np.ndarray:
        return np.array(self.weights)


def inverse(weights: np.ndarray, u: Any) -> int:
    return int(np.searchsorted(np.cumsum(weights), u, side="right"))


def test_it_imports_nothing_of_the_engine() -> None:
    tree = ast.walk(ast.parse(Path(enumerator.__file__).read_text()))
    names = [
        n.module if isinstance(n, ast.ImportFrom) else a.name for n in tree if hasattr(n, "names") for a in n.names
    ]
    assert not [name for name in names if name and name.startswith("draftproof")]


COMPARISONS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "u < .3": (lambda u: u < 0.3, 0.3),
    "u <= .3": (lambda u: u <= 0.3, 0.3),
    "u > .3": (lambda u: u > 0.3, 0.7),
    "u >= .3": (lambda u: u >= 0.3, 0.7),
    "float64 < u": (lambda u: np.float64(0.3) < u, 0.7),
    "float64 >= u": (lambda u: np.float64(0.3) >= u, 0.3),
    "float32 * u": (lambda u: np.float32(0.5) * u < 0.25, 0.5),
    "u * int64": (lambda u: u * np.int64(2) < np.float64(0.5), 0.25),
    "u / 2": (lambda u: u / 2 < 0.1, 0.2),
    "1 - u": (lambda u: 1 - u < 0.3, 0.3),
    "2 * (1 - u) - 1": (lambda u: 2 * (1 - u) - 1 > 0.5, 0.25),
    "u + 1, 1 + u": (lambda u: (u + 1 < 1.3) and (1 + u > 1.1), 0.2),
    "0 * u": (lambda u: 0.0 * u < 0.0, 0.0),
    "0 * u < 1": (lambda u: 0.0 * u < 1.0, 1.0),
    "beyond the ends": (lambda u: (u < 0) or (u >= 1), 0.0),
    "the same uniform twice": (lambda u: (u < 0.5) and (u < 0.2 or u > 0.4), 0.3),
    "with itself": (lambda u: 2 * u < 1 - u, 1 / 3),
    "array": (lambda u: bool((np.cumsum(WEIGHTS) <= u).sum() == 3), 0.3),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_has_its_probability(name: str) -> None:
    test, probability = COMPARISONS[name]
    law = law_of(lambda noise: bool(test(noise.uniform("key"))))
    assert law.get(True, 0.0) == pytest.approx(probability, abs=1e-15)
    assert sum(law.values()) == pytest.approx(1, abs=1e-15)


def test_inverse_cdf_gives_the_law() -> None:
    law = law_of(lambda noise: inverse(WEIGHTS, noise.uniform(0)))
    assert law == pytest.approx({0: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, abs=1e-15)
    assert mean_of(lambda noise: inverse(WEIGHTS, noise.uniform(0))) == pytest.approx(2.9)


def test_equal_keys_are_one_uniform_and_others_are_independent() -> None:
    def pair(first: int, second: int) -> dict[tuple[int, int], float]:
        return law_of(lambda n: (inverse(WEIGHTS, n.uniform(first)), inverse(WEIGHTS[::-1], n.uniform(second))))

    assert len(pair(0, 1)) == 16
    assert pair(0, 1)[4, 0] == pytest.approx(0.16)
    assert pair(0, 0) == pytest.approx(
        {(0, 0): 0.1, (2, 0): 0.2, (3, 0): 0.1, (3, 1): 0.2, (4, 1): 0.1, (4, 2): 0.2, (4, 4): 0.1}
    )


def test_samples_belong_to_positions_and_uniforms_to_origins() -> None:
    def equal(first: Callable[[PathNoise], Any], second: Callable[[PathNoise], Any]) -> float:
        return law_of(lambda n: (first(n) < 0.5) == (second(n) < 0.5)).get(True, 0.0)

    assert equal(lambda n: n.at(1).sample(2), lambda n: n.at(3).sample(0)) == 1
    assert equal(lambda n: n.at(1).uniform(2), lambda n: n.at(3).uniform(0)) == 0.5
    assert equal(lambda n: n.at(1).uniform(2, 1), lambda n: n.at(1).uniform(2, 1)) == 1
    assert equal(lambda n: n.uniform(2), lambda n: n.sample(2)) == 0.5


@pytest.mark.parametrize("zeros", [False, True], ids=["full support", "zeros"])
def test_race_joint_has_both_laws_as_margins(zeros: bool) -> None:
    rng = np.random.default_rng(14)
    for vocab in (1, 2, 3, 5, 8):
        for _ in range(50):
            p, q = rng.dirichlet(np.full(vocab, 0.5), size=2)
            if zeros and vocab > 1:
                p[rng.integers(vocab)] = q[rng.integers(vocab)] = 0.0
                p, q = p / p.sum(), q / q.sum()
            joint = race_joint(p, q)
            assert joint.sum(axis=1) == pytest.approx(p, abs=1e-14)
            assert joint.sum(axis=0) == pytest.approx(q, abs=1e-14)
            assert joint == pytest.approx(race_joint(q, p).T, abs=1e-14)


def test_race_joint_of_two_tokens_by_hand() -> None:
    """p = [1/2, 1/2], q = [1/4, 3/4]: token 0 wins both with 1 / (1 + 3)."""
    assert race_joint(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == pytest.approx(np.array([[0.25, 0.25], [0, 0.5]]))
    assert race_joint(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(np.array([[0, 0], [1, 0]]))


def test_a_race_answers_two_laws_and_remembers_them() -> None:
    p, q, r = Plain((0.5, 0.3, 0.2)), Plain((0.1, 0.3, 0.6)), Plain((1.0, 0.0, 0.0))

    def run(noise: PathNoise) -> tuple[int, int]:
        first, second = noise.race(1).winner(p), noise.at(1).race(0).winner(q)
        assert (first, second) == (noise.race(1).winner(p), noise.race(1).winner(q))
        return first, second

    joint = race_joint(p.dense(), q.dense())
    law = law_of(run)
    assert [[law.get((x, y), 0.0) for y in range(3)] for x in range(3)] == pytest.approx(joint)
    apart = law_of(lambda noise: (noise.race(0).winner(p), noise.race(1).winner(q)))
    assert apart[0, 0] == pytest.approx(0.05)
    with pytest.raises(EnumerationError, match="three different laws"):
        law_of(lambda noise: (run(noise), noise.race(1).winner(r)))


HIDDEN: dict[str, Callable[[PathNoise], Any]] = {
    "has no value": lambda noise: math.log(noise.uniform(0)),
    "compare with < or >": lambda noise: noise.uniform(0) == 0.5,
    "compared with NaN": lambda noise: noise.uniform(0) < float("nan") - 1,
    "two uniforms were compared": lambda noise: noise.uniform(0) < noise.uniform(1),
}


@pytest.mark.parametrize("message", HIDDEN)
def test_what_cannot_be_followed_is_refused(message: str) -> None:
    with pytest.raises(EnumerationError, match=message):
        law_of(HIDDEN[message])


def test_state_between_calls_is_noticed() -> None:
    calls = itertools.count(1)
    with pytest.raises(EnumerationError, match="keeps state"):
        law_of(lambda noise: bool(noise.uniform(0) < 1 / (1 + next(calls))))
    calls = itertools.count()
    with pytest.raises(EnumerationError, match="keeps state"):
        law_of(lambda noise: next(calls) == 0 and bool(noise.uniform(0) < 0.5))


def test_an_endless_number_of_paths_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumerator, "_PATHS", 10)
    with pytest.raises(EnumerationError, match="more than 10 paths"):
        law_of(lambda noise: tuple(bool(noise.uniform(i) < 0.5) for i in range(4)))


@pytest.mark.parametrize("shared", [False, True])
def test_joint_law_of_steps_that_emit_one_or_two_tokens(shared: bool) -> None:
    def step(prefix: tuple[int, ...], origin: int, noise: PathNoise) -> tuple[int, ...]:
        assert origin == len(prefix)
        first = int(noise.uniform(0) < 0.25)
        return (first, 1) if first else (first,)

    wanted = {(0, 0, 0): 27 / 64, (0, 0, 1): 9 / 64, (0, 1, 1): 3 / 16, (1, 1, 0): 3 / 16, (1, 1, 1): 1 / 16}
    assert joint_law(step, 3, shared) == pytest.approx(wanted)


def test_a_step_that_emits_nothing_is_refused() -> None:
    with pytest.raises(EnumerationError, match="emitted nothing"):
        joint_law(lambda prefix, origin, noise: (), 2)


def test_fixed_noise_hands_out_its_numbers_in_order() -> None:
    noise = Fixed(0.0, 0.5, 0.9)
    assert [noise.uniform(3, 1), noise.sample(0), noise.uniform(3, 1), noise.uniform(4, 1)] == [0.0, 0.5, 0.0, 0.9]
    assert noise.uniform(5, 1) == 0.9
