"""Matrix products whose rows do not depend on how many there are, for float32 on a CPU.

PyTorch's own product (MKL) takes other kernels for one to three rows, with other last bits. oneDNN's product over
weights in its own layout gives every row the same bits at any number of rows, but for one row of long products on CPUs
with AVX-512, which it splits: such layers take two rows then. It is faster for two rows and more, and a little slower
for one. It is what torch.compile turns layers into. Knows nothing of any model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROWS = 16  # the number of rows that the layout is chosen for; any other number works


class PackedLinear(nn.Module):
    """A linear layer in oneDNN's layout. `weight` is an empty stand-in that says type and device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight.new_empty(0), persistent=False)
        self.bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        seen = torch.rand(2, self.in_features, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)
        self._pairs = not torch.equal(self._product(seen)[:1], self._product(seen[:1]))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        alone = self._pairs and flat.shape[0] == 1
        out = self._product(flat.expand(2, -1))[:1] if alone else self._product(flat)
        return out.view(*x.shape[:-1], self.out_features)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out


def can_pack(like: Tensor) -> bool:
    """Whether this build of PyTorch has the layout, and the tensor's type and device need it."""
    if like.device.type != "cpu" or like.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack(model: nn.Module) -> None:
    """Replace every linear layer of the model by a packed one, and free its weights if nothing else holds them."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, _detached(child.bias)))
            elif type(child).__name__ == "Conv1D" and child.weight.dim() == 2:  # GPT-2's linear layer, [in, out]
                setattr(parent, name, PackedLinear(child.weight.t(), _detached(child.bias)))


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()
