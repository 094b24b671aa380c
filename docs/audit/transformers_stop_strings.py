"""Hugging Face transformers: stop_strings raise with a draft model, and are passed over inside a looked-up block.

Usage: python transformers_stop_strings.py TARGET_DIR DRAFT_DIR PROMPT STOP (any two causal models with one tokenizer; a
prompt that the model goes on repeating, and a stop string in the repetition). Control: no speculation.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

target, draft = (AutoModelForCausalLM.from_pretrained(folder) for folder in sys.argv[1:3])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt, stop = sys.argv[3:5]
ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
for name, more in (
    ("no speculation", {}),
    ("prompt lookup", {"prompt_lookup_num_tokens": 4}),
    ("draft model", {"assistant_model": draft}),
):
    try:
        out = target.generate(ids, max_new_tokens=12, do_sample=False, stop_strings=[stop], tokenizer=tokenizer, **more)
        print(f"{name}: {tokenizer.decode(out[0, ids.shape[1] :])!r}")
    except ValueError as error:
        print(f"{name}: ValueError: {error}")
