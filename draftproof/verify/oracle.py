"""The exact laws that an honest decoder must follow: of the next token, of the first tokens jointly, of acceptance.

Written from the recipe's description alone, with full sorts in float64 and no cleverness. The recipe: logit bias;
repetition penalty on tokens of prompt and output; frequency and presence penalty on tokens of the output; stop tokens
masked until min_tokens are out; temperature; top-k; top-p on what is left; min-p relative to the largest. The lower
token id is the larger one among equals.

Engines compute logits in float32, so a choice that hangs on less than `CLEAR` could fall the other way there.
`narrowest` says how close the closest choice is, and `clear_prompts` finds prompts where none is that close.

Knows no engine, no statistics and no rule's code; the rules' acceptance is their published formula.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.verify.contract import Floats, Params, World

Tokens = tuple[int, ...]

CLEAR = 1e-4  # logits and probabilities that differ by more are told apart in float32 too


def stop_ids(world: World, params: Params) -> frozenset[int]:
    """Tokens that end an output of this job before them."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else world.eos)


def law(logits: Floats, params: Params, prompt: Sequence[int], output: Sequence[int], stop: frozenset[int]) -> Floats:
    """Probabilities of the token that follows `prompt + output`. Shape [vocab]."""
    return _kept(_adjusted(logits, params, prompt, output, stop), params)[0]


def margin(logits: Floats, params: Params, prompt: Sequence[int], output: Sequence[int], stop: frozenset[int]) -> float:
    """How far the closest choice (greedy, top-k, top-p, min-p) is from falling the other way; inf if none is made.

    In units of what is compared: logits over temperature for an order, probability for a sum or a threshold.
    """
    return _kept(_adjusted(logits, params, prompt, output, stop), params)[1]


def _adjusted(
    logits: Floats, params: Params, prompt: Sequence[int], output: Sequence[int], stop: frozenset[int]
) -> Floats:
    z = np.array(logits, dtype=np.float64)
    for step in (_bias, _repetition, _counts):
        step(z, params, prompt, output)
    if len(output) < params.min_tokens:
        z[sorted(stop)] = -np.inf
    return z


def _bias(z: Floats, params: Params, prompt: Sequence[int], output: Sequence[int]) -> None:
    del prompt, output
    for token, bias in params.logit_bias:
        z[token] += bias


def _repetition(z: Floats, params: Params, prompt: Sequence[int], output: Sequence[int]) -> None:
    for token in {*prompt, *output}:
        z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty


def _counts(z: Floats, params: Params, prompt: Sequence[int], output: Sequence[int]) -> None:
    del prompt
    for token in set(output):
        z[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty


def _kept(z: Floats, params: Params) -> tuple[Floats, float]:
    """Temperature and filters: the law, and the margin of the closest choice."""
    order = np.argsort(-z, kind="stable")  # among equals the lower id comes first
    if params.temperature == 0:
        return np.eye(len(z))[order[0]], _gap(z, order, 1)
    z, closest = z / params.temperature, math.inf
    if 0 < params.top_k < len(z):
        closest = _gap(z, order, params.top_k)
        order = order[: params.top_k]
    shares = _shares(z[order])
    if params.top_p < 1:
        sums = np.cumsum(shares)
        count = min(int(np.count_nonzero(sums < params.top_p)) + 1, len(order))
        closest = min(closest, _gap(z, order, count), float(np.abs(sums[:-1] - params.top_p).min(initial=math.inf)))
        order, shares = order[:count], shares[:count]
    if params.min_p > 0:
        relative = shares / shares[0]
        closest = min(closest, float(np.abs(relative[1:] - params.min_p).min(initial=math.inf)))
        order = order[relative >= params.min_p]
    probs = np.zeros(len(z))
    probs[order] = _shares(z[order])
    return probs, closest


def _gap(z: Floats, order: NDArray[np.intp], count: int) -> float:
    """Between the last of the first `count` and the next, unless the next is impossible anyway."""
    if count >= len(order) or z[order[count]] == -np.inf:
        return math.inf
    return float(z[order[count - 1]] - z[order[count]])


def _shares(z: Floats) -> Floats:
    weights = np.exp(z - z.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def law_at(world: World, prompt: Tokens, output: Tokens, params: Params) -> Floats:
    """The target's law after `prompt + output`. Shape [vocab]."""
    return law(world.target(prompt + output), params, prompt, output, stop_ids(world, params))


def draft_law(world: World, prompt: Tokens, output: Tokens, params: Params) -> Floats:
    """The same recipe on the draft's logits. Shape [vocab]."""
    if world.draft is None:
        raise ValueError(f"{world.name} has no draft model: its proposals are point masses")
    return law(world.draft(prompt + output), params, prompt, output, stop_ids(world, params))


def teacher(world: World, prompt: Tokens, output: Tokens, params: Params) -> list[Floats]:
    """The target's law of each token of a given output."""
    return [law_at(world, prompt, output[:n], params) for n in range(len(output))]


def logprob(world: World, prefix: Tokens, token: int) -> float:
    """Natural log-probability of a token under the target's own softmax: no penalty, no temperature."""
    z = world.target(prefix)
    top = float(z.max())
    return float(z[token]) - top - math.log(float(np.exp(z - top).sum()))


def joint(world: World, prompt: Tokens, params: Params, length: int) -> dict[Tokens, float]:
    """The law of the first `length` output tokens. Outputs that end early are shorter; ends are left out of them.

    Raises:
        ValueError: with stop strings, unless the whole output fits: a later token may take earlier ones back.
    """
    if params.stop and params.max_tokens > length:
        raise ValueError(f"with stop strings the law is of whole outputs: give max_tokens <= length ({length})")
    limit = min(length, params.max_tokens)
    found: defaultdict[Tokens, float] = defaultdict(float)
    waiting: dict[Tokens, float] = {(): 1.0}
    while waiting:
        longer: dict[Tokens, float] = {}
        for output, chance in waiting.items():
            for text, ended, share in _next(world, prompt, output, params):
                if ended or len(text) == limit:
                    found[text] += chance * share
                else:
                    longer[text] = chance * share
        waiting = longer
    return dict(found)


def _next(world: World, prompt: Tokens, output: Tokens, params: Params) -> Iterator[tuple[Tokens, bool, float]]:
    """What an output may become, whether it has ended there, and with which probability."""
    probs, stop = law_at(world, prompt, output, params), stop_ids(world, params)
    for token in np.flatnonzero(probs).tolist():
        if token in stop:
            yield output, True, float(probs[token])
            continue
        kept = _stopped(world.words, (*output, token), params)
        yield (*output, token) if kept is None else output[:kept], kept is not None, float(probs[token])


def _stopped(texts: Sequence[str], output: Tokens, params: Params) -> int | None:
    """How many tokens stand before a stop string that the last token completes. None if it completes none.

    A token that lies partly before the stop string stands. Text of the first min_tokens tokens does not count.
    """
    free = len(_text(texts, output[: params.min_tokens]))
    found = [at for at in (_text(texts, output).find(s, free) for s in params.stop) if at >= 0]
    if not found:
        return None
    starts = [len(_text(texts, output[:n])) for n in range(len(output))]
    return max(sum(start < min(found) for start in starts), min(params.min_tokens, len(output)))


def _text(texts: Sequence[str], output: Tokens) -> str:
    return "".join(texts[token] for token in output)


def text_law(world: World, tokens: Mapping[Tokens, float]) -> dict[str, float]:
    """A law of outputs as a law of their texts. Stop strings are not cut out of a token that is partly before one."""
    law: defaultdict[str, float] = defaultdict(float)
    for output, chance in tokens.items():
        law[_text(world.words, output)] += chance
    return dict(law)


ACCEPTANCE = ("token", "block", "sampled", "coupled")  # rules whose acceptance has a formula here


def acceptance(world: World, prompt: Tokens, output: Tokens, params: Params, rule: str) -> float:
    """The chance that the first draft token stands, in a step that follows `prompt + output`."""
    p, q = law_at(world, prompt, output, params), draft_law(world, prompt, output, params)
    return float(standing(p, q, rule).sum())


def standing(p: Floats, q: Floats, rule: str) -> Floats:
    """The chance that each token is drafted, from q, and stands, at a single position. Shape [vocab]."""
    if rule in ("token", "block"):
        return np.minimum(p, q)
    if rule == "sampled":
        return p * q
    if rule == "coupled":
        stands = np.zeros(len(p))
        for x in np.flatnonzero((p > 0) & (q > 0)):
            stands[x] = 1.0 / np.maximum(p / p[x], q / q[x]).sum()
        return stands
    raise ValueError(f"no formula is known for the acceptance of the rule {rule!r}, only for {', '.join(ACCEPTANCE)}")


@dataclass(frozen=True, slots=True)
class _Path:
    """A draft on its way, with the chance that it was drafted and, up to `ratio`, stands."""

    tokens: Tokens = ()
    chance: float = 1.0
    ratio: float = 1.0  # the block rule's: the share of such drafts that stand


def accepted(
    world: World, prompt: Tokens, output: Tokens, params: Params, rule: str, k: int | None = None
) -> tuple[float, ...]:
    """P(draft token i stands), i = 1 .. k, in a step that follows `prompt + output`. Their sum is the mean accepted.

    A stop token ends the output, so neither it nor what is drafted behind it counts. Stop strings and max_tokens are
    not looked at.
    """
    paths, chances = [_Path()], []
    for _ in range(params.k if k is None else k):
        paths = [longer for path in paths for longer in _drafted(world, prompt, output, params, rule, path)]
        chances.append(math.fsum(path.chance * path.ratio for path in paths))
    return tuple(chances)


def _drafted(world: World, prompt: Tokens, output: Tokens, params: Params, rule: str, path: _Path) -> Iterator[_Path]:
    p, q = (of(world, prompt, output + path.tokens, params) for of in (law_at, draft_law))
    stands = q if rule == "block" else standing(p, q, rule)
    for x in np.flatnonzero(stands).tolist():
        ratio = min(path.ratio * float(p[x] / q[x]), 1.0) if rule == "block" else 1.0
        if ratio > 0 and x not in stop_ids(world, params):
            yield _Path((*path.tokens, x), path.chance * float(stands[x]), ratio)


def accepted_points(
    world: World, prompt: Tokens, output: Tokens, params: Params, proposal: Tokens
) -> tuple[float, ...]:
    """P(token i stands) of a proposal that is a point mass, such as an n-gram's: under every exact rule that of p."""
    laws = teacher(world, prompt, output + proposal, params)[len(output) :]
    return tuple(np.cumprod([p[x] for p, x in zip(laws, proposal, strict=True)]).tolist())


def narrowest(world: World, prompt: Tokens, params: Params, length: int) -> float:
    """The smallest `margin` among all choices on the way to the first `length` tokens, whatever is drawn."""
    stop, closest = stop_ids(world, params), math.inf
    outputs: list[Tokens] = [()]
    for _ in range(min(length, params.max_tokens)):
        margins = [margin(world.target(prompt + o), params, prompt, o, stop) for o in outputs]
        closest = min([closest, *margins])
        outputs = [text for o in outputs for text, ended, _ in _next(world, prompt, o, params) if not ended]
    return closest


def words(world: World) -> tuple[int, ...]:
    """Ids of the tokens that may appear."""
    return tuple(t for t in range(world.vocab) if t not in world.impossible)


def clear_prompts(world: World, jobs: Sequence[Params], length: int, count: int, seed: int = 1) -> list[Tokens]:
    """Random prompts, of 2 to 9 tokens, on which no choice of any of the jobs is as close as `CLEAR`."""
    rng = np.random.default_rng([seed, world.vocab])
    found: list[Tokens] = []
    for _ in range(100 * count):
        prompt = tuple(int(t) for t in rng.choice(words(world), rng.integers(2, 10)))
        if prompt not in found and all(narrowest(world, prompt, params, length) > CLEAR for params in jobs):
            found.append(prompt)
        if len(found) == count:
            return found
    raise ValueError(
        f"{world.name}: only {len(found)} of {count} prompts are clear: use milder filters or fewer tokens"
    )
