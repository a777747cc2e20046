"""The distributor's own metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from seesay.serving.proxy.nodes import Nodes

_SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.05, 0.25, 1, 5, 30, 120)


class ProxyMetrics:
    """Counts of requests, retries and times; what each node is doing is read at each scrape."""

    def __init__(self, nodes: Nodes) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._answers = Counter("seesay_proxy_answers", "answers to clients", ("status",), registry=registry)
        self._sent = Counter("seesay_proxy_requests", "answers of nodes", ("node", "status"), registry=registry)
        self._retries = Counter("seesay_proxy_retries", "requests that a node refused", ("reason",), registry=registry)
        self._added = Histogram(
            "seesay_proxy_added_seconds",
            "from the end of a request's body until the node that answered had it",
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(_NodeCollector(nodes))

    def observe_sent(self, node: str, status: int, added_s: float) -> None:
        """Count an answer that a node has begun."""
        self._sent.labels(node, str(status)).inc()
        self._added.observe(added_s)

    def observe_retry(self, reason: str) -> None:
        """Count a request that went, or would have gone, to another node."""
        self._retries.labels(reason).inc()

    def observe_http(self, _endpoint: str, status: int, _elapsed_s: float) -> None:
        """Count an answer that a client got; 0 is none."""
        self._answers.labels(str(status)).inc()

    def observe_ignored(self, _endpoint: str, _num_fields: int) -> None:
        """Nodes count the fields that they ignore."""


class _NodeCollector(Collector):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def collect(self) -> Iterable[GaugeMetricFamily]:
        running = GaugeMetricFamily("seesay_proxy_outstanding", "requests at a node", labels=("node",))
        up = GaugeMetricFamily("seesay_proxy_node_up", "whether a node is healthy", labels=("node",))
        for node in self._nodes:
            running.add_metric((node.name,), node.num_running)
            up.add_metric((node.name,), float(node.is_up))
        return running, up
