"""`distill` from beginning to end: collect, choose a vocabulary, train, export, evaluate. Every part can be resumed.

What decides the weights is written down in `work/wish.json` before anything is made; a folder goes on only with the
same wish. Knows the other files of this room; knows no terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from draftproof.distill.collect import Rounds, Sizes, count, read
from draftproof.distill.data import Target, batches, likely_tokens, sampled_states, scales
from draftproof.distill.train import Plan, Trainer, keep
from draftproof.model import headfile
from draftproof.model.checkpoint import Architecture, Checkpoint, ModelError
from draftproof.model.directory import checkpoint
from draftproof.model.head import layers
from draftproof.model.headfile import HeadCheckpoint, HeadSizes
from draftproof.model.load import ModelOptions, load_model

_COLLECTING = 0.35  # of the minutes; the rest is training
_EPOCHS = 8  # passes over the data where no minutes are given
_TRAINED_VOCABULARY = 8192  # of the losses; the exported one may be larger, since output rows are the target's own
_AVERAGE = 0.7  # seconds of the average step over those of one with all unrolled steps
_MOST_ROUNDS = 10_000
_LOGGED = 25  # steps between two looks at held-out data
_MEMORY = 2 << 30  # for KV pages while collecting


@dataclass(frozen=True, slots=True)
class Wish:
    """`minutes` or `tokens` bound the work: one of them is 0. `vocabulary`: tokens that the head can propose."""

    model: str
    seed: int = 1
    minutes: float = 0.0
    tokens: int = 0
    vocabulary: int = 16384
    batch: int = 4096
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, how far it is (0 to 1), and a word on how it goes."""

    what: str
    done: float
    note: str = ""


Said = Callable[[Progress], None]


def distill(wish: Wish, out: Path, said: Said = lambda _: None) -> HeadCheckpoint:
    """Make a head for the model and write it to `out`. Intermediate results are kept in `out`/work.

    Raises:
        ModelError: the folder holds another head's work, or a model or file cannot be used.
    """
    work = out / "work"
    _begin(wish, work)
    source = checkpoint(wish.model)
    sizes = head_sizes(source.architecture)
    paths = _collected(wish, source, sizes, work, said)
    trainer = _trainer(wish, source, sizes, paths, work)
    _train(trainer, paths[-1], work, said)
    return _export(wish, trainer, source, sizes, paths, out)


