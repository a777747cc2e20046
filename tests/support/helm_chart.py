"""The Helm chart's documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "seesay"


def render(values: dict[str, Any] | None = None, name: str = "demo") -> list[dict[str, Any]]:
    """Return the documents of the chart, as Helm's own engine renders them."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not here")
    with helm.Chart.load(str(CHART)) as chart:
        pages = chart.render(values or {}, name=name, namespace="prod")
    texts = (text for path, text in pages.items() if path.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]
