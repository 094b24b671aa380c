"""Everything that touches the insides of transformers: its exchangeable attention and where hidden states come by.

`tests/model/test_torch_hooks.py` says what is relied on. transformers' caches are not used at all: a pass is fed
without one, and K and V of its rows come by at the exchanged attention. Knows nothing of pages, chunks or files.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from draftproof.model.checkpoint import ModelError
from draftproof.model.torch_pages import How

FINAL_NORM = -1
_NAME = "draftproof"
_APART = "draftproof_apart"
_LISTENER = "draftproof_listener"

Attend = Callable[[int, Tensor, Tensor, Tensor, How], Tensor]  # layer; q, k, v [rows, heads, width]; out as q


@dataclass(slots=True)
class _Listener:
    """What the modules of one model have in common: whom they call, and what came by."""

    attend: Attend
    states: dict[int, Tensor] = field(default_factory=dict)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention: tensors [1, heads, rows, width] to [1, rows, heads, width]."""
    odd = [name for name in ("position_bias", "head_mask") if more.get(name) is not None]
    odd += ["attention_mask"] * (attention_mask is not None)
    if odd or more.get("is_causal") is False:
        raise ModelError(f"its attention uses {odd[0] if odd else 'no causal mask'}, which this backend does not have")
    window = sliding_window or getattr(module, "sliding_window", None) or 0
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = How(scale, window, softcap or 0.0, None if s_aux is None else s_aux.detach())
    listener: _Listener = getattr(module, _LISTENER)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return listener.attend(int(module.layer_idx), q, k, v, how)[None], None


AttentionInterface.register(_NAME, _attention)
AttentionInterface.register(_APART, torch.compiler.disable(_attention))  # compiled models call ours between their parts


class Decoder:
    """A causal model of transformers whose attention is ours. `layers`: hidden states to hand out."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self.model, self._layers, self._attention = model, tuple(layers), _NAME
        self._listener = _Listener(_nowhere)
        for module in model.modules():  # which of them attends is the model's business
            setattr(module, _LISTENER, self._listener)
        self._few = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._hook()
        model.set_attn_implementation(_NAME)

    def compile(self) -> None:
        """From here on all but attention goes through torch.compile, for any number of rows."""
        self._attention = _APART
        self.model.set_attn_implementation(_APART)
        self.model.forward = torch.compile(self.model.forward, dynamic=True)

    @property
    def config(self) -> Any:
        return self.model.config.get_text_config()

    @torch.inference_mode()
    def run(self, tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Attend) -> tuple[Tensor, list[Tensor]]:
        """Logits of the rows `wanted` [wanted, vocab], and states [rows, width] in the order of `layers`."""
        self._listener.attend = attend
        few = {"logits_to_keep": wanted} if self._few else {}
        try:
            out = self.model(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **few)
        finally:
            self._listener.attend = _nowhere
        logits = out.logits[0] if self._few else out.logits[0, wanted]
        return logits, [self._listener.states[layer] for layer in self._layers]

    @torch.inference_mode()
    def unpaged(self, tokens: Tensor) -> Tensor:
        """Logits [tokens, vocab] of transformers' own attention: what a paged pass must agree with."""
        self.model.set_attn_implementation("eager")
        try:
            logits: Tensor = self.model(input_ids=tokens[None], use_cache=False).logits[0]
        finally:
            self.model.set_attn_implementation(self._attention)
        return logits

    def _hook(self) -> None:
        base, states = self.model.base_model, self._listener.states
        blocks = _blocks(base, self.config.num_hidden_layers) if set(self._layers) - {FINAL_NORM} else ()
        for layer in self._layers:
            if layer != FINAL_NORM and not 0 <= layer < len(blocks):
                raise ModelError(f"there is no layer {layer} to hand out the state of: it has {len(blocks)}")
            module = base if layer == FINAL_NORM else blocks[layer]
            module.register_forward_hook(_keep(states, layer))


def _nowhere(*_: Any) -> Tensor:
    raise RuntimeError("attention outside of a pass")


def _keep(states: dict[int, Tensor], layer: int) -> Callable[[nn.Module, Any, Any], None]:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        state = output if layer != FINAL_NORM and torch.is_tensor(output) else output[0]
        states[layer] = state[0]

    return hook


def _blocks(base: nn.Module, count: int) -> Sequence[nn.Module]:
    for module in base.modules():
        if type(module) is nn.ModuleList and len(module) == count:
            return list(module)
    raise ModelError("its layers do not stand in one list: hidden states cannot be handed out")


def odd_layers(config: Any) -> list[str]:
    """Kinds of layers that are neither plain nor windowed attention: recurrent, convolutions, other masks."""
    return sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"})


def missing_windows(config: Any, windows: Sequence[int]) -> bool:
    """Whether the configuration speaks of windows that its attention did not ask for."""
    size = getattr(config, "sliding_window", None)
    if not size or getattr(config, "use_sliding_window", True) is False:
        return False
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return not any(windows)
    return any(kind == "sliding_attention" and not w for kind, w in zip(kinds, windows, strict=False))


def context(config: Any) -> int:
    """Most tokens a sequence may have; 0 if unknown. Where rotary frequencies change with the length of a text, up to
    where they do: rows computed before would have to be computed anew."""
    most = int(getattr(config, "max_position_embeddings", None) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    sections = [s for s in [rope, *rope.values()] if isinstance(s, dict) and s.get("rope_type")]
    for section in sections:
        if section["rope_type"] in {"dynamic", "longrope"}:
            most = min(most, int(section.get("original_max_position_embeddings") or most))
    return most
