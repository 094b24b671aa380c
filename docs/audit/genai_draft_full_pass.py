"""OpenVINO GenAI, draft model, greedy: texts change once a pass has more tokens than max_num_batched_tokens.

Usage: python genai_draft_full_pass.py TARGET_DIR DRAFT_DIR (any two OpenVINO models with the same tokenizer). Greedy
decoding has one answer, whatever the scheduler does. Controls: room for all tokens, and no draft model.
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai

target, draft = sys.argv[1:3]
DEVICE = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPTS = [[4 + i % 9, 5 + i % 7, 6 + i % 5, 4 + i % 9, 5 + i % 7] for i in range(40)]


def texts(room, speculate):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens = 1, room
    more = {"draft_model": genai.draft_model(draft, "CPU", **DEVICE)} if speculate else {}
    engine = genai.ContinuousBatchingPipeline(target, scheduler, "CPU", {**DEVICE, **more})
    config = genai.GenerationConfig(max_new_tokens=8, ignore_eos=True)
    if speculate:
        config.num_assistant_tokens = 3
    prompts = [ov.Tensor(np.array([p], dtype=np.int64)) for p in PROMPTS]
    return [answer.m_generation_ids[0] for answer in engine.generate(prompts, [config] * len(prompts))]


wanted = texts(4096, False)
for room, speculate in ((64, False), (4096, True), (64, True)):
    wrong = [(a, b) for a, b in zip(wanted, texts(room, speculate), strict=True) if a != b]
    print(f"room for {room} tokens, draft model {speculate}: {len(wrong)} of {len(PROMPTS)} texts differ", *wrong[:2])
