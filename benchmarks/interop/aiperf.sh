#!/usr/bin/env bash
# aiperf against chat completions: eight synthetic prompts, streamed, two at a time.
source "$(dirname "$0")/common.sh"
environment aiperf aiperf
serve
# offline it looks for every tokenizer in the hub's cache, a local folder included
env -u HF_HUB_OFFLINE "$BIN/aiperf" profile --model smollm2 --url "$URL" --endpoint-type chat --streaming \
  --tokenizer "$TOKENIZER" --request-count 8 --concurrency 2 --synthetic-input-tokens-mean 40 --output-tokens-mean 24 --random-seed 1 \
  --ui none --artifact-dir "$WORK/aiperf"
"$PYTHON" - "$WORK/aiperf" <<'END'
import json, pathlib, sys
(path,) = pathlib.Path(sys.argv[1]).rglob("profile_export_aiperf.json")
told = json.loads(path.read_text())
print({name: told[name]["avg"] for name in ("request_count", "time_to_first_token", "output_token_throughput")})
assert told["request_count"]["avg"] == 8
assert not told.get("error_summary")
END
echo "aiperf: passed"
