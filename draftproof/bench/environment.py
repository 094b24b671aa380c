"""What a bench runs on: the machine, versions, load and memory. Reads /proc where there is one; knows no model."""

from __future__ import annotations

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_LIBRARIES = ("draftproof", "numpy", "openvino", "tokenizers")
_PROC = Path("/proc/self")


def environment(threads: int) -> dict[str, Any]:
    """`threads` are the model's. `load` is averaged over 1, 5 and 15 minutes."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "peak memory": "of each run" if reset_peak() else "of the process so far",
        "load": load(),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return list(os.getloadavg())


def reset_peak() -> bool:
    """Forget the peak of before. False where the system does not offer that: peaks are then those of the process."""
    try:
        (_PROC / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Most resident memory since the last reset."""
    try:
        status = (_PROC / "status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
