"""What an adapter of an engine is, and which there are. A module is loaded only when its engine is asked for.

Knows no engine, no world and no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Protocol

from draftproof.verify.contract import EngineUnderTest
from draftproof.verify.plan import VerifyError


class Form(StrEnum):
    """The files that an engine loads; the toys are written in each."""

    HF = "hf"
    GGUF = "gguf"
    OPENVINO = "openvino"


class Promise(StrEnum):
    """What the engine's makers say of a mode."""

    EXACT = "exact"  # speculation keeps the target's law
    APPROXIMATE = "approximate"  # documented to change it: a control that must come out as not exact
    PLAIN = "plain"  # no speculation: a control that must come out as exact


class Drafting(StrEnum):
    """Where the drafts of a mode come from."""

    MODEL = "model"  # a draft model, whose law is known
    LOOKUP = "lookup"  # earlier text
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run an engine. `what` is a sentence for people."""

    what: str
    drafting: Drafting
    promise: Promise = Promise.EXACT


@dataclass(frozen=True, slots=True)
class Setup:
    """What an adapter needs to start its engine, or to find it.

    `target` and `draft` are paths or names in the adapter's form; `draft` may be "" where the mode needs none.
    `home` holds prepared environments and logs, a folder an engine. `k` is for engines that fix the draft length when
    they start. `url` "" means that the adapter starts the engine itself. `options` are the adapter's own words.
    """

    mode: str
    target: str
    draft: str
    home: Path
    k: int = 3
    url: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class Adapter(Protocol):
    """One engine. `packages` are what pip installs into its own environment; () if there is none to prepare."""

    @property
    def name(self) -> str: ...
    @property
    def form(self) -> Form: ...
    @property
    def modes(self) -> Mapping[str, Mode]: ...
    @property
    def packages(self) -> tuple[str, ...]: ...
    def missing(self, setup: Setup) -> str:
        """What is not there, in one line with the command that installs it; "" if all is."""
        ...

    def engine(self, setup: Setup) -> EngineUnderTest:
        """The engine, started.

        Raises:
            EngineError: it does not start, or is not what was asked for.
        """
        ...


MODULES = {  # name on the command line -> module here that holds its ADAPTER
    "transformers": "transformers",
    "genai": "genai",
    "llama-server": "llama_server",
    "vllm": "vllm",
    "sglang": "sglang",
    "openai": "openai",
}


def adapter(name: str) -> Adapter:
    """The adapter of a name, or of a user's module, which has a dot in its name.

    Raises:
        VerifyError: there is none.
    """
    if name not in MODULES and "." not in name:
        raise VerifyError(f"no engine is called {name!r}: give draftproof, {', '.join(MODULES)}, or a module of yours")
    module = f"{__package__}.{MODULES[name]}" if name in MODULES else name
    try:
        found: Adapter = import_module(module).ADAPTER
    except (AttributeError, ModuleNotFoundError) as error:
        raise VerifyError(f"{module} has no ADAPTER that could be loaded: {error}") from error
    return found


def started(name: str, setup: Setup) -> EngineUnderTest:
    """The engine of that name in that setup.

    Raises:
        VerifyError: no such engine or mode, or something is not installed.
        EngineError: it does not start.
    """
    chosen = adapter(name)
    if setup.mode not in chosen.modes:
        raise VerifyError(f"{name} has no mode {setup.mode!r}: give one of {', '.join(chosen.modes)}")
    if missing := chosen.missing(setup):
        raise VerifyError(missing)
    return chosen.engine(setup)
