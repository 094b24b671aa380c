#!/usr/bin/env bash
# The openai client, in an environment of its own: every endpoint that it knows and this server has.
source "$(dirname "$0")/common.sh"
environment openai openai
serve
"$BIN/python" - "$URL" <<'END'
import sys
from openai import OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
print("models:", [model.id for model in client.models.list()])
whole = client.completions.create(model="smollm2", prompt="The sea is", max_tokens=16, seed=1, logprobs=2)
print("completion:", whole.choices[0].text, whole.usage)
chunks = client.completions.create(model="smollm2", prompt="The sea is", max_tokens=16, seed=1, stream=True)
streamed = "".join(chunk.choices[0].text for chunk in chunks)
assert streamed == whole.choices[0].text, streamed
messages = [{"role": "user", "content": "Why is the sky blue?"}]
chat = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=16, n=2, stop=["."])
print("chat:", [choice.message.content for choice in chat.choices])
assert len({choice.index for choice in chat.choices}) == 2
END
echo "openai: passed"
