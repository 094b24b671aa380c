"""Accept rules that are wrong on trees alone."""

from __future__ import annotations

from typing import Any

from draftproof.verify.mutants.laws import Law
from draftproof.verify.mutants.rules import Rules


class SiblingsJudgedByTarget(Rules):
    """A later sibling is judged by p, not by what its elder siblings left of it."""

    def judged_by(self, p: Law, left: list[float]) -> list[float]:
        del left
        return p.p


class SiblingsLeaveUnnormalised(Rules):
    def left_over(self, rest: list[float]) -> list[float]:
        return rest


class SiblingsShareUniform(Rules):
    """One accept uniform for all children of a node."""

    def tree_key(self, depth: int, node: int) -> int:
        del node
        return depth


class OneSampleAPath(Rules):
    """The target's sample of the first position judges the whole path."""

    def sample_at(self, name: str, p: Law, noise: Any, depth: int) -> int:
        del depth
        return super().sample_at(name, p, noise, 0)
