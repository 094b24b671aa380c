#!/usr/bin/env bash
# guidellm against chat completions: eight of our own prompts, two at a time.
source "$(dirname "$0")/common.sh"
environment guidellm guidellm
serve
"$PYTHON" - >"$WORK/prompts.jsonl" <<'END'
import json
for topic in ("rain", "bread", "the moon", "trains", "a clock", "glass", "winter", "salt"):
    print(json.dumps({"prompt": f"Tell me about {topic}.", "output_tokens_count": 24}))
END
"$BIN/guidellm" run --disable-progress \
  --backend "kind=openai_http,target=$URL,model=smollm2" \
  --tokenizer "kind=hf_auto,model=$TOKENIZER" \
  --profile kind=concurrent,streams=2 --constraint kind=max_requests,count=8 \
  --data "kind=json_file,path=$WORK/prompts.jsonl" \
  --output "kind=json,path=$WORK/report.json" --output kind=console
"$PYTHON" - "$WORK/report.json" <<'END'
import json, sys
(run,) = json.load(open(sys.argv[1]))["benchmarks"]
done = run["metrics"]["request_totals"]
print(done)
assert (done["successful"], done["errored"]) == (8, 0)
END
echo "guidellm: passed"
