"""The Helm chart, rendered by Helm's own engine and checked against the schemas of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from helm_chart import CHART, render
from shell_lines import parse_seesay, read_text

from seesay.serving.http.listener import read_url

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not here")
kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not here")

FULL: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "existingSecret": "keys",
    "otlpTracesEndpoint": "http://tempo:4318/v1/traces",
    "podMonitor": {"enabled": True, "keySecret": {"name": "keys", "key": "one"}},
    "options": ["--session-len", "16384"],
    "proxy": {"options": ["--max-queue", "9"]},
    "image": {"pullSecrets": [{"name": "registry"}]},
    "server": {"existingModelsClaim": "models", "nodeSelector": {"gpu": "h200"}, "tolerations": [{"key": "gpu"}]},
}


def by_kind(values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The documents by kind and component, such as StatefulSet/server."""
    return {f"{doc['kind']}/{doc['metadata']['name'].rpartition('-')[2]}": doc for doc in render(values)}


def container(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]["containers"][0]
    return found


def test_lint() -> None:
    result = helm.lint(str(CHART))
    assert result["errors"] == [] and [entry for entry in result["messages"] if entry["severity"] > 1] == []


@pytest.mark.parametrize("version", ["1.27", "1.33"])
@pytest.mark.parametrize("values", [{}, FULL], ids=["plain", "full"])
def test_documents_are_kubernetes(values: dict[str, Any], version: str) -> None:
    kinds = [document["kind"] for document in render(values)]
    assert kinds.count("PodDisruptionBudget") == kinds.count("Service") == 2
    assert ("HorizontalPodAutoscaler" in kinds) == ("PodMonitor" in kinds) == bool(values)
    for document in render(values):
        if document["kind"] != "PodMonitor":  # the Prometheus Operator's
            kubernetes.validate(document, version, strict=True)


def test_distributor_knows_every_server() -> None:
    """Also those that the autoscaler may add; their names are those that a StatefulSet gives."""
    for values, number in ((None, 2), ({"server": {"replicas": 3}}, 3), (FULL, 8)):
        found = by_kind(values)
        servers, stateful = found["Service/servers"], found["StatefulSet/server"]
        assert stateful["spec"]["serviceName"] == servers["metadata"]["name"] and servers["spec"]["clusterIP"] == "None"
        options = parse_seesay(container(found["Deployment/proxy"])["args"])
        port = servers["spec"]["ports"][0]["port"]
        name, service = stateful["metadata"]["name"], servers["metadata"]["name"]
        assert options.nodes == [f"http://{name}-{index}.{service}:{port}" for index in range(number)]
        assert [read_url(url) for url in options.nodes] == options.nodes
        assert ("replicas" in stateful["spec"]) == (values is not FULL), "the autoscaler owns the number"


def test_pods_listen_drain_and_are_probed() -> None:
    found = by_kind(FULL)
    for name in ("StatefulSet/server", "Deployment/proxy"):
        pod, own = found[name]["spec"]["template"]["spec"], container(found[name])
        options = parse_seesay(own["args"])
        assert own["ports"][0]["containerPort"] == options.server_port
        assert options.otlp_traces_endpoint == "http://tempo:4318/v1/traces"
        pause_s = float(own["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] >= options.drain_timeout + pause_s + 5
        assert own["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert own["livenessProbe"]["httpGet"]["path"] == "/live"
        assert pod["securityContext"]["runAsNonRoot"] and own["securityContext"]["readOnlyRootFilesystem"]
        assert {mount["name"] for mount in own["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
        assert own["envFrom"] == [{"secretRef": {"name": "keys"}}]
    startup = container(found["StatefulSet/server"])["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 30 * 60
    assert parse_seesay(container(found["StatefulSet/server"])["args"]).session_len == 16384


def test_selectors_choose_their_pods_alone() -> None:
    found = by_kind(FULL)
    labels = {
        name: found[name]["spec"]["template"]["metadata"]["labels"]
        for name in ("StatefulSet/server", "Deployment/proxy")
    }
    chosen = {
        "Service/servers": "StatefulSet/server",
        "Service/seesay": "Deployment/proxy",
        "StatefulSet/server": "StatefulSet/server",
        "Deployment/proxy": "Deployment/proxy",
        "PodDisruptionBudget/server": "StatefulSet/server",
        "PodDisruptionBudget/proxy": "Deployment/proxy",
    }
    for selecting, pods in chosen.items():
        selector = found[selecting]["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert [name for name, given in labels.items() if wanted <= given.items()] == [pods]


def test_autoscaler_reads_what_the_adapter_hands_on() -> None:
    spec = by_kind(FULL)["HorizontalPodAutoscaler/server"]["spec"]
    assert spec["scaleTargetRef"]["name"] == by_kind(FULL)["StatefulSet/server"]["metadata"]["name"]
    asked = {metric["pods"]["metric"]["name"] for metric in spec["metrics"]}
    assert asked == {
        *re.findall(r"seesay_\w+", read_text(CHART.parent / "prometheus-adapter.yaml").split("seriesQuery")[1])
    }


def wrong_values() -> Iterator[dict[str, Any]]:
    yield {"server": {"replicas": 0}}
    yield {"server": {"replica": 2}}
    yield {"proxy": {"strategy": "fastest"}}
    yield {"model": ""}
    yield {"autoscaling": {"kvUsage": 1.5}}


@pytest.mark.parametrize("values", [*wrong_values()], ids=str)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmValuesError):
        chart.validate_schema(values)


def test_names_fit_whatever_the_release_is_called() -> None:
    for name in ("seesay", "a" * 53):
        for document in render(name=name):
            assert len(document["metadata"]["name"]) <= 52, "a pod's name is its label, too"
    assert {doc["metadata"]["name"] for doc in render(name="seesay") if doc["kind"] == "Deployment"} == {"seesay-proxy"}
