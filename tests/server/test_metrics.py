"""/metrics: vLLM's names, and figures that agree with what the requests themselves say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.serving import Gate, Running, drafted, eventually, serving, toy

from draftproof.cli import serve
from draftproof.length.profile import Line, Profile
from draftproof.server.metrics import Metrics
from draftproof.types import Finish, Kind, Output, StepTrace
from draftproof.watch import Seconds

NAMES = (
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_success_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "step_seconds_total",
    "kv_pages_free",
    "kv_pages_held",
    "kv_pages_cached",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "speedup_estimated",
    "plain_tokens_per_second_estimated",
)


def figures(running: Running, prefix: str = "draftproof") -> dict[str, float]:
    """The sum over each name's labels."""
    got = running.send("GET", "/metrics")
    assert got.headers["content-type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(got.body.decode()):
        for sample in family.samples:
            assert sample.labels["model_name"] == "toy"
            name = sample.name.removeprefix(f"{prefix}:")
            assert name != sample.name
            found[name] = found.get(name, 0.0) + sample.value
    return found


def check_figures(running: Running) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "ab", "max_tokens": 20}
    told = [running.client.completions.create(**asked, seed=seed, n=2) for seed in range(4)]
    running.idle()
    found = figures(running)
    assert set(NAMES) <= set(found)
    spec = [t.metrics["speculative_decoding"] for t in told]
    tokens = sum(t.usage.completion_tokens for t in told)
    assert found["generation_tokens_total"] == tokens
    assert found["prompt_tokens_total"] == 2 * 2 * 4
    assert found["request_success_total"] == found["e2e_request_latency_seconds_count"] == 8
    firsts = found["time_to_first_token_seconds_count"]
    assert firsts <= 8
    assert found["spec_decode_num_drafts_total"] == sum(s["num_spec_steps"] for s in spec)
    assert found["spec_decode_num_draft_tokens_total"] == sum(s["num_draft_tokens"] for s in spec)
    accepted = sum(s["num_accepted_draft_tokens"] for s in spec)
    assert found["spec_decode_num_accepted_tokens_total"] == accepted
    assert found["spec_decode_num_accepted_tokens_per_pos_total"] == accepted
    assert found["kv_pages_free"] == running.engine.pool.total
    assert found["kv_pages_held"] == found["num_requests_running"] == 0
    assert found["step_seconds_total"] > 0


def test_figures_agree_with_the_answers() -> None:
    with serving(drafted()) as running:
        check_figures(running)


def _twice(function: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        function(*args)
        function(*args)

    return call


@pytest.mark.parametrize("method", ["arrived", "ended", "_drafted"])
def test_planted_double_count_is_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metrics, method, _twice(getattr(Metrics, method)))
    with serving(drafted()) as running, pytest.raises(AssertionError):
        check_figures(running)


def test_the_prefix_can_be_vllms() -> None:
    with serving(toy(), metrics_prefix="vllm") as running:
        assert set(NAMES) - {"step_seconds_total", "spec_decode_num_accepted_tokens_per_pos_total"} <= {
            *figures(running, "vllm"),
            "request_success_total",
        }


def test_what_runs_and_waits_is_told_while_it_does() -> None:
    engine = toy(max_running=1)
    gate = Gate(engine)
    with serving(engine) as running:
        stream = running.client.completions.create  # the answer's head comes once it is admitted
        first = stream(model="toy", prompt="ab", max_tokens=20, stream=True, extra_body={"ignore_eos": True})
        eventually(lambda: gate.closed)
        gate.open(1)
        eventually(lambda: gate.closed)
        found = figures(running)
        assert (found["num_requests_running"], found["kv_pages_held"] > 0) == (1, True)
        assert found["kv_cache_usage_perc"] == pytest.approx(found["kv_pages_held"] / engine.pool.total)
        gate.open()
        list(first)


def _sum(metrics: Metrics, name: str) -> float:
    families = text_string_to_metric_families(metrics.page()[0].decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == f"draftproof:{name}")


def check_speedup() -> None:
    """Made-up costs: a plain step takes two seconds and half a second more for each further sequence."""
    costs = Profile(((1.0, 2.0), (3.0, 3.0)), ((1, Line(9.0, 9.0)),), ((1, Line(0.0, 0.0)),))
    assert (costs.plain(1), costs.plain(3)) == (2.0, 3.0)
    metrics = Metrics(drafted(), "toy", costs=costs)
    steps = [(4, 1), (3, 1), (2, 3), (0, 1)]  # tokens and batch; the first step read the prompt
    traces = [StepTrace(0, 9, (), 0, (1,) * tokens, Kind.BONUS, batch, Seconds(verify=3.0)) for tokens, batch in steps]
    metrics._compared(Output(0, (1,), (1,) * 9, (Kind.BONUS,) * 9, "", Finish.LENGTH, steps=tuple(traces)), costs)
    assert _sum(metrics, "decode_tokens_total") == 5
    assert _sum(metrics, "decode_seconds_total") == pytest.approx(3 + 3 / 3)
    assert _sum(metrics, "plain_decode_seconds_estimated_total") == pytest.approx(3 * 2 + 2 * 3 / 3)


def test_plain_decoding_is_estimated_from_costs() -> None:
    check_speedup()


def _whole_steps(self: Metrics, output: Output, costs: Profile) -> None:
    """Each request is charged with the whole step that it shared."""
    for step in [s for s in output.steps if s.emitted][1:]:
        self._decode_tokens.inc(len(step.emitted))
        self._decode_seconds.inc(step.seconds.total)
        self._plain_seconds.inc(len(step.emitted) * costs.plain(step.batch))


def _with_the_prompt(self: Metrics, output: Output, costs: Profile) -> None:
    _COMPARED(self, replace(output, steps=(output.steps[0], *output.steps)), costs)


_COMPARED = Metrics._compared


@pytest.mark.parametrize("fault", [_whole_steps, _with_the_prompt])
def test_planted_wrong_share_is_seen(fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metrics, "_compared", fault)
    with pytest.raises(AssertionError):
        check_speedup()


def test_costs_are_kept_from_what_is_told_at_start() -> None:
    found: list[dict[str, Any]] = []
    for record in ({"profile": {"a": 1}}, {"request": 0, "choice": 3}):
        serve._costs(found, record)
    assert found == [{"a": 1}]


def _steps(engine_outputs: list[Output]) -> float:
    return sum(step.seconds.total / step.batch for output in engine_outputs for step in output.steps)


def test_a_steps_seconds_are_counted_once() -> None:
    engine = drafted()
    metrics = Metrics(engine, "toy")
    outputs = engine.generate(["ab"] * 4)
    for output in outputs:
        metrics._timed(output)
    assert _sum(metrics, "step_seconds_total") == pytest.approx(_steps(outputs))
