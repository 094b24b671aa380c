"""What was found, as command lines: for draftproof, and as starting points for vLLM, SGLang and llama-server.

Their options as documented in 2026; knows no figure and no measuring.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.drafts import resolved

NOTE = "Acceptance and costs were measured on this engine, with its rules: elsewhere this is where to start measuring."
_OWN = "DRAFT stands for an EAGLE-3 head of the model, in this engine's own format"
_NGRAM = 4  # tokens that an n-gram draft looks up, at most, unless its name says so


@dataclass(frozen=True, slots=True)
class Chosen:
    """Draft length (0: do not speculate) and rule for a batch size."""

    batch: int
    k: int
    rule: str


@dataclass(frozen=True, slots=True)
class Found:
    """`model` and `draft` as on the command line; `chosen` by rising batch size, those that were decided."""

    model: str
    draft: str
    chosen: tuple[Chosen, ...]

    @property
    def speculates(self) -> bool:
        return any(c.k for c in self.chosen)

    @property
    def kind(self) -> str:
        """none, ngram, suffix, head, combined, or the name of a draft model."""
        return resolved(self.draft, self.model).partition(":")[0]

    @property
    def has_head(self) -> bool:
        return self.kind in {"head", "combined"}


def configurations(found: Found) -> dict[str, list[str]]:
    """By engine: lines to be read or pasted. Empty if nothing was decided."""
    if not found.chosen:
        return {}
    made = {"draftproof": ours(found), "vLLM": vllm(found), "SGLang": sglang(found), "llama-server": llama(found)}
    if found.speculates and found.has_head:
        for name in ("vLLM", "SGLang", "llama-server"):
            made[name].append(f"# {_OWN}")
    return made


def _by_batch(found: Found, line: Callable[[Chosen], str]) -> list[str]:
    """One line where all batch sizes have the same; else each behind its size."""
    lines = {c.batch: line(c) for c in found.chosen}
    if len(set(lines.values())) == 1:
        return [*lines.values()][:1]
    return [f"# batch {batch}\n{told}" for batch, told in lines.items()]


def ours(found: Found) -> list[str]:
    return _by_batch(
        found, lambda c: shlex.join(["draftproof", "generate", "--model", found.model, *_our_draft(found, c)])
    )


def _our_draft(found: Found, chosen: Chosen) -> list[str]:
    if not chosen.k:
        return ["--draft", "none"]
    return ["--draft", found.draft, "--k", str(chosen.k), "--rule", chosen.rule]


def vllm(found: Found) -> list[str]:
    """`num_speculative_tokens_per_batch_size` lists [first, last, tokens]; behind the last entry the last one holds."""
    serve = ["vllm", "serve", found.model]
    if not found.speculates:
        return [shlex.join(serve)]
    config = {**_vllm_draft(found), "num_speculative_tokens": max(c.k for c in found.chosen)}
    if len({c.k for c in found.chosen}) > 1:
        config["num_speculative_tokens_per_batch_size"] = ranges(found.chosen)
    return [shlex.join([*serve, "--speculative-config", json.dumps(config)])]


def ranges(chosen: Sequence[Chosen]) -> list[list[int]]:
    """Each length from its batch size up to the next one that was measured; the first from 1."""
    starts = [1, *(c.batch for c in chosen[1:])]
    ends = [*(start - 1 for start in starts[1:]), chosen[-1].batch]
    return [[a, b, c.k] for a, b, c in zip(starts, ends, chosen, strict=True)]


def _vllm_draft(found: Found) -> dict[str, object]:
    match found.kind:
        case "ngram":
            return {"method": "ngram", "prompt_lookup_max": _longest(found)}
        case "suffix":
            return {"method": "suffix"}
        case "head" | "combined":
            return {"method": "eagle3", "model": "DRAFT"}
        case _:
            return {"method": "draft_model", "model": found.draft}


def _longest(found: Found) -> int:
    sizes = found.draft.partition(":")[2].rpartition("-")[2]
    return int(sizes) if sizes.isdecimal() else _NGRAM


def sglang(found: Found) -> list[str]:
    """Without trees. `--speculative-num-draft-tokens` counts the token before the draft as well."""
    return _by_batch(found, lambda c: shlex.join(["python3", "-m", "sglang.launch_server", *_sglang(found, c)]))


def _sglang(found: Found, chosen: Chosen) -> list[str]:
    base, verified = ["--model-path", found.model], ["--speculative-num-draft-tokens", str(chosen.k + 1)]
    if not chosen.k:
        return base
    if found.kind in {"ngram", "suffix"}:
        return [*base, "--speculative-algorithm", "NGRAM", *verified]
    named = ("EAGLE3", "DRAFT") if found.has_head else ("STANDALONE", found.draft)
    draft = ["--speculative-algorithm", named[0], "--speculative-draft-model-path", named[1]]
    return [*base, *draft, "--speculative-num-steps", str(chosen.k), "--speculative-eagle-topk", "1", *verified]


def llama(found: Found) -> list[str]:
    """Options as renamed in 2026; builds before that know `--draft-max` in place of `--spec-draft-n-max`."""
    return _by_batch(found, lambda c: shlex.join(["llama-server", "-m", found.model, *_llama(found, c)]))


def _llama(found: Found, chosen: Chosen) -> list[str]:
    if not chosen.k:
        return ["--spec-type", "none"]
    if found.kind in {"ngram", "suffix"}:
        sizes = {"n": _longest(found), "m": chosen.k}
        options = [word for name, n in sizes.items() for word in (f"--spec-ngram-simple-size-{name}", str(n))]
        return ["--spec-type", "ngram-simple", *options]
    kind, draft = ("draft-eagle3", "DRAFT") if found.has_head else ("draft-simple", found.draft)
    return ["--spec-type", kind, "--spec-draft-model", draft, "--spec-draft-n-max", str(chosen.k)]
