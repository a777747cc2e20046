"""Prometheus metrics: HTTP requests, tokens, times per stage, and the state of the engine at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from seesay.engine.commands import PARTS as SLEEPING_PARTS
from seesay.engine.watchdog import PARTS
from seesay.serving.traffic.metric_sums import Family, Figures, add_up, read_families
from seesay.values import EngineStats, GenerationRequest, MediaPart, Message, OutputDelta

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.engine.watchdog import Fault

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_STAGES = ("fetch", "decode_media", "preprocess", "encode_queue", "encode", "prefill", "decode")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """The metrics of one app: those of this frontend, and those of the engine. Call the `observe_…` methods from the
    event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.registry = CollectorRegistry()
        self._of_engine = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Iterable[float], labels: Iterable[str] = ()) -> Histogram:
            return Histogram(name, text, labels, buckets=tuple(buckets), registry=self.registry)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self._http = counter("seesay_http_requests", "HTTP requests by endpoint and status", ("endpoint", "status"))
        self._http_s = histogram("seesay_http_request_seconds", "time to answer", _SECONDS, ("endpoint",))
        self._ignored = counter("seesay_ignored_fields", "fields of requests that were ignored", ("endpoint",))
        self._answers = counter("seesay_answers", "answers of the engine by finish reason", ("reason",))
        self._prompt = counter("seesay_prompt_tokens", "prompt tokens")
        self._generated = counter("seesay_generated_tokens", "tokens generated")
        self._cached = counter("seesay_cached_prompt_tokens", "prompt tokens that came from the prefix cache")
        self._vision = counter("seesay_vision_tokens", "prompt positions that hold embeddings of pictures or videos")
        self._audio = counter("seesay_audio_tokens", "prompt positions that hold embeddings of audio")
        self._media = counter("seesay_media_items", "pictures and videos of answered requests", ("modality",))
        self._live_frames = counter("seesay_live_frames", "frames of live sessions by what became of them", ("result",))
        self._prompt_size = histogram("seesay_request_prompt_tokens", "tokens of a prompt", _TOKENS)
        self._answer_size = histogram("seesay_request_generated_tokens", "tokens of an answer", _TOKENS)
        self._first = histogram("seesay_time_to_first_token_seconds", "from submission to the first token", _SECONDS)
        self._per_token = histogram(
            "seesay_time_per_output_token_seconds", "mean per token after the first", _TOKEN_SECONDS
        )
        self._total = histogram("seesay_end_to_end_seconds", "from submission to the last token", _SECONDS)
        self._stages = histogram("seesay_stage_seconds", "time of a request in each stage", _SECONDS, ("stage",))
        self.registry.register(_FrontCollector(engine))
        self._of_engine.register(_EngineCollector(engine))

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read by `read` at each scrape."""
        self.registry.register(_GaugeCollector(name, text, read))

    def observe_http(self, endpoint: str, status: int, elapsed_s: float) -> None:
        """Count a finished HTTP request."""
        self._http.labels(endpoint, str(status)).inc()
        self._http_s.labels(endpoint).observe(elapsed_s)

    def observe_ignored(self, endpoint: str, num_fields: int) -> None:
        """Count the fields of a request that were ignored. Their names are a client's, and must not become labels."""
        if num_fields:
            self._ignored.labels(endpoint).inc(num_fields)

    def observe_live_frames(self, result: Literal["taken", "dropped", "refused"], number: int = 1) -> None:
        """Count frames of live sessions."""
        self._live_frames.labels(result).inc(number)

    def observe_aborted(self, num_answers: int) -> None:
        """Count answers that were aborted because their HTTP request ended."""
        self._answers.labels("abandoned").inc(num_answers)

    def observe_answer(self, request: GenerationRequest, last: OutputDelta) -> None:
        """Count a finished answer; `last` is its final delta. A prompt that is computed ahead of its question has no
        answer, and its tokens count when they are asked about."""
        if not request.wants_answer:
            return
        self._answers.labels(last.finish_reason or "").inc()
        if (usage := last.usage) is not None:
            self._prompt.inc(usage.prompt_tokens)
            self._generated.inc(usage.completion_tokens)
            self._cached.inc(usage.cached_tokens)
            self._vision.inc(usage.media_tokens - usage.audio_tokens)
            self._audio.inc(usage.audio_tokens)
            self._prompt_size.observe(usage.prompt_tokens)
            self._answer_size.observe(usage.completion_tokens)
            for part in media_of(request):
                self._media.labels(part.modality.value).inc()
        self._observe_times(last)

    def _observe_times(self, last: OutputDelta) -> None:
        if last.finish_reason in ("stop", "length") and (timings := last.timings) is not None:
            self._first.observe(timings.time_to_first_token_s)
            self._total.observe(timings.total_s)
            if (usage := last.usage) is not None and usage.completion_tokens > 1:
                self._per_token.observe(timings.decode_s / (usage.completion_tokens - 1))
            for stage in _STAGES:
                if (elapsed_s := getattr(timings, f"{stage}_s", 0.0)) > 0:
                    self._stages.labels(stage).observe(elapsed_s)

    def read_frontend(self) -> list[Family]:
        """Return the figures of this frontend, without those of the engine. May be called from any thread."""
        return read_families(self.registry)

    def render(self, frontends: Sequence[Sequence[Family]]) -> bytes:
        """Return all metrics in Prometheus' text format: the sums of `frontends`, and those of the engine."""
        total = CollectorRegistry()
        total.register(Figures(add_up([*frontends, read_families(self._of_engine)])))
        return generate_latest(total)


