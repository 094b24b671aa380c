"""Prometheus metrics under vLLM's names, and what only this engine tells. Knows outputs and clocks, no HTTP.

Figures of speculation and of step times come from a request's steps and are added when it ends.
"""

from __future__ import annotations

from collections import deque
from math import nan
from time import perf_counter
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from draftproof.engine import Engine
from draftproof.length.profile import Profile
from draftproof.server.worker import Arrival, Job
from draftproof.stats import positions
from draftproof.types import Output

# seconds: a token takes from well under a millisecond to seconds
_MILLISECONDS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 750)
_FINE = (*(ms / 1000 for ms in _MILLISECONDS), 1.0, 2.5, 5.0, 10.0)
_FIRST = (*_FINE, 20.0, 40.0, 60.0, 120.0)
_LATEST = 64  # requests that the current figures look at
_COARSE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
_COUNTS = tuple(float(f * 10**e) for e in range(5) for f in (1, 2, 5))
_PARTS = ("draft", "verify", "other")


class Metrics:
    """An `Observer`.

    Args:
        model: the label of all metrics.
        prefix: draftproof, or vllm for dashboards that are made for it.
        costs: what steps cost here; with it plain decoding is estimated.
    """

    def __init__(self, engine: Engine, model: str, prefix: str = "draftproof", costs: Profile | None = None) -> None:
        self._registry = CollectorRegistry()
        self._prefix, self._model = prefix, model
        self._last: WeakKeyDictionary[Job, dict[int, float]] = WeakKeyDictionary()
        self._latencies()
        self._speculation()
        self._pages(engine)
        self._costs = costs
        self._decoded()
        self._reuse(engine)
        self.refused = self._counter("requests_refused", "Requests that were refused because the queue was full")

    def page(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def arrived(self, job: Job, arrival: Arrival) -> None:
        event, times = arrival.event, self._last.setdefault(job, {})
        if not event.tokens:
            return
        before = times.get(arrival.choice)
        if before is None:
            self._first_token.observe(arrival.at - job.born)
        else:
            share = (arrival.at - before) / len(event.tokens)
            for _ in event.tokens:
                self._between_tokens.observe(share)
        times[arrival.choice] = arrival.at
        self._generated.inc(len(event.tokens))

    def ended(self, job: Job, output: Output) -> None:
        self._whole.observe(perf_counter() - job.born)
        self._prompted.inc(len(output.prompt))
        self._prompt_sizes.observe(len(output.prompt))
        self._answer_sizes.observe(len(output.tokens))
        self._success.labels(self._model, "0", str(output.finish)).inc()
        if self._reuses and output.prompt_logprobs is None:
            self._looked_up.inc(len(output.prompt))
            self._found.inc(output.cached)
        self._drafted(output)
        self._timed(output)
        if self._costs is not None:
            self._compared(output, self._costs)

    def _drafted(self, output: Output) -> None:
        steps = [s for s in output.steps if s.proposed]
        self._drafts.inc(len(steps))
        self._draft_tokens.inc(sum(len(s.proposed) for s in steps))
        self._accepted.inc(sum(s.accepted for s in steps))
        for position, count in enumerate(positions(steps)[0]):
            self._accepted_at.labels(self._model, "0", str(position)).inc(count)

    def _timed(self, output: Output) -> None:
        """A step's seconds are shared out among the requests in it, so that they are counted once."""
        for step in output.steps:
            s = step.seconds
            for part, value in zip(_PARTS, (s.draft, s.verify, s.total - s.draft - s.verify), strict=True):
                self._seconds.labels(self._model, "0", part).inc(max(value, 0.0) / step.batch)

    def _compared(self, output: Output, costs: Profile) -> None:
        """Each token behind the first step's would have been a plain step of the batch that it shared."""
        steps = [s for s in output.steps if s.emitted][1:]
        tokens = sum(len(s.emitted) for s in steps)
        took = sum(s.seconds.total / s.batch for s in steps)
        plain = sum(len(s.emitted) * costs.plain(s.batch) / s.batch for s in steps)
        self._decode_tokens.inc(tokens)
        self._decode_seconds.inc(took)
        self._plain_seconds.inc(plain)
        self._latest.append((tokens, took, plain))

    def _latencies(self) -> None:
        self._first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token", _FIRST)
        about = "Between tokens; those of one step share its time"
        self._between_tokens = self._histogram("inter_token_latency_seconds", about, _FINE)
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the end", _COARSE)
        self._prompt_sizes = self._histogram("request_prompt_tokens", "Prompt tokens of a request", _COUNTS)
        self._answer_sizes = self._histogram("request_generation_tokens", "Tokens of an answer", _COUNTS)
        self._prompted = self._counter("prompt_tokens", "Prompt tokens of requests that ended")
        self._generated = self._counter("generation_tokens", "Tokens that were generated")
        self._success = self._labelled("request_success", "Requests that ended, by how", "finished_reason")

    def _speculation(self) -> None:
        self._drafts = self._counter("spec_decode_num_drafts", "Steps of a request that proposed tokens")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens that were proposed")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Proposed tokens that stood")
        about = "Proposed tokens that stood, by draft position"
        self._accepted_at = self._labelled("spec_decode_num_accepted_tokens_per_pos", about, "position")
        self._seconds = self._labelled("step_seconds", "Seconds of steps, by what they went into", "part")

    def _decoded(self) -> None:
        """Without costs these stay at zero."""
        self._decode_tokens = self._counter("decode_tokens", "Tokens of answers behind their first step")
        self._decode_seconds = self._counter("decode_seconds", "Seconds of steps that brought decode_tokens")
        about = "Seconds that plain decoding of decode_tokens would have taken, by costs measured at start"
        self._plain_seconds = self._counter("plain_decode_seconds_estimated", about)
        self._latest: deque[tuple[int, float, float]] = deque(maxlen=_LATEST)
        about = "Tokens a second that plain decoding would have brought, over the latest requests; NaN if unknown"
        self._gauge("plain_tokens_per_second_estimated", about).set_function(lambda: self._of_latest(0, 2))
        about = "Estimated seconds of plain decoding over seconds taken, for the latest requests; NaN if unknown"
        self._gauge("speedup_estimated", about).set_function(lambda: self._of_latest(2, 1))

    def _of_latest(self, over: int, under: int) -> float:
        latest = list(self._latest)
        seconds = sum(entry[under] for entry in latest)
        return sum(entry[over] for entry in latest) / seconds if seconds else nan

    def _reuse(self, engine: Engine) -> None:
        """Without a prefix cache these stay at zero."""
        self._reuses = engine.reuse.on
        about = "Prompt tokens of requests that looked into the prefix cache"
        self._looked_up = self._counter("prefix_cache_queries", about)
        self._found = self._counter("prefix_cache_hits", "Prompt tokens that were found in it and not computed")

    def _pages(self, engine: Engine) -> None:
        """Read when somebody asks; whole numbers that the engine's thread writes."""
        pool, scheduler = engine.pool, engine.scheduler
        self._gauge("kv_pages_free", "KV pages that are free").set_function(lambda: pool.free)
        self._gauge("kv_pages_held", "KV pages that requests hold").set_function(lambda: pool.held)
        self._gauge("kv_pages_cached", "KV pages that nobody holds and that can be found").set_function(
            lambda: pool.cached
        )
        used = self._gauge("kv_cache_usage_perc", "Share of the KV pages that is held, 0 to 1")
        used.set_function(lambda: pool.held / pool.total)
        running = self._gauge("num_requests_running", "Requests that take part in steps")
        running.set_function(lambda: len(scheduler.running))
        waiting = self._gauge("num_requests_waiting", "Requests that wait for their first step")
        waiting.set_function(lambda: len(scheduler.waiting))

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"{self._prefix}:{name}", about, ["model_name", "engine"], registry=self._registry).labels(
            self._model, "0"
        )

    def _labelled(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"{self._prefix}:{name}", about, ["model_name", "engine", label], registry=self._registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"{self._prefix}:{name}", about, ["model_name", "engine"], registry=self._registry).labels(
            self._model, "0"
        )

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(
            f"{self._prefix}:{name}", about, ["model_name", "engine"], buckets=buckets, registry=self._registry
        )
        return made.labels(self._model, "0")
