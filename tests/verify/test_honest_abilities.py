"""The honest decoder really can do what it says it can: seeds, batches, preemption, cancelling, streams, books, limits.

Exact comparisons of the engine with itself. Knows no law.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftproof.verify import oracle
from draftproof.verify.contract import Ability, EngineError, Job, Params, World
from draftproof.verify.mutants import HONEST, Honest
from draftproof.verify.toy import tabular_world

BIG = tabular_world(8, seed=3, eos=(7,))


def jobs(count: int = 20, **more: Any) -> list[Job]:
    return [
        Job(
            tuple((n * 3 + i * (n % 4)) % 8 for i in range(1 + n % 5)),
            Params(max_tokens=16, k=n % 5, rule=Honest.rules[n % 4], frequency_penalty=0.5 * (n % 2), **more),
            seed=n,
        )
        for n in range(count)
    ]


def tokens(samples: Any) -> list[tuple[int, ...]]:
    return [s.tokens for s in samples]


def test_a_seed_decides_whatever_else_runs() -> None:
    alone = [Honest(BIG).sample([job])[0] for job in jobs()]
    engine = Honest(BIG)
    assert engine.sample(jobs()) == alone
    assert engine.sample(jobs()[::-1]) == alone[::-1]
    assert tokens(alone) != tokens(engine.sample([replace(j, seed=50 + n) for n, j in enumerate(jobs())]))


def test_the_promise_holds_for_two_rules_and_is_not_given_by_others() -> None:
    def differs(rule: str) -> bool:
        asked = [replace(j, params=replace(j.params, rule=rule, k=3)) for j in jobs()]
        plain = [replace(j, params=replace(j.params, k=0)) for j in asked]
        return tokens(Honest(BIG).sample(asked)) != tokens(Honest(BIG).sample(plain))

    assert [differs(rule) for rule in Honest.rules] == [True, True, False, False]
    by_name = {v.name: v.make(BIG).abilities for v in HONEST}
    assert Ability.SEED_PROMISE in by_name["honest, coupled"]
    assert Ability.SEED_PROMISE not in by_name["honest, block"]


def test_unseeded_requests_differ() -> None:
    job = Job((1,), Params(max_tokens=16))
    engine = Honest(BIG)
    assert len({s.tokens for s in engine.sample([job] * 10)} | {engine.sample([job])[0].tokens}) == 11


def test_preemption_happens_and_changes_nothing() -> None:
    engine = Honest(BIG)
    roomy = engine.sample(jobs())
    assert engine.preemptions == 0
    assert engine.sample_tight(jobs()) == roomy
    assert engine.preemptions > 5
    assert engine.sample(jobs()) == roomy


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelling_cuts_one_and_leaves_the_others(after: int) -> None:
    whole = Honest(BIG).sample(jobs())
    seen = Honest(BIG).sample_aborting(jobs(), dict.fromkeys(range(0, 20, 3), after))
    for n, (w, s) in enumerate(zip(whole, seen, strict=True)):
        if n % 3 == 0 and s.finish == "abort":
            assert s.tokens == w.tokens[: len(s.tokens)] != w.tokens
        else:
            assert s == w
    assert sum(s.finish == "abort" for s in seen) >= 5


def test_warm_prefixes_are_used_and_change_nothing() -> None:
    engine = Honest(BIG)
    long = [replace(j, prompt=(1, 2, 3, 4, *j.prompt)) for j in jobs()]
    cold = [Honest(BIG).sample([j])[0] for j in long]
    assert engine.sample(long) == cold == engine.sample(long)
    assert engine.prefixes.reuse((1, 2, 3, 4, 9)) == (1, 2, 3, 4)


@pytest.mark.parametrize("stop", [(), ("b",), ("ab", "gh", "cc"), ("de", "x")])
def test_streamed_is_whole(stop: tuple[str, ...]) -> None:
    engine = Honest(BIG)
    ended = 0
    for job in jobs(60, stop=stop, ignore_eos=False):
        whole, pieces = engine.sample([job])[0], list(engine.stream(job))
        assert tuple(t for new, _ in pieces for t in new) == whole.tokens
        assert "".join(text for _, text in pieces) == whole.text
        ended += whole.finish == "stop"
    assert ended > 20


def test_books_agree_with_the_output() -> None:
    for job in jobs(60, stop=("ab", "gh"), stop_token_ids=(5,)):
        s = Honest(BIG).sample([job])[0]
        assert s.logprobs is not None
        assert s.steps is not None
        assert len(s.tokens) == len(s.logprobs) == s.usage
        assert s.logprobs == pytest.approx(
            [oracle.logprob(BIG, (*job.prompt, *s.tokens[:n]), t) for n, t in enumerate(s.tokens)]
        )
        assert s.proposed == sum(c.proposed for c in s.steps) <= job.params.k * len(s.steps)
        assert s.accepted == sum(c.accepted for c in s.steps) <= len(s.tokens) <= s.accepted + len(s.steps)
        assert all(0 <= c.accepted <= c.proposed for c in s.steps)


def test_the_context_ends_an_output() -> None:
    class Short(Honest):
        context = 6

    sample = Short(BIG).sample([Job((1, 2, 3), Params(max_tokens=10, k=4), seed=1)])[0]
    assert (len(sample.tokens), sample.finish) == (3, "length")
    with pytest.raises(EngineError):
        Short(BIG).sample([Job((1,) * 6, Params())])


def test_what_is_not_offered_is_refused() -> None:
    engine = Honest(BIG)
    with pytest.raises(EngineError, match="refused"):
        engine.sample([Job((1,), Params(rule="lenient"))])
    with pytest.raises(EngineError, match="no teacher"):
        engine.logits((1, 2))


def test_a_world_without_a_draft_is_looked_up() -> None:
    silent: World = replace(BIG, draft=None)
    assert sum(s.proposed or 0 for s in Honest(silent).sample(jobs())) > 0
