"""Trains a head on collected data. Deterministic from the plan; stopped and started again, it ends at the same weights.

Loss: cross-entropy on the target's law renormalised in the draft vocabulary, in the later part half of it and
twice the total variation distance, which is what acceptance is made of (alpha = 1 - TV). The unrolled steps grow with
time.
Optimisers: Muon for matrices (Jordan et al. 2024), AdamW for the gains; the rate falls linearly in the last 60 %.
Knows no engine and no file format but its own snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from draftproof.distill.data import Batch, Target, batches
from draftproof.distill.muon import Muon
from draftproof.distill.net import Cache, HeadNet
from draftproof.model.checkpoint import ModelError
from draftproof.model.headfile import HeadSizes

_WARM, _FALL, _TV_FROM = 0.02, 0.4, 0.5  # parts of the training
_UNROLL_FROM = (0.0, 0.3, 0.55)  # when step 1, 2, 3 is trained as well


@dataclass(frozen=True, slots=True)
class Plan:
    """What decides the weights, beside the data. `steps`: optimiser steps of about `tokens` tokens each."""

    seed: int
    steps: int
    tokens: int = 4096
    rate: float = 2e-3


class Trainer:
    """Args: the paths of the rounds, ids of the draft vocabulary, and the scale of every state channel."""

    def __init__(
        self, plan: Plan, sizes: HeadSizes, target: Target, paths: Sequence[Path], ids: Tensor, scale: Tensor
    ) -> None:
        self.plan, self.target, self._paths = plan, target, list(paths)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.net = HeadNet(sizes).to(self.device)
        self.net.begin(scale, plan.seed)
        self._scale = scale.to(self.device)
        self._embed, self._head = target.embed.to(self.device), target.head[ids].to(self.device)
        matrices = [p for p in self.net.parameters() if p.ndim == 2]
        gains = [p for p in self.net.parameters() if p.ndim == 1]
        self._optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=plan.rate),
            torch.optim.AdamW(gains, lr=plan.rate, weight_decay=0.0),
        ]
        self.step = 0

    def run(self, snapshot: Path, said: Callable[[int, float], None], every: int = 50) -> None:
        """Train to the end of the plan. The snapshot is written each `every` steps, and read if it is there."""
        self._resume(snapshot)
        for n, batch in enumerate(self._all()):
            if n < self.step:
                continue
            if self.step == self.plan.steps:
                break
            loss = self._one(batch)
            self.step += 1
            said(self.step, loss)
            if self.step % every == 0 or self.step == self.plan.steps:
                self._keep(snapshot)

    def _all(self) -> Iterator[Batch]:
        """Epoch after epoch, each in another order."""
        epoch = 0
        while True:
            yield from batches(self._paths, self.plan.tokens, self.plan.seed * 1009 + epoch)
            epoch += 1

    def _one(self, batch: Batch) -> float:
        done = self.step / self.plan.steps
        rate = min((self.step + 1) / max(_WARM * self.plan.steps, 1), 1.0, (1 - done) / (1 - _FALL))
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.plan.rate * rate
            optimiser.zero_grad(set_to_none=True)
        unroll = sum(done >= start for start in _UNROLL_FROM)
        loss = self.loss(batch, unroll, 0.5 if done >= _TV_FROM else 0.0)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
        return loss.item()

    def loss(self, batch: Batch, unroll: int, tv: float) -> Tensor:
        """Mean over all rows of all unrolled steps. `tv`: share of the distance in the loss."""
        total = torch.zeros((), device=self.device)
        for logits, p in self.laws(batch, unroll):
            logs = logits.log_softmax(-1)
            cross = -(p * logs).sum(-1).mean()
            distance = 1 - torch.minimum(logs.exp(), p).sum(-1).mean() if tv else 0.0
            total = total + (1 - tv) * cross + tv * 4 * distance  # 4: about as steep as the entropy
        return total / unroll

    def laws(self, batch: Batch, unroll: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each unrolled step: (logits of the head, law of the target), [rows, vocab], of what the target wrote."""
        tokens, states = batch.tokens.to(self.device), batch.states.to(self.device)
        width = self._head.shape[1]
        told = self._said(batch, 0)
        number = told.flatten().cumsum(0).reshape(told.shape) - 1
        with torch.no_grad():
            p = (states[told][:, -width:] @ self._head.T).softmax(-1)
        state, cache = self.net.fc(states / self._scale), Cache([], [])
        for step in range(1, unroll + 1):
            state = self.net(self._embed[tokens.roll(-step, 1)], state, cache)
            said = self._said(batch, step)
            yield self.net.norm(state)[said] @ self._head.T, p[number.roll(-step, 1)[said]]

    def _said(self, batch: Batch, ahead: int) -> Tensor:
        """[texts, rows]: rows whose token `ahead` places on is followed by one of the target's own."""
        sizes, prompts = batch.sizes[:, None], batch.prompts[:, None]
        place = torch.arange(batch.tokens.shape[1]) + ahead
        return ((place < sizes) & (place >= prompts - 1)).to(self.device)

    @torch.no_grad()
    def alphas(self, batch: Batch) -> list[float]:
        """Mean of sum min(p, q) by unrolled step, on the texts as they are; p over the whole vocabulary."""
        found = []
        rows = batch.states[..., -self._head.shape[1] :].to(self.device)
        lost = torch.stack([text @ self.target.head.to(self.device).T for text in rows]).logsumexp(-1)
        kept = torch.stack([text @ self._head.T for text in rows]).logsumexp(-1)
        share = (kept - lost).exp()
        for step, (logits, p) in enumerate(self.laws(batch, len(_UNROLL_FROM)), 1):
            mass = share.roll(-step, 1)[self._said(batch, step)]
            found.append(torch.minimum(logits.softmax(-1), p * mass[:, None]).sum(-1).mean().item())
        return found

    def seconds_a_step(self) -> float:
        """Of the last kind, with all unrolled steps, measured twice without keeping anything."""
        batch = next(self._all())
        seconds = []
        for _ in range(2):
            began = monotonic()
            self.loss(batch, len(_UNROLL_FROM), 0.5).backward()
            seconds.append(monotonic() - began)
        self.net.zero_grad(set_to_none=True)
        return min(seconds)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by the convention's names, with the scale folded into the first matrix."""
        named = {name: w.detach().cpu() for name, w in self.net.state_dict().items()}
        named["fc.weight"] = named["fc.weight"] / self._scale.cpu()
        return named

    def _keep(self, snapshot: Path) -> None:
        states = [o.state_dict() for o in self._optimisers]
        kept = {"plan": asdict(self.plan), "step": self.step, "net": self.net.state_dict(), "o": states}
        keep(kept, snapshot)

    def _resume(self, snapshot: Path) -> None:
        if not snapshot.exists():
            return
        kept: dict[str, Any] = torch.load(snapshot, map_location=self.device, weights_only=True)
        if kept["plan"] != asdict(self.plan):
            raise ModelError(
                f"{snapshot} belongs to another plan ({kept['plan']}): give the same options, or delete it"
            )
        self.net.load_state_dict(kept["net"])
        for optimiser, state in zip(self._optimisers, kept["o"], strict=True):
            optimiser.load_state_dict(state)
        self.step = kept["step"]


def keep(value: object, path: Path) -> None:
    """Write tensors to a file that is there complete or not at all.

    Raises:
        ModelError: there is no room for it.
    """
    draft = path.with_suffix(".tmp")
    try:
        torch.save(value, draft)
        draft.rename(path)
    except (OSError, RuntimeError) as error:  # PyTorch's writer has a RuntimeError for a full disk
        draft.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written ({str(error).splitlines()[0]}): free some space") from error
