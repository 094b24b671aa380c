"""Measures what steps cost on this machine, once for a model, a draft and a configuration, and keeps the result.

Passes of the target are timed by their rows, drafting and the rest by running the engine on made-up tokens: costs do
not depend on what the tokens say. Knows engines by their public names, and no policy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter

from draftproof.engine import Engine
from draftproof.length.profile import Line, Point, Profile, from_json
from draftproof.model.fetch import Progress, cache_dir
from draftproof.types import Chunk, Output, SamplingParams
from draftproof.watch import Seconds

_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SEQUENCE_ROWS = 8  # rows of one sequence, at most
_PROMPT = 32  # tokens, where the engine runs
_BATCHES, _LENGTHS = (1, 4, 16), (1, 4)
_REPEATS, _STEPS = 5, 9  # of a pass, and of a run of the engine
_SPARE = 0.5  # load beyond the cores that does not count as busy


def profile(engine: Engine, progress: Progress, fresh: bool = False) -> Profile:
    """From the cache unless it must be `fresh`, or measured now, which takes seconds. The engine must be idle."""
    path = cache_dir() / "profiles" / f"{_key(engine)}.json"
    if not fresh:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return from_json(json.loads(path.read_text(encoding="utf-8"))["profile"])
    busy = os.getloadavg()[0] > _cores() + _SPARE
    progress("measuring what steps cost on this machine" + (", which is busy: they are not kept" if busy else ""))
    found = measured(engine)
    if not busy:
        _keep(path, {"engine": _told(engine), "profile": found.as_json()})
    return found


def _keep(path: Path, told: object) -> None:
    """A cache that cannot be written only means measuring again."""
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(told, indent=1), encoding="utf-8")
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _told(engine: Engine) -> dict[str, str]:
    machine = {"cpu": _cpu(), "cores": _cores(), "python": platform.python_version(), "running": engine.max_running}
    return {name: str(value) for name, value in {**engine.settings, **machine}.items()}


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(engine: Engine) -> str:
    return hashlib.sha256(json.dumps(_told(engine), sort_keys=True).encode()).hexdigest()[:24]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # elsewhere than on Linux
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def measured(engine: Engine) -> Profile:
    """Raises: ValueError: requests are running."""
    if engine.busy:
        raise ValueError("costs are measured on an idle engine")
    info = engine.target.info
    engine.reset_prefix_cache()  # pages are written to
    verify = _passes(engine)
    batches = [b for b in _BATCHES if b <= engine.max_running and _fits(engine, b * (1 + max(_LENGTHS)))]
    parts = {b: [_step(engine, b, k) for k in _LENGTHS] for b in batches or [1]}
    draft = tuple((b, _line([s.draft for s in found])) for b, found in parts.items())
    other = tuple((b, _line([s.total - s.draft - s.verify for s in found])) for b, found in parts.items())
    return Profile(verify, draft, other, info.min_rows)


def _fits(engine: Engine, rows: int) -> bool:
    info = engine.target.info
    return info.min_rows <= rows <= info.max_rows and len(list(_chunks(engine, rows))) * _pages(engine) <= info.pages


def _pages(engine: Engine) -> int:
    return -(-_SEQUENCE_ROWS // engine.target.info.page_size)


def _chunks(engine: Engine, rows: int) -> Iterator[Chunk]:
    """Sequences of like size, each in pages of its own."""
    count, pages = -(-rows // _SEQUENCE_ROWS), _pages(engine)
    for n in range(count):
        share = rows // count + (n < rows % count)
        yield Chunk(_tokens(engine, share, n), 0, tuple(range(n * pages, (n + 1) * pages)), share)


def _tokens(engine: Engine, count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(engine.target.info.vocab) for _ in range(count))


def _passes(engine: Engine) -> tuple[Point, ...]:
    """All sizes in turn, several times over, because noise comes in spells."""
    sizes = [rows for rows in _ROWS if _fits(engine, rows)]
    passes = [list(_chunks(engine, rows)) for rows in sizes]
    rounds = [[_pass(engine, chunks) for chunks in passes] for _ in range(1 + _REPEATS)]
    return _rising([(float(rows), median(seen)) for rows, *seen in zip(sizes, *rounds[1:], strict=True)])


def _pass(engine: Engine, chunks: Sequence[Chunk]) -> float:
    """Seconds of a pass; what it writes lies in pages that nobody holds."""
    began = perf_counter()
    engine.target.forward(chunks)
    return perf_counter() - began


def _step(engine: Engine, batch: int, k: int) -> Seconds:
    """The median of each part in a few steps that ask for k tokens, once the prompts are read."""
    params = SamplingParams(max_tokens=(_STEPS + 2) * (k + 1), ignore_eos=True, seed=1, k=k)
    outputs = engine.generate([_tokens(engine, _PROMPT, n) for n in range(batch)], params)
    return Seconds(*map(median, zip(*_steps(outputs), strict=True)))


def _steps(outputs: Sequence[Output]) -> Sequence[Seconds]:
    steps = [s for s in outputs[0].steps if s.emitted]
    return [s.seconds for s in steps[2:-1]] if len(steps) > 3 else [s.seconds for s in steps]


def _line(seconds: Sequence[float]) -> Line:
    """Through the two lengths; neither part falls below zero."""
    first, last = _LENGTHS
    each = max((seconds[1] - seconds[0]) / (last - first), 0.0)
    return Line(max(seconds[0] - first * each, 0.0), each)


def _rising(points: Sequence[Point]) -> tuple[Point, ...]:
    """More rows never cost less: what is above a larger pass is noise, which mostly adds."""
    least, found = math.inf, list[Point]()
    for rows, seconds in reversed(points):
        least = min(least, seconds)
        found.append((rows, least))
    return tuple(reversed(found))
