"""Virtual environments of engines that do not live in ours: where they are, and one command that makes them.

Knows no engine: a name and what pip installs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from draftproof.verify.plan import VerifyError


def python(home: Path, name: str) -> Path:
    """The interpreter of the engine's own environment, whether it is there or not."""
    return home / name / "venv" / "bin" / "python"


def command(name: str) -> str:
    return f"draftproof audit --prepare {name}"


def missing(home: Path, name: str, module: str) -> str:
    """One line with the fix if neither our environment nor one prepared holds `module`; "" if one does."""
    if find_spec(module) is not None or python(home, name).exists():
        return ""
    return f"{name} is not installed: run {command(name)}"


def interpreter(home: Path, name: str, module: str) -> Path:
    """The prepared environment's interpreter where there is one, else ours, which must hold `module`."""
    own = python(home, name)
    return own if own.exists() or find_spec(module) is None else Path(sys.executable)


def prepare(home: Path, name: str, packages: Sequence[str]) -> Path:
    """Make the engine's environment and install `packages` (pip's own words, options included). Returns its python.

    Raises:
        VerifyError: there is nothing to install, or pip fails; its output is in the named log.
    """
    if not packages:
        raise VerifyError(f"{name} has no environment to prepare: see docs/audit.md for how to start it")
    folder = home / name
    folder.mkdir(parents=True, exist_ok=True)
    own, log = python(home, name), folder / "prepare.log"
    with log.open("w", encoding="utf-8") as out:
        steps = ([sys.executable, "-m", "venv", str(folder / "venv")], [str(own), "-m", "pip", "install", *packages])
        for step in steps:
            if subprocess.run(step, stdout=out, stderr=subprocess.STDOUT, check=False).returncode:
                raise VerifyError(f"{name} could not be prepared, see {log}")
    return own
