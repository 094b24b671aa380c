"""Runs in an engine's own interpreter: reads requests from stdin, a JSON line each, and answers on stdout.

`python lines.py MODULE.py` calls `make(setup)` of that file, which returns what the engine says of itself and a
function that answers jobs. Knows nothing of draftproof, which need not be installed there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the log, not between the answers
    make = runpy.run_path(sys.argv[1])["make"]
    sample = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if sample is None:
                answer, sample = make(request)
            else:
                answer = sample(request)
        except Exception as error:  # noqa: BLE001  the other side says what became of the engine
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
