"""llama-server: sampled drafts that are dropped for being short change the law of their first token. Needs it alone.

Usage: python llama_server_min.py LLAMA_SERVER TARGET.gguf DRAFT.gguf. With --spec-draft-sampling probabilistic, a draft
that stops before --spec-draft-n-min tokens (because the draft model grew unsure, --spec-draft-p-min) is thrown away: so
whether its first token counts depends on that token. Prints the share of the likeliest second tokens, with and without.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

SERVER, TARGET, DRAFT = sys.argv[1:4]
URL, COUNT = "http://127.0.0.1:8642", 4000
SAMPLED = ["--spec-draft-sampling", "probabilistic", "--spec-draft-n-max", "3"]
DRAFTING = ["--spec-type", "draft-simple", "-md", DRAFT, *SAMPLED]
DROPPING = [*DRAFTING, "--spec-draft-n-min", "2", "--spec-draft-p-min", "0.25"]


def second(seed):
    more = {
        "prompt": [18, 12, 13, 19],
        "n_predict": 6,
        "temperature": 1.0,
        "samplers": ["temperature"],
        "return_tokens": True,
    }
    asked = urllib.request.Request(URL + "/completion", json.dumps({**more, "seed": seed}).encode())
    return tuple(json.load(urllib.request.urlopen(asked))["tokens"][:2])


for name, options in (("plain", []), ("drafts", DRAFTING), ("short drafts dropped", DROPPING)):
    words = [SERVER, "-m", TARGET, "--port", "8642", "-np", "8", "-c", "2048", "-t", "1", *options]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while subprocess.run(["curl", "-sf", URL + "/health"], capture_output=True, check=False).returncode:
            time.sleep(0.5)
        with ThreadPoolExecutor(8) as pool:
            seen = Counter(pool.map(second, range(COUNT)))
        server.terminate()
    print(f"{name:22}", *(f"{pair}: {n / COUNT:.3f}" for pair, n in sorted(seen.most_common(6))))
