"""OpenTelemetry traces: one span for each POST request, and below it one for each of its stages.

Nothing here imports OpenTelemetry before `Tracing` is made. Which requests are traced, and the name of the service, are
OpenTelemetry's own settings: OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from seesay.errors import ConfigError, MissingExtraError
from seesay.values import StageTimings, Usage
from seesay.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer
    from starlette.types import Message, Receive, Scope

    from seesay.values import OutputDelta, StageMoments

_CONTEXT = (b"traceparent", b"tracestate")
_PATH = "/v1/traces"
_FLUSH_S = 5.0
_SERVER_ERROR = 500
_MAX_PATH_CHARS = 200
_ANSWER = "seesay.answer"


def read_endpoint(url: str) -> str:
    """Return the address that spans are sent to: `url`, with OTLP's path if it has none. Raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"otlp_traces_endpoint must be a URL such as http://localhost:4318{_PATH}, got {url!r}")
    return url if parts.path.strip("/") else url.rstrip("/") + _PATH


_Attributes = Mapping[str, str | int | float]
Headers = list[tuple[bytes, bytes]]


@dataclass
class Sent:
    """A request that is sent to a node: its headers, and the status of the answer, None where none came."""

    headers: Headers
    status: int | None = None


class Tracing:
    """Makes the spans of requests, and sends them to a collector from a thread of its own."""

    def __init__(self, processor: SpanProcessor, service: str) -> None:
        """`processor` gets the spans, of `service` unless the environment names it. `open_tracing` makes the one that
        sends them."""
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = {SERVICE_VERSION: __version__}
        if SERVICE_NAME not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") and "OTEL_SERVICE_NAME" not in os.environ:
            resource[SERVICE_NAME] = service
        self._provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("seesay", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, scope: Scope) -> RequestTrace | None:
        """Begin the span of a POST request, below that of its client if it names one. The request keeps it in its
        state. Others are not traced: most of them are probes."""
        if scope["method"] != "POST":
            return None
        from opentelemetry.trace import SpanKind

        given = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}
        attributes = {
            "http.request.method": "POST",
            "url.path": scope["path"][:_MAX_PATH_CHARS],
            "seesay.request_id": scope["state"]["request_id"],
        }
        span = self._tracer.start_span(
            "POST", self._propagator.extract(given), kind=SpanKind.SERVER, attributes=attributes
        )
        trace = RequestTrace(self._tracer, span)
        scope["state"]["trace"] = trace
        return trace

    def close(self) -> None:
        """Send the spans that are left, for a few seconds at most."""
        self._provider.force_flush(int(1000 * _FLUSH_S))
        self._provider.shutdown()


def open_tracing(endpoint: str | None, *, service: str) -> Tracing | None:
    """Return the tracing that sends to `endpoint`, None without one. Raises `MissingExtraError`.

    service: OpenTelemetry's `service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has one.
    """
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise MissingExtraError("otlp_traces_endpoint", package=error.name or "opentelemetry", extra="otel") from None
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=read_endpoint(endpoint))), service)


class RequestTrace:
    """The span of one request. It is also there, and records nothing, for a request that is not sampled: its context
    tells the next server so."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._offset_ns = time.time_ns() - time.perf_counter_ns()  # of `time.perf_counter` from the clock of the day
        self._begun_s = time.perf_counter()

    def watch(self, receive: Receive) -> Receive:
        """Return `receive`, which notes when the body has arrived."""
        if not self._span.is_recording():
            return receive
        num_bytes = 0

        async def receive_noted() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request" and num_bytes >= 0:
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    self._add("receive", self._begun_s, time.perf_counter(), {"http.request.body.size": num_bytes})
                    num_bytes = -1
            return message

        return receive_noted

    def add_answer(self, index: int, last: OutputDelta) -> None:
        """Add the stages of an answer of the engine. `last` is its final delta, `index` its number in the request."""
        if last.moments is None or not self._span.is_recording():
            return
        moments, usage, timings = last.moments, last.usage or Usage(), last.timings or StageTimings()
        self._add_media(moments, usage, timings)
        self._add("queue", moments.prepared_at_s, moments.computing_at_s or moments.ended_at_s, {_ANSWER: index})
        prompt = {"gen_ai.usage.input_tokens": usage.prompt_tokens, "seesay.cached_tokens": usage.cached_tokens}
        first_s = moments.first_token_at_s
        self._add("prefill", moments.computing_at_s, first_s or moments.ended_at_s, {_ANSWER: index, **prompt})
        answer: _Attributes = {
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "seesay.finish_reason": str(last.finish_reason),
        }
        self._add("decode", first_s, moments.ended_at_s, {_ANSWER: index, **answer})

    def _add_media(self, moments: StageMoments, usage: Usage, timings: StageTimings) -> None:
        if not (usage.num_images or usage.num_videos or usage.num_audios):
            return
        counts = {
            "seesay.images": usage.num_images,
            "seesay.videos": usage.num_videos,
            "seesay.audios": usage.num_audios,
        }
        seconds = {f"seesay.{name}": getattr(timings, name) for name in ("fetch_s", "decode_media_s", "preprocess_s")}
        self._add("media", moments.received_at_s, moments.prepared_at_s, counts | seconds)
        encode = {"seesay.media_tokens": usage.media_tokens, "seesay.encode_queue_s": timings.encode_queue_s}
        self._add("encode", moments.encoding_at_s, moments.encoded_at_s, encode)

    @contextmanager
    def sending(self, node: str, headers: Headers) -> Iterator[Sent]:
        """Span the block in which the request is sent to a node, with `headers`, to which the span's context is added:
        what the node does becomes a child of it. The block notes the status of the answer."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        span = self._tracer.start_span(
            "forward", set_span_in_context(self._span), kind=SpanKind.CLIENT, attributes={"seesay.node": node}
        )
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
        own = [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]
        sent = Sent([*(pair for pair in headers if pair[0] not in _CONTEXT), *own])
        try:
            yield sent
        finally:
            if sent.status is None:
                span.set_status(StatusCode.ERROR)
            else:
                span.set_attribute("http.response.status_code", sent.status)
            span.end()

    def end(self, scope: Scope, status: int) -> None:
        """End the span. `status` 0 is none."""
        from opentelemetry.trace import StatusCode

        if (route := getattr(scope.get("route"), "path", None)) is not None:
            self._span.update_name(f"POST {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if not status or status >= _SERVER_ERROR:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _add(
        self,
        name: str,
        begun_s: float | None,
        ended_s: float | None,
        attributes: _Attributes,
    ) -> None:
        if begun_s is None or ended_s is None:
            return
        from opentelemetry.trace import set_span_in_context

        begin_ns, end_ns = (self._offset_ns + round(1e9 * moment_s) for moment_s in (begun_s, max(begun_s, ended_s)))
        parent = set_span_in_context(self._span)
        self._tracer.start_span(name, parent, attributes=attributes, start_time=begin_ns).end(end_ns)
