"""The example of docs/add_a_check.md, run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "add_a_check.md"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_example_finds_its_fault_and_passes_without_it() -> None:
    example = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len([line for line in example.splitlines() if line.strip()]) < 30
    faulty = run(example)
    assert faulty.returncode == 1, faulty.stderr
    assert "rules/joint fails" in faulty.stdout
    residual = 'pick((p - q.probs).clip(0), noise.uniform(i, "next"))'
    honest = example.replace('pick(p, noise.uniform(i, "next"))', residual)
    honest = honest.replace("        p = rows[i].probs\n", "        p = rows[i].probs\n        assert q.probs[x] > 0\n")
    assert honest != example
    done = run(honest)
    assert done.returncode == 0, done.stdout + done.stderr
