"""OpenVINO GenAI, prompt lookup, greedy: an internal check fails once a pass has more tokens than it may.

Usage: python genai_lookup_full_pass.py MODEL_DIR (any OpenVINO model). Controls: room for all tokens, no speculation.
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai

DEVICE = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPTS = [[4, 5, 6]] * 16


def outcome(room, lookup):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens = 1, room
    more = {"prompt_lookup": True} if lookup else {}
    engine = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {**DEVICE, **more})
    config = genai.GenerationConfig(max_new_tokens=6, ignore_eos=True)
    if lookup:
        config.num_assistant_tokens, config.max_ngram_size = 3, 2
    prompts = [ov.Tensor(np.array([p], dtype=np.int64)) for p in PROMPTS]
    try:
        answers = engine.generate(prompts, [config] * len(prompts))
    except RuntimeError as error:
        return str(error).split(" failed")[0]
    return f"{len({tuple(answer.m_generation_ids[0]) for answer in answers})} different text(s) of {len(PROMPTS)} alike"


for room, lookup in ((16, False), (1024, True), (16, True)):
    print(f"room for {room} tokens, prompt lookup {lookup}: {outcome(room, lookup)}")
