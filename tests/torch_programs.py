"""Random passes over sequences that are rolled back, and what transformers says of the same texts. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_toys as toys

from draftproof.model.base import ModelInfo
from draftproof.model.torch import TYPES, TorchModel, TorchOptions
from draftproof.types import Chunk

PAGES, SEQUENCES, NEAR = 40, 4, 2e-4
INFO = ModelInfo("toy", 0, toys.CONTEXT, 0, 0)


def target(name: str, precision: str = "f32", **options: Any) -> TorchModel:
    model = toys.architecture(name).to(TYPES[precision])
    return TorchModel(model, INFO, TorchOptions(kv_pages=PAGES, page_size=8, **options))


def reference(name: str) -> Callable[[list[int]], np.ndarray]:
    model = toys.architecture(name)
    model.set_attn_implementation("eager")

    @torch.inference_mode()
    def logits(tokens: list[int]) -> np.ndarray:
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()

    return logits


def program(model: TorchModel, expected: Callable[[list[int]], np.ndarray], seed: int, passes: int = 8) -> float:
    """Random passes over sequences that are rolled back by random lengths; the largest difference of any row."""
    rng, size, worst = np.random.default_rng(seed), model.info.page_size, 0.0
    pages = rng.permutation(PAGES).reshape(SEQUENCES, -1)
    texts: list[list[int]] = [[] for _ in range(SEQUENCES)]
    for _ in range(passes):
        chunks = []
        for i in rng.permutation(SEQUENCES)[: rng.integers(1, SEQUENCES + 1)]:
            text = texts[i] = texts[i][: rng.integers(0, len(texts[i]) + 1)] if rng.random() < 0.5 else texts[i]
            most = PAGES // SEQUENCES * size - len(text)
            past, rows = len(text), min(most, int(rng.choice([1, 2, 3, 5, 9, 17])))
            if rows:
                text += [int(t) for t in rng.integers(0, toys.VOCAB, rows)]
                table = tuple(int(p) for p in pages[i][: -(-len(text) // size)])
                chunks.append((i, Chunk(tuple(text[past:]), past, table, int(rng.integers(0, rows + 1)))))
        got = model.forward([c for _, c in chunks]).logits if chunks else np.zeros((0, toys.VOCAB))
        wanted = [expected(texts[i])[len(texts[i]) - c.wanted :] for i, c in chunks]
        want = np.concatenate(wanted) if wanted else got
        assert got.shape == want.shape
        worst = max(worst, float(np.abs(got - want).max(initial=0.0)))
    return worst
