"""What `model/torch_hooks.py` relies on inside transformers: this file fails first when a new version changes it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_toys as toys  # noqa: E402

from draftproof.model import torch_hooks  # noqa: E402
from draftproof.model.torch_hooks import Decoder, context, missing_windows  # noqa: E402


def test_version_is_one_that_this_was_written_for() -> None:
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    assert (5, 24) <= (major, minor) < (6, 0)


@pytest.mark.parametrize(
    ("name", "window", "softcap", "sinks"),
    [
        ("mistral with windows", [7, 7, 7], 0.0, False),
        ("qwen2 with windows", [0, 7, 7], 0.0, False),
        ("gemma2, softcap and windows", [7, 0, 7], 5.0, False),
        ("gpt-oss, sinks and experts", [7, 0, 7], 0.0, True),
    ],
)
def test_attention_is_told_all_that_matters(name: str, window: list[int], softcap: float, sinks: bool) -> None:
    seen: list[tuple[int, Any]] = []

    def look(layer: int, q: Any, k: Any, v: Any, how: Any) -> Any:
        assert q.shape == (3, 4, 8)
        assert k.shape == v.shape == (3, 2, 8)
        seen.append((layer, how))
        return torch.zeros_like(q)

    ids = torch.arange(3)
    logits, _ = Decoder(toys.architecture(name), ()).run(ids, ids, ids[1:], look)
    assert logits.shape == (2, toys.VOCAB)
    assert [layer for layer, _ in seen] == [0, 1, 2]
    assert [how.window for _, how in seen] == window
    assert all(how.softcap == softcap and (how.sinks is not None) == sinks for _, how in seen)


def test_scale_is_told() -> None:
    scales = []

    def look(layer: int, q: Any, k: Any, v: Any, how: Any) -> Any:
        scales.append(how.scale)
        return torch.zeros_like(q)

    ids = torch.arange(2)
    Decoder(toys.architecture("granite, scaled attention"), ()).run(ids, ids, ids, look)
    assert scales == pytest.approx([0.3] * 3)


def test_models_do_not_see_each_other() -> None:
    """One registered function serves every model: each calls its own listener."""
    first, second = (Decoder(toys.made("llama", seed), ()) for seed in (1, 2))
    heard: list[str] = []

    def listener(name: str) -> Any:
        def look(layer: int, q: Any, *_: Any) -> Any:
            heard.append(name)
            return torch.zeros_like(q)

        return look

    ids = torch.arange(2)
    first.run(ids, ids, ids, listener("first"))
    second.run(ids, ids, ids, listener("second"))
    assert heard == ["first"] * 3 + ["second"] * 3
    with pytest.raises(RuntimeError, match="outside"):
        first.model(input_ids=ids[None], use_cache=False)


def test_windows_that_attention_did_not_ask_for_are_missed() -> None:
    config = toys.architecture("gemma3").config
    assert not missing_windows(config, [7, 0, 7])
    assert missing_windows(config, [7, 0, 0])
    plain = toys.architecture("llama").config
    assert not missing_windows(plain, [0, 0, 0])


def test_context_ends_where_rotary_frequencies_would_change() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 40}
    assert context(toys.made("llama").config) == toys.CONTEXT
    assert context(toys.made("llama", rope_parameters=rope).config) == 40
    assert torch_hooks.context(toys.architecture("gpt2, learned positions").config) == toys.CONTEXT
