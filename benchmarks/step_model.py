"""How long steps and calls of the tower take: recorded times, and a linear model of them. Needs no torch.

A file of recorded times (step_times.py writes it) has `device`, `model`, `source` and two lists. `steps`: decode rows,
the tokens that each of them attends to, prompt tokens, the tokens that each of those attends to on average, `ms` on the
GPU, and `host_ms` to launch it where that was measured. `encodes`: patches in one call of the tower, and `ms`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class StepShape(NamedTuple):
    """The work of a step. decode_context, prompt_context: tokens that a decode row, or a prompt token, attends to on
    average."""

    num_decode_rows: int = 0
    decode_context: float = 0.0
    num_prompt_tokens: int = 0
    prompt_context: float = 0.0


class StepTime(NamedTuple):
    """A step of this shape took `ms` on the GPU, and `host_ms` to launch; None where that is not known."""

    shape: StepShape
    ms: float
    host_ms: float | None = None


class EncodeTime(NamedTuple):
    """A call of the tower for `num_patches` patches took `ms` on the GPU."""

    num_patches: int
    ms: float


class Errors(NamedTuple):
    """Relative errors over the times that a model was fitted to."""

    largest: float
    mean: float


def list_decode_terms(shape: StepShape) -> tuple[float, ...]:
    """Constant, decode rows, tokens that they attend to."""
    return 1.0, shape.num_decode_rows, shape.num_decode_rows * shape.decode_context


def list_mixed_terms(shape: StepShape) -> tuple[float, ...]:
    """Constant, decode rows, tokens that they attend to, prompt tokens, tokens that those attend to."""
    return *list_decode_terms(shape), shape.num_prompt_tokens, shape.num_prompt_tokens * shape.prompt_context


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTimes:
    """Milliseconds by linear models: one of steps without prompt tokens, which are CUDA graphs on a GPU, one of the
    other steps, one of calls of the tower. Coefficients in the order of `list_decode_terms`, `list_mixed_terms`, and
    (constant, patches)."""

    decode: tuple[float, ...]
    mixed: tuple[float, ...]
    encode: tuple[float, ...] = (0.0, 0.0)

    def step_ms(self, shape: StepShape) -> float:
        if _has_prompts(shape):
            return _dot(self.mixed, list_mixed_terms(shape))
        return _dot(self.decode, list_decode_terms(shape))

    def encode_ms(self, num_patches: int) -> float:
        return _dot(self.encode, (1.0, num_patches))

    def slow_down(self, factor: float) -> LinearTimes:
        """The same times, each multiplied by `factor`."""
        scaled = (tuple(factor * value for value in each) for each in (self.decode, self.mixed, self.encode))
        return LinearTimes(**dict(zip(("decode", "mixed", "encode"), scaled)))


class RecordedTimes:
    """The times of a recording between its points: a linear model, corrected by the mean error that it has at the
    recorded steps of as many tokens. Matrix products of some sizes are faster than others, which no linear model says.
    """

    def __init__(self, recording: Recording) -> None:
        self.linear = recording.fit()
        self._corrections = {
            has_prompts: self._list_corrections([t for t in recording.steps if _has_prompts(t.shape) == has_prompts])
            for has_prompts in (False, True)
        }

    def _list_corrections(self, times: Sequence[StepTime]) -> tuple[list[int], list[float]]:
        """Numbers of tokens, ascending, and by what factor steps of so many differ from the linear model."""
        ratios: dict[int, list[float]] = {}
        for time in times:
            ratios.setdefault(_count_tokens(time.shape), []).append(time.ms / self.linear.step_ms(time.shape))
        return sorted(ratios), [statistics.mean(ratios[count]) for count in sorted(ratios)]

    def step_ms(self, shape: StepShape) -> float:
        counts, factors = self._corrections[_has_prompts(shape)]
        factor = np.interp(_count_tokens(shape), counts, factors) if counts else 1.0
        return float(factor) * self.linear.step_ms(shape)

    def encode_ms(self, num_patches: int) -> float:
        return self.linear.encode_ms(num_patches)


def _has_prompts(shape: StepShape) -> bool:
    return shape.num_prompt_tokens > 0


def _count_tokens(shape: StepShape) -> int:
    return shape.num_decode_rows + shape.num_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recorded times. `source` says how they were measured."""

    device: str
    model: str
    source: str
    steps: tuple[StepTime, ...]
    encodes: tuple[EncodeTime, ...]

    def fit(self) -> LinearTimes:
        """Fit the models with the least squares of relative errors."""
        decode, mixed = self._split()
        return LinearTimes(
            decode=fit_positive([list_decode_terms(time.shape) for time in decode], [time.ms for time in decode]),
            mixed=fit_positive([list_mixed_terms(time.shape) for time in mixed], [time.ms for time in mixed]),
            encode=fit_positive([(1.0, time.num_patches) for time in self.encodes], [time.ms for time in self.encodes])
            or (0.0, 0.0),
        )

    def find_errors(self, times: LinearTimes | RecordedTimes) -> dict[str, Errors]:
        """The relative errors of each model."""
        decode, mixed = self._split()
        return {
            "decode": compare((times.step_ms(time.shape), time.ms) for time in decode),
            "mixed": compare((times.step_ms(time.shape), time.ms) for time in mixed),
            "encode": compare((times.encode_ms(time.num_patches), time.ms) for time in self.encodes),
        }

    def _split(self) -> tuple[list[StepTime], list[StepTime]]:
        """Steps without and with prompt tokens."""
        decode = [time for time in self.steps if not _has_prompts(time.shape)]
        return decode, [time for time in self.steps if _has_prompts(time.shape)]

    def save(self, path: Path) -> None:
        """Write the file, a line for each time."""

        def write(rows: Iterable[dict[str, Any]]) -> str:
            return "[\n" + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]"

        steps = ({**time.shape._asdict(), "ms": time.ms, "host_ms": time.host_ms} for time in self.steps)
        fields = {name: json.dumps(getattr(self, name)) for name in ("device", "model", "source")}
        fields |= {"steps": write(steps), "encodes": write(time._asdict() for time in self.encodes)}
        path.write_text("{\n" + ",\n".join(f'  "{name}": {value}' for name, value in fields.items()) + "\n}\n")


