"""Writes the Grafana dashboard `dashboards/seesay.json`: run it after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent / "dashboards" / "seesay.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = '{job=~"$job",instance=~"$instance"}'


def _rate(name: str, by: str = "") -> str:
    return f"sum{by}(rate({name}{_CHOSEN}[$__rate_interval]))"


def _quantiles(name: str) -> list[tuple[str, str]]:
    rates = _rate(f"{name}_bucket", " by (le)")
    return [(f"histogram_quantile(0.{percent}, {rates})", f"p{percent}") for percent in (50, 95, 99)]


def _share(part: str, whole: str) -> str:
    return f"{part} / clamp_min({whole}, 1e-9)"


def _hits(cache: str) -> str:
    found = _rate("seesay_cache_lookups_total").replace("{", f'{{cache="{cache}",result="hit",')
    return _share(found, _rate("seesay_cache_lookups_total").replace("{", f'{{cache="{cache}",'))


_PREFIX_HITS = _share(_rate("seesay_prefix_hit_tokens_total"), _rate("seesay_prefix_queried_tokens_total"))
_STAGE = _share(_rate("seesay_stage_seconds_sum", " by (stage)"), _rate("seesay_stage_seconds_count", " by (stage)"))

PANELS: tuple[tuple[str, str, list[tuple[str, str]]], ...] = (
    ("Requests", "reqps", [(_rate("seesay_http_requests_total", " by (status)"), "{{status}}")]),
    (
        "Running and waiting",
        "short",
        [
            (f"sum(seesay_requests_running{_CHOSEN})", "answered"),
            (f"sum(seesay_requests_waiting{_CHOSEN})", "waiting for a place"),
            (f"sum(seesay_engine_running{_CHOSEN})", "in the batch"),
            (f"sum(seesay_engine_waiting{_CHOSEN})", "waiting for the batch"),
        ],
    ),
    ("Time to first token", "s", _quantiles("seesay_time_to_first_token_seconds")),
    ("Time per token", "s", _quantiles("seesay_time_per_output_token_seconds")),
    ("Whole answers", "s", _quantiles("seesay_end_to_end_seconds")),
    (
        "Tokens per second",
        "short",
        [
            (_rate("seesay_prompt_tokens_total"), "prompt"),
            (_rate("seesay_cached_prompt_tokens_total"), "prompt, cached"),
            (_rate("seesay_vision_tokens_total"), "pictures and videos"),
            (_rate("seesay_audio_tokens_total"), "audio"),
            (_rate("seesay_generated_tokens_total"), "generated"),
        ],
    ),
    ("KV cache in use", "percentunit", [(f"seesay_kv_usage_ratio{_CHOSEN}", "{{instance}} {{replica}}")]),
    (
        "Cache hits",
        "percentunit",
        [(_PREFIX_HITS, "prefix, tokens"), (_hits("embedding"), "pictures, encoded"), (_hits("feature"), "decoded")],
    ),
    ("Mean time in each stage", "s", [(_STAGE, "{{stage}}")]),
    (
        "Vision encoder",
        "short",
        [
            (_rate("seesay_encoder_items_total"), "pictures and videos per second"),
            (f"sum(seesay_encode_queue{_CHOSEN})", "waiting"),
        ],
    ),
    (
        "Rows per step",
        "short",
        [(_share(_rate("seesay_step_rows_sum"), _rate("seesay_step_rows_count")), "mean")],
    ),
    (
        "Trouble",
        "short",
        [
            (_rate("seesay_preemptions_total"), "preemptions per second"),
            (_rate("seesay_engine_restarts_total"), "engine restarts"),
            (_rate("seesay_encoder_restarts_total"), "encoder restarts"),
            (f"sum(seesay_part_up{_CHOSEN} == bool 0)", "parts that are down"),
        ],
    ),
    (
        "Distributor: requests at each node",
        "short",
        [
            (f"seesay_proxy_outstanding{_CHOSEN}", "{{node}}"),
            (f"sum(seesay_proxy_node_up{_CHOSEN})", "nodes that are up"),
        ],
    ),
    ("Distributor: added time", "s", _quantiles("seesay_proxy_added_seconds")),
    ("Distributor: retries", "reqps", [(_rate("seesay_proxy_retries_total", " by (reason)"), "{{reason}}")]),
)


def _make_panel(index: int, title: str, unit: str, queries: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": 8 * (index % 3), "y": 8 * (index // 3), "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(queries)
        ],
    }


def _make_choice(name: str) -> dict[str, Any]:
    query = f"label_values(seesay_requests_running, {name})"
    return {
        "name": name, "type": "query", "datasource": _SOURCE, "query": {"query": query, "refId": name},
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def make_dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's format."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "seesay",
        "title": "seesay",
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source, _make_choice("job"), _make_choice("instance")]},
        "panels": [_make_panel(index, *panel) for index, panel in enumerate(PANELS)],
    }


if __name__ == "__main__":
    DASHBOARD.write_text(json.dumps(make_dashboard(), indent=1) + "\n", encoding="utf-8")
