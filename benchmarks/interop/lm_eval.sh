#!/usr/bin/env bash
# lm-eval's local-completions: log-likelihoods of two endings, by echo with logprobs. The task is our own, so that
# nothing is fetched.
source "$(dirname "$0")/common.sh"
environment lmeval 'lm_eval[api]' transformers
serve
cat >"$WORK/questions.jsonl" <<'END'
{"question": "The capital of France is", "choices": ["Paris", "seven"], "answer": 0}
{"question": "Two plus two is", "choices": ["purple", "four"], "answer": 1}
{"question": "Fish live in", "choices": ["water", "paper"], "answer": 0}
END
cat >"$WORK/endings.yaml" <<END
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: $WORK/questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
END
"$BIN/lm_eval" run --model local-completions --tasks endings --include_path "$WORK" --output_path "$WORK/out" \
  --model_args "model=smollm2,base_url=$URL/v1/completions,tokenizer=$TOKENIZER,tokenizer_backend=huggingface"
"$PYTHON" - "$WORK/out" <<'END'
import json, pathlib, sys
(path,) = pathlib.Path(sys.argv[1]).rglob("results_*.json")
told = json.loads(path.read_text())["results"]["endings"]
print(told)
assert told["acc,none"] > 0.5
END
echo "lm-eval: passed"