def head_sizes(a: Architecture) -> HeadSizes:
    """A head of the target's width that reads an early, a late and the last state."""
    states = tuple(sorted({max(a.layers // 3, 1), max(7 * a.layers // 10, 1), a.layers}))
    return HeadSizes(states, a.width, a.heads, a.head_dim, a.ffn, a.eps, a.rope_theta)


def _begin(wish: Wish, work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
        told = json.dumps(asdict(wish), indent=2)
        path = work / "wish.json"
        if not path.exists():
            path.write_text(told, encoding="utf-8")
        kept = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{work} cannot be written ({error.strerror or error}): give another --out") from error
    if kept != told:
        raise ModelError(f"{work} was begun with other options: give the same ones to go on, or another --out")


def _collected(wish: Wish, source: Checkpoint, sizes: HeadSizes, work: Path, said: Said) -> list[Path]:
    """Files of enough rounds; the last one is held out."""
    ready = work / "rounds.json"
    if ready.exists():
        return [work / name for name in json.loads(ready.read_text(encoding="utf-8"))]
    wanted = layers(sizes, source)
    target = load_model(wish.model, ModelOptions(hidden_layers=wanted, bitwise=False, kv_bytes=_MEMORY))
    rounds, began, tokens = Rounds(target, work, wish.seed, wish.sizes), monotonic(), 0
    paths: list[Path] = []
    made = [0]

    def heard(new: int) -> None:
        made[0] += new
        share = (monotonic() - began) / (60 * wish.minutes * _COLLECTING) if wish.minutes else tokens / wish.tokens
        said(Progress("collecting", min(share, 1.0), f"{tokens:,} tokens kept, {made[0]:,} written"))

    for number in range(_MOST_ROUNDS):
        tokens += rounds.make(number, heard)
        paths.append(rounds.path(number))
        late = wish.minutes and monotonic() - began > 60 * wish.minutes * _COLLECTING
        if len(paths) > 1 and (late or (wish.tokens and tokens >= wish.tokens)):
            break
    ready.write_text(json.dumps([p.name for p in paths]), encoding="utf-8")
    return paths


def _trainer(wish: Wish, source: Checkpoint, sizes: HeadSizes, paths: Sequence[Path], work: Path) -> Trainer:
    target, chosen = _target(source), work / "vocabulary.pt"
    if not chosen.exists():
        states = sampled_states(paths[:-1], wish.seed)
        ids, _ = likely_tokens(states, target, min(_TRAINED_VOCABULARY, wish.vocabulary))
        keep((torch.from_numpy(ids), scales(states)), chosen)
    trained, scale = torch.load(chosen, weights_only=True)
    made = Trainer(Plan(wish.seed, 1, wish.batch), sizes, target, paths[:-1], trained, scale)
    made.plan = _plan(wish, made, paths, work)
    return made


def _target(source: Checkpoint) -> Target:
    embed = torch.tensor(source.tensor("embed"))
    head = embed if source.architecture.tied else torch.tensor(source.tensor("head"))
    return Target(embed, head)


def _plan(wish: Wish, trainer: Trainer, paths: Sequence[Path], work: Path) -> Plan:
    """How many steps: what the minutes have room for, or so many epochs. Written down, so that resuming keeps it."""
    path = work / "plan.json"
    if path.exists():
        return Plan(**json.loads(path.read_text(encoding="utf-8")))
    if wish.minutes:
        steps = int(60 * wish.minutes * (1 - _COLLECTING) / (_AVERAGE * trainer.seconds_a_step()))
    else:
        steps = -(-_EPOCHS * sum(map(count, paths[:-1])) // wish.batch)
    plan = Plan(wish.seed, max(steps, 1), wish.batch)
    path.write_text(json.dumps(asdict(plan)), encoding="utf-8")
    return plan


def _train(trainer: Trainer, held_out: Path, work: Path, said: Said) -> None:
    """To the end of the plan, with held-out acceptance in training.jsonl."""
    probe = next(iter(batches([held_out], 2048, 0)))
    note = [""]

    def heard(step: int, loss: float) -> None:
        if step % _LOGGED == 0 or step == trainer.plan.steps:
            alphas = [round(a, 4) for a in trainer.alphas(probe)]
            note[0] = f"held-out alpha {alphas[0]:.3f}"
            with (work / "training.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, "loss": round(loss, 4), "alpha": alphas}) + "\n")
        said(Progress("training", step / trainer.plan.steps, f"loss {loss:.3f} {note[0]}"))

    trainer.run(work / "snapshot.pt", heard, _LOGGED)


def _export(
    wish: Wish, trainer: Trainer, source: Checkpoint, sizes: HeadSizes, paths: Sequence[Path], out: Path
) -> HeadCheckpoint:
    ids, mass = likely_tokens(sampled_states(paths[:-1], wish.seed), trainer.target, wish.vocabulary)
    card: dict[str, Any] = {
        "model": wish.model,
        "seed": wish.seed,
        "tokens": sum(map(count, paths[:-1])),
        "steps": trainer.plan.steps,
        "tokens_a_step": trainer.plan.tokens,
        "target_mass_in_vocabulary": round(mass, 4),
    }
    tensors = {name: w.numpy() for name, w in trainer.tensors().items()}
    head = HeadCheckpoint(sizes, tensors, ids, source.fingerprint, card)
    headfile.write(head, out, card)
    return head


def held_out_prompts(out: Path, most: int) -> list[list[int]]:
    """Prompts of the round that was not trained on: answers come last in it."""
    names = json.loads((out / "work" / "rounds.json").read_text(encoding="utf-8"))
    texts = read(out / "work" / names[-1])
    return [t.tokens[: t.prompt].tolist() for t in texts[-most:]]


def disk_use(a: Architecture, tokens: int) -> int:
    """Bytes that the collected states of so many tokens take."""
    return tokens * 2 * len(head_sizes(a).states) * a.width
