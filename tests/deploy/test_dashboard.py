"""Whatever asks for our metrics by name gets them: the dashboard's queries, the autoscaler's, the adapter's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from live_proxy import serve_proxy
from live_server import ask_about, make_data_url, make_settings, serve
from prometheus_client.parser import text_string_to_metric_families
from shell_lines import read_text

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "seesay.json"
OF_PROMETHEUS = {"instance", "job", "replica", "namespace", "pod"}  # and `--dp` has `replica`


@pytest.fixture(scope="module")
def offered(tiny_checkpoint: Callable[[str], Path]) -> Iterator[dict[str, set[str]]]:
    """The labels of each sample that a server and a distributor offer after a request about a picture."""
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with (
        AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine,
        serve(engine, make_settings()) as server,
        serve_proxy([server.url]) as proxy,
    ):
        proxy.post(messages=ask_about(make_data_url(), "?"), max_tokens=3, ignore_eos=True).raise_for_status()
        httpx.post(f"{proxy.url}/nodes/add", json={"url": "http://127.0.0.1:9"}).raise_for_status()
        proxy.call(proxy.uvicorn.config.app.state.server.metrics.retries.labels("status 503").inc)  # type: ignore[union-attr]
        pages = [httpx.get(f"{url}/metrics", timeout=60).text for url in (server.url, proxy.url)]
    found: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    yield found


def read_queries() -> list[tuple[str, str]]:
    """Each query of the dashboard with its legend."""
    panels = json.loads(read_text(DASHBOARD))["panels"]
    assert len(panels) >= 12
    return [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]


def test_dashboard_is_what_its_script_writes() -> None:
    namespace: dict[str, object] = {"__name__": "made", "__file__": str(DASHBOARD.parents[1] / "make_dashboard.py")}
    exec(compile(read_text(DASHBOARD.parents[1] / "make_dashboard.py"), "make_dashboard.py", "exec"), namespace)
    make_dashboard = namespace["make_dashboard"]
    assert callable(make_dashboard)
    assert json.loads(read_text(DASHBOARD)) == make_dashboard(), "run deploy/grafana/make_dashboard.py"


def test_queries_name_what_is_offered(offered: dict[str, set[str]]) -> None:
    for query, legend in read_queries():
        names = re.findall(r"([a-zA-Z_:][\w:]*)\{", query)
        assert names, query
        wanted = set(re.findall(r"{{(\w+)}}", legend))
        for group in re.findall(r"by \(([^)]*)\)", query):
            wanted |= {label.strip() for label in group.split(",")}
        wanted |= set(re.findall(r"[{,](\w+)=", query))
        for name in names:
            assert name in offered, f"/metrics has no {name}"
            assert wanted - OF_PROMETHEUS <= offered[name], f"{name} has no label {wanted - offered[name]}"


def test_queries_are_promql() -> None:
    promql = pytest.importorskip("promql_parser")
    for query, _ in read_queries():
        promql.parse(query.replace("$__rate_interval", "1m"))


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads(read_text(DASHBOARD))["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len({*cells}) and max(x for x, _ in cells) < 24


def test_provisioning_finds_dashboard_and_source() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    source = yaml.safe_load(read_text(folder / "datasources" / "prometheus.yaml"))["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    provider = yaml.safe_load(read_text(folder / "dashboards" / "seesay.yaml"))["providers"][0]
    compose = yaml.safe_load(read_text(ROOT / "deploy" / "compose.yaml"))["services"]["grafana"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose["volumes"]
    home = compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


def test_adapter_hands_on_what_is_offered(offered: dict[str, set[str]]) -> None:
    rules = yaml.safe_load(read_text(ROOT / "deploy" / "helm" / "prometheus-adapter.yaml"))["rules"]["custom"]
    names = re.findall(r"seesay_\w+", rules[0]["seriesQuery"])
    assert len(names) == 2 and {*names} <= {*offered}
