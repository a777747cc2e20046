"""An OTLP/HTTP collector on loopback, which keeps the spans that it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from waiting import wait_until


@dataclass(frozen=True)
class SeenSpan:
    """A span as it arrived. Ids are hexadecimal; `parent` is empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    begin_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    service: str


@dataclass
class Collector:
    """What has arrived."""

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def take(self, body: bytes) -> None:
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            service = {pair.key: pair.value.string_value for pair in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_read(span, service) for span in scope.spans]

    def wait_for(self, trace_id: str, *names: str) -> dict[str, SeenSpan]:
        """Return the spans of a trace by name, once it has spans of all these names."""
        wait_until(lambda: {*names} <= {*self.of(trace_id)}, f"the trace has {[*self.of(trace_id)]}, not {names}")
        return self.of(trace_id)

    def of(self, trace_id: str) -> dict[str, SeenSpan]:
        return {span.name: span for span in list(self.spans) if span.trace_id == trace_id}


def _read(span: Any, service: str) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        attributes={pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes},
        service=service,
    )


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector for the time of the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.add(self.path)
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(60)
