"""OpenVINO GenAI, draft model, do_sample: with top_k=1 every step has one choice, so both texts must be one.

Usage: python genai_draft_sampling.py TARGET_DIR DRAFT_DIR (any two OpenVINO models with the same tokenizer). Prints the
texts that differ. Greedy decoding (do_sample=False) over the same prompts is the control.
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai

target, draft = sys.argv[1:3]
DEVICE = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def pipeline(**more):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = 1, False
    return genai.ContinuousBatchingPipeline(target, scheduler, "CPU", {**DEVICE, **more})


def texts(engine, prompts, k, sample):
    config = genai.GenerationConfig(max_new_tokens=12, ignore_eos=True, do_sample=sample, rng_seed=1)
    config.top_k = 1 if sample else config.top_k
    if k:
        config.num_assistant_tokens = k
    asked = [ov.Tensor(np.array([p], dtype=np.int64)) for p in prompts]
    return [engine.generate([one], [config])[0].m_generation_ids[0] for one in asked]


prompts = [[4 + i, 5 + i % 7, 6 + i % 5] for i in range(12)]
plain, fast = pipeline(), pipeline(draft_model=genai.draft_model(draft, "CPU", **DEVICE))
for sample in (False, True):
    pairs = list(zip(texts(plain, prompts, 0, sample), texts(fast, prompts, 3, sample), strict=True))
    wrong = [(a, b) for a, b in pairs if a != b]
    print(f"do_sample={sample}: {len(wrong)} of {len(pairs)} texts differ", *wrong[:2], sep="\n  ")
