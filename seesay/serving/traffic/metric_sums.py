"""Metrics as plain values, and their sums: the figures of several processes as if they were one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_GROWING = ("counter", "histogram")


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    """A metric: its name, its type, what it says, and its values."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


def read_families(registry: CollectorRegistry) -> list[Family]:
    """Return what the registry has now."""
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            [Sample(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in registry.collect()
    ]


def keep_totals(families: Iterable[Family]) -> list[Family]:
    """Return what stays true of a process that has ended: what it counted, but not what it had."""
    return [family for family in families if family.kind in _GROWING]


def add_up(figures: Iterable[Sequence[Family]]) -> list[Family]:
    """Return the sums of equal samples (name and labels). When a metric was created, the earliest time counts."""
    heads: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for families in figures:
        for family in families:
            heads.setdefault(family.name, family)
            sums = values.setdefault(family.name, {})
            for name, labels, value in family.samples:
                key = (name, tuple(labels.items()))
                if key not in sums:
                    sums[key] = value
                else:
                    sums[key] = min(sums[key], value) if name.endswith("_created") else sums[key] + value
    return [
        Family(name, head.kind, head.text, [Sample(key[0], dict(key[1]), value) for key, value in values[name].items()])
        for name, head in heads.items()
    ]


class Figures(Collector):
    """Families, for `prometheus_client` to write."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, sample.labels, sample.value)
            yield metric