def media_of(request: GenerationRequest) -> list[MediaPart]:
    """Return the pictures and videos of a request."""
    found = list(request.media)
    if not isinstance(request.prompt, str):
        messages = (message for message in request.prompt if isinstance(message, Message))
        found += [part for message in messages for part in message.parts if isinstance(part, MediaPart)]
    return found


class _GaugeCollector(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterable[Any]:
        yield GaugeMetricFamily(self._name, self._text, value=self._read())


class _FrontCollector(Collector):
    """Read what the frontend of the engine counts, which prepares requests."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Any]:
        stats = self._engine.stats()
        for name, text, value in (
            ("engine_preparing", "requests whose template, media or tokens are being prepared", stats.num_preparing),
            ("feature_cache_bytes", "size of the cache of preprocessed media", stats.feature_bytes),
        ):
            yield GaugeMetricFamily(f"seesay_{name}", text, value=value)
        yield _make_cache_counter("feature", stats.total_feature_hits, stats.total_feature_misses)


class _EngineCollector(Collector):
    """Read the engine's own counters at each scrape, so that nothing is counted twice."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Any]:
        stats = self._engine.stats()
        for name, text, value in (
            ("engine_running", "sequences in the running batch", stats.num_running),
            ("engine_waiting", "sequences that wait for a place in the running batch", stats.num_waiting),
            ("encode_queue", "pictures and videos that wait for the vision tower", stats.num_encode_queued),
            ("kv_blocks", "blocks of the KV cache", stats.num_kv_blocks),
            ("kv_blocks_used", "blocks that sequences hold", stats.num_used_kv_blocks),
            ("kv_blocks_cached", "free blocks that the prefix cache can still find", stats.num_cached_kv_blocks),
            ("kv_host_blocks", "blocks of the KV cache in host memory", stats.num_host_kv_blocks),
            ("kv_host_blocks_used", "blocks in use in the host's KV cache", stats.num_used_host_kv_blocks),
            ("kv_usage_ratio", "share of the KV cache in use", _ratio(stats.num_used_kv_blocks, stats.num_kv_blocks)),
            ("embedding_cache_bytes", "size of the embedding cache", stats.embedding_bytes),
        ):
            yield GaugeMetricFamily(f"seesay_{name}", text, value=value)
        for name, text, value in (
            ("preemptions", "sequences put back into the queue", stats.total_preemptions),
            ("jumped_tokens", "tokens that a grammar forced, computed with others", stats.total_jumped_tokens),
            ("draft_tokens", "tokens that speculation proposed", stats.total_draft_tokens),
            ("accepted_tokens", "proposed tokens that became tokens of answers", stats.total_accepted_tokens),
            ("prefix_queried_tokens", "prompt tokens looked up in the prefix cache", stats.total_prefix_queried_tokens),
            ("prefix_hit_tokens", "prompt tokens found in the prefix cache", stats.total_prefix_hit_tokens),
            ("kv_host_loads", "KV blocks copied back from host memory", stats.total_host_kv_loads),
            ("encoder_items", "pictures and videos encoded", stats.total_encoder_items),
            ("nonfinite", "requests and pictures for which NaN or infinity was computed", stats.total_not_finite),
            ("encoder_restarts", "encoder workers that died and were restarted", stats.total_encoder_restarts),
            ("engine_restarts", "engine processes that died or hung", stats.total_engine_restarts),
        ):
            yield CounterMetricFamily(f"seesay_{name}", text, value=value)
        yield from _make_vllm_families(stats)
        status = self._engine.status
        yield GaugeMetricFamily("seesay_weights_epoch", "how often the weights have changed", value=status.epoch)
        sleeping = GaugeMetricFamily("seesay_sleeping", "whether a part's memory is freed", labels=("part",))
        for part in SLEEPING_PARTS:
            sleeping.add_metric((part,), float(part in status.asleep))
        yield sleeping
        yield self._make_part_gauge(self._engine.fault)
        yield _make_cache_counter("embedding", stats.total_embedding_hits, stats.total_embedding_misses)
        yield _make_histogram("seesay_step_rows", "sequences per engine step", stats.step_sizes)
        yield _make_histogram("seesay_encoder_batch_size", "pictures and videos per encoder call", stats.encode_sizes)

    @staticmethod
    def _make_part_gauge(fault: Fault | None) -> GaugeMetricFamily:
        family = GaugeMetricFamily("seesay_part_up", "whether a part of the engine works", labels=("part",))
        for part in PARTS:
            family.add_metric((part,), float(fault is None or fault.part != part))
        return family


def _make_vllm_families(stats: EngineStats) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
    """Yield what routers of several servers read, under vLLM's names."""
    for name, text, value in (
        ("num_requests_running", "sequences in the running batch", stats.num_running),
        ("num_requests_waiting", "sequences that wait for a place in the running batch", stats.num_waiting),
        ("kv_cache_usage_perc", "share of the KV cache in use", _ratio(stats.num_used_kv_blocks, stats.num_kv_blocks)),
    ):
        yield GaugeMetricFamily(f"vllm:{name}", text, value=value)
    for name, text, value in (
        ("prefix_cache_queries", "prompt tokens looked up in the prefix cache", stats.total_prefix_queried_tokens),
        ("prefix_cache_hits", "prompt tokens found in the prefix cache", stats.total_prefix_hit_tokens),
    ):
        yield CounterMetricFamily(f"vllm:{name}", text, value=value)


def _make_cache_counter(cache: str, hits: int, misses: int) -> CounterMetricFamily:
    family = CounterMetricFamily("seesay_cache_lookups", "by cache and result", labels=("cache", "result"))
    family.add_metric((cache, "hit"), hits)
    family.add_metric((cache, "miss"), misses)
    return family


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _make_histogram(name: str, text: str, sizes: Sequence[tuple[int, int]]) -> HistogramMetricFamily:
    """Return a histogram of (size, count) pairs."""
    buckets = [(str(float(bound)), sum(count for size, count in sizes if size <= bound)) for bound in _SIZES]
    buckets.append(("+Inf", sum(count for _, count in sizes)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=sum(size * count for size, count in sizes))
