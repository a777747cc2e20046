"""The distributor's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from seesay.serving.proxy.nodes import Nodes
from seesay.serving.traffic.metric_sums import Family, read_families

_SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.05, 0.25, 1, 5, 30, 120)
_ADDED = "from the end of a request's body until it was sent to the node that answered"


class ProxyMetrics:
    """Counts of requests, retries and times."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.answers = Counter("seesay_proxy_answers", "answers to clients", ["status"], registry=registry)
        self.sent = Counter("seesay_proxy_requests", "answers of nodes", ["node", "status"], registry=registry)
        self.retries = Counter("seesay_proxy_retries", "requests that a node refused", ["reason"], registry=registry)
        self.added = Histogram("seesay_proxy_added_seconds", _ADDED, buckets=_SECONDS, registry=registry)
        self._running = Gauge("seesay_proxy_outstanding", "requests at a node", ["node"], registry=registry)
        self._up = Gauge("seesay_proxy_node_up", "whether a node is healthy", ["node"], registry=registry)

    def observe_http(self, _endpoint: str, status: int, _elapsed_s: float) -> None:
        """Count an answer that a client got; 0 is none."""
        self.answers.labels(str(status)).inc()

    def observe_ignored(self, _endpoint: str, _num_fields: int) -> None:
        """Nodes count the fields that they ignore."""

    def read(self, nodes: Nodes) -> list[Family]:
        """Return the metrics, with what each node is doing now."""
        self._running.clear()
        self._up.clear()
        for node in nodes:
            self._running.labels(node.name).set(node.num_running)
            self._up.labels(node.name).set(node.is_up)
        return read_families(self._registry)
