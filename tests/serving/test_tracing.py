"""Spans arrive at a collector on loopback, over OTLP/HTTP: of servers, and through the distributor."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from echo_node import echo_nodes
from live_proxy import serve_proxy
from live_server import LiveServer, ask_about, make_data_url, make_settings, serve
from ports import find_port
from waiting import wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.tracing import read_endpoint

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from trace_collector import Collector, running_collector

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER_KIND, CLIENT_KIND = 2, 3


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield collector


@pytest.fixture(scope="module")
def traced(engine: AsyncEngine, collector: Collector) -> Iterator[LiveServer]:
    with serve(engine, make_settings(otlp_traces_endpoint=collector.url)) as server:
        yield server


def context(trace_id: str, *, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT}-0{int(sampled)}"}


def body(seed: int, **options: object) -> dict[str, object]:
    return {"messages": ask_about(make_data_url(seed=seed), "?"), "max_tokens": 5, "ignore_eos": True, **options}


@pytest.mark.parametrize("stream", [False, True])
def test_stages_are_spans_of_clients_trace(traced: LiveServer, collector: Collector, stream: bool) -> None:
    trace_id = f"{TRACE[:-1]}{int(stream)}"
    asked = body(900 + stream, stream=stream)
    answer = traced.post(CHAT, asked, headers=context(trace_id))
    assert answer.status_code == 200
    stages = ["receive", "media", "queue", "encode", "prefill", "decode"]
    spans = collector.wait_for(trace_id, f"POST {CHAT}", *stages)
    root = spans[f"POST {CHAT}"]
    assert (root.parent, root.kind, root.service, root.is_error) == (PARENT, SERVER_KIND, "seesay", False)
    assert root.attributes["http.response.status_code"] == 200 and root.attributes["http.route"] == CHAT
    assert root.attributes["seesay.request_id"] == answer.headers["x-request-id"]
    assert {span.parent for name, span in spans.items() if name in stages} == {root.span_id}
    for span in spans.values():
        assert root.begin_ns <= span.begin_ns <= span.end_ns <= root.end_ns, span
    begun = [spans[name].begin_ns for name in ("receive", "media", "queue", "encode", "prefill", "decode")]
    assert begun == sorted(begun)
    assert spans["media"].end_ns == spans["queue"].begin_ns and spans["prefill"].end_ns == spans["decode"].begin_ns
    assert spans["media"].attributes["seesay.images"] == 1 and spans["encode"].attributes["seesay.media_tokens"] > 0
    assert spans["decode"].attributes["gen_ai.usage.output_tokens"] == 5
    assert spans["receive"].attributes["http.request.body.size"] == int(answer.request.headers["content-length"])
    assert collector.paths == {"/v1/traces"}


def test_request_that_nobody_samples(traced: LiveServer, collector: Collector) -> None:
    """The decision of the client counts, and what is no trace context is ignored."""
    assert traced.post(CHAT, body(1), headers=context("1" * 32, sampled=False)).status_code == 200
    for wrong in ("", "00-abc-def-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 4000, "00-é-é-01"):
        assert traced.post(CHAT, body(1), headers={"traceparent": wrong.encode("latin-1")}).status_code == 200
    last = traced.post(CHAT, body(1), headers=context("2" * 32))
    assert last.status_code == 200 and httpx.get(f"{traced.url}/health").status_code == 200
    collector.wait_for("2" * 32, "decode", f"POST {CHAT}")
    assert not collector.of("1" * 32)
    assert not any(span.attributes.get("url.path") == "/health" for span in collector.spans)


def test_text_has_no_media_and_each_answer_its_stages(traced: LiveServer, collector: Collector) -> None:
    asked = {"messages": ask_about("Hello"), "n": 2, "max_tokens": 3, "temperature": 1.0, "ignore_eos": True}
    assert traced.post(CHAT, asked, headers=context("3" * 32)).status_code == 200
    spans = collector.wait_for("3" * 32, f"POST {CHAT}", "decode")
    assert "media" not in spans and "encode" not in spans
    answers = [span for span in collector.spans if span.trace_id == "3" * 32 and span.name == "decode"]
    assert {span.attributes["seesay.answer"] for span in answers} == {0, 1}


def test_refused_request_is_a_span(traced: LiveServer, collector: Collector) -> None:
    assert traced.post(CHAT, {"messages": 3}, headers=context("4" * 32)).status_code == 400
    root = collector.wait_for("4" * 32, f"POST {CHAT}")[f"POST {CHAT}"]
    assert root.attributes["http.response.status_code"] == 400 and not root.is_error


def test_trace_through_distributor(traced: LiveServer, collector: Collector) -> None:
    """The server's span is a child of the one in which the distributor has sent the request."""
    with serve_proxy([traced.url], otlp_traces_endpoint=f"{collector.url}/v1/traces") as proxy:
        headers = {**context("5" * 32), "tracestate": "vendor=1"}
        answer = httpx.post(f"{proxy.url}{CHAT}", json=body(2), headers=headers, timeout=60)
        assert answer.status_code == 200
        spans = collector.wait_for("5" * 32, "POST", "forward", f"POST {CHAT}", "decode")
    assert spans["POST"].parent == PARENT and spans["forward"].parent == spans["POST"].span_id
    assert spans[f"POST {CHAT}"].parent == spans["forward"].span_id
    assert (spans["forward"].service, spans["decode"].service) == ("seesay-proxy", "seesay")
    assert spans["forward"].kind == CLIENT_KIND and spans["forward"].attributes["seesay.node"] == traced.url
    assert spans["forward"].attributes["http.response.status_code"] == 200