def load_recording(path: Path) -> Recording:
    found = json.loads(path.read_text())
    steps = [
        StepTime(StepShape(*(row[name] for name in StepShape._fields)), row["ms"], row["host_ms"])
        for row in found["steps"]
    ]
    return Recording(
        device=found["device"],
        model=found["model"],
        source=found["source"],
        steps=tuple(steps),
        encodes=tuple(EncodeTime(**row) for row in found["encodes"]),
    )


def fit_positive(terms: Sequence[Sequence[float]], ms: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of `terms` [n, k] that give `ms` [n] with the least squares of relative errors. Terms whose
    coefficients would be negative are left out one after another, the most negative share first; theirs are 0."""
    if not terms:
        return ()
    matrix = np.array(terms, dtype=np.float64) / np.array(ms)[:, None]
    scales = np.maximum(matrix.max(axis=0), 1e-30)
    kept = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, kept] / scales[kept], np.ones(len(ms)), rcond=None)
        worst = int(found.argmin())
        if found[worst] >= 0:
            break
        del kept[worst]
    coefficients = np.zeros(matrix.shape[1])
    coefficients[kept] = found / scales[kept]
    return tuple(map(float, coefficients))


def compare(pairs: Iterable[tuple[float, float]]) -> Errors:
    """Return the errors of pairs of predicted and measured times."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Errors(round(max(errors, default=0.0), 4), round(sum(errors) / max(1, len(errors)), 4))


def _dot(coefficients: Sequence[float], terms: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(coefficients, terms, strict=True))
