"""The report of a run: errors by layer, perplexity and scores before and after; as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPORT_FILE = "quantization_report.json"


@dataclass(kw_only=True)
class Report:
    """layers: for each decoder layer the relative errors of its matrices (`weights`) and of what it adds to the
    residual stream (`output`), and the method's own notes. tower: relative errors of the tower's matrices.

    perplexity: before and after, of `num_held_out` text tokens that calibration did not see. scores: the built-in
    model's share of right answers by task, before and after.
    """

    model: str
    method: str
    settings: Mapping[str, object]
    layers: list[dict[str, object]] = field(default_factory=list)
    tower: dict[str, float] = field(default_factory=dict)
    num_calibration_tokens: int = 0
    num_held_out: int = 0
    perplexity: tuple[float, float] | None = None
    scores: tuple[dict[str, float], dict[str, float]] | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, object] = {
            "model": self.model,
            "method": self.method,
            "settings": dict(self.settings),
            "layers": self.layers,
        }
        if self.tower:
            found["tower"] = self.tower
        if self.num_calibration_tokens:
            found["calibration_tokens"] = self.num_calibration_tokens
        if self.perplexity is not None:
            found["held_out_tokens"] = self.num_held_out
            found["perplexity"] = _before_after(*self.perplexity)
        if self.scores is not None:
            found["scores"] = _before_after(*self.scores)
        return found

    def write(self, folder: Path) -> None:
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
        (folder / REPORT_FILE).write_text(text + "\n", encoding="utf-8")

    def table(self) -> str:
        """Return the report as lines of text."""
        lines = [f"{self.method}: {self.model}"]
        if self.layers:
            rows = [["layer", "weights", "output"], *(_row(layer) for layer in self.layers)]
            lines += ["relative error of weights and of what the layer adds", *_align(rows)]
        if unseen := sum(map(_count_unseen, self.layers)):
            lines.append(f"experts that no token of the calibration set chose, rounded to the nearest: {unseen}")
        if self.tower:
            lines.append(f"vision tower: relative error of weights {_mean(self.tower.values()):.4f}")
        if self.perplexity is not None:
            before, after = self.perplexity
            lines.append(f"perplexity of {self.num_held_out} held-out tokens: {before:.3f} before, {after:.3f} after")
        if self.scores is not None:
            before_scores, after_scores = self.scores
            rows = [["task", "before", "after"]]
            rows += [[task, f"{before_scores[task]:.1%}", f"{after_scores[task]:.1%}"] for task in before_scores]
            lines += ["right answers", *_align(rows)]
        return "\n".join(lines) + "\n"


def _before_after(before: object, after: object) -> dict[str, object]:
    return {"before": before, "after": after}


def _count_unseen(layer: Mapping[str, object]) -> int:
    found = layer.get("unseen_experts")
    return len(found) if isinstance(found, list) else 0


def _row(layer: Mapping[str, Any]) -> list[str]:
    output = layer.get("output")
    weights = _mean(layer["weights"].values())
    return [str(layer["layer"]), f"{weights:.4f}", "" if output is None else f"{output:.4f}"]


def _mean(values: Any) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