def test_distributor_spans_each_try(collector: Collector) -> None:
    """A node that cannot be reached is a failed span, and the next one gets a context of its own."""
    with echo_nodes(1) as nodes, serve_proxy([nodes[0].url], otlp_traces_endpoint=collector.url) as proxy:
        gone = f"http://127.0.0.1:{find_port()}"
        httpx.post(f"{proxy.url}/nodes/add", json={"url": gone}).raise_for_status()

        def take_all_for_healthy() -> None:
            for node in proxy.nodes:
                node.is_up = True

        for seed in range(64):  # until one belongs to the node that is gone
            trace_id = f"{seed + 1:032x}"
            proxy.call(take_all_for_healthy)
            answer = httpx.post(f"{proxy.url}{CHAT}", json={"prompt": f"{seed}"}, headers=context(trace_id), timeout=60)
            seen = dict(answer.json()["headers"])
            collector.wait_for(trace_id, "POST", "forward")
            tries = [span for span in collector.spans if span.trace_id == trace_id and span.name == "forward"]
            if len(tries) > 1:
                break
    assert [(span.attributes["seesay.node"], span.is_error) for span in tries] == [(gone, True), (nodes[0].url, False)]
    assert seen["traceparent"] == f"00-{trace_id}-{tries[1].span_id}-01"


def test_sampler_of_environment(engine: AsyncEngine, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that the distributor does not sample is not sampled by the server either."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "eyes")
    with echo_nodes(1) as nodes, serve_proxy([nodes[0].url], otlp_traces_endpoint=collector.url) as proxy:
        answer = httpx.post(f"{proxy.url}{CHAT}", json={"prompt": "x"}, timeout=60).json()
        assert int(dict(answer["headers"])["traceparent"].rpartition("-")[2], 16) & 1 == 0
        httpx.post(f"{proxy.url}{CHAT}", json={"prompt": "x"}, headers=context("6" * 32), timeout=60)
        assert collector.wait_for("6" * 32, "POST")["POST"].service == "eyes"


def test_spans_are_sent_before_the_end(engine: AsyncEngine, collector: Collector) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        with serve(engine, make_settings(otlp_traces_endpoint=collector.url)) as server:
            assert server.post(CHAT, body(3), headers=context("7" * 32)).status_code == 200
            assert not collector.of("7" * 32)
    assert {"decode", f"POST {CHAT}"} <= {*collector.of("7" * 32)}


def test_no_collector_is_there(engine: AsyncEngine) -> None:
    """Requests are answered all the same, and the server ends soon, without threads left."""
    before = threading.active_count()
    with serve(engine, make_settings(otlp_traces_endpoint=f"http://127.0.0.1:{find_port()}")) as server:
        assert server.post(CHAT, body(4)).status_code == 200
    wait_until(lambda: threading.active_count() <= before, "threads are left")


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://a/b", "http://", "http://a:99999", "grpc://a:4317"])
def test_wrong_endpoint(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint must be a URL such as"):
        make_settings(otlp_traces_endpoint=url)


def test_endpoint_gets_path() -> None:
    assert read_endpoint("http://a:4318/") == read_endpoint("http://a:4318") == "http://a:4318/v1/traces"
    assert read_endpoint("https://a/other") == "https://a/other"


def test_off_imports_nothing() -> None:
    code = "import sys, seesay.serving.server, seesay.serving.proxy.app; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "seesay.serving.tracing" in modules
    assert not any(name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in modules)
