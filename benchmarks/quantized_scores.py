"""The right answers of the built-in model in every form of quantization, and which form loses more than it may."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from h200 import report

from seesay import EngineConfig, lite
from seesay.demo.evaluate import evaluate, seesay_answerer
from seesay.demo.scenes import FIRST_EVALUATION_SEED, TASKS

Shares = Mapping[str, float]
"""The share of right answers by task."""

BLOCKS_PER_SCENE = 8
CALIBRATION_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredForm:
    """How the model is quantized: by options of the engine, or before by a function of `seesay.lite`.

    max_lost_points: how many of 100 scenes of a task may be lost.
    """

    name: str
    max_lost_points: float
    engine: Mapping[str, Any] = field(default_factory=dict)
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN = ScoredForm(name="plain", max_lost_points=0)
FORMS = (
    ScoredForm(name="quantization-fp8", max_lost_points=1, engine={"quantization": "fp8"}),
    ScoredForm(name="quantization-int8", max_lost_points=1, engine={"quantization": "int8"}),
    ScoredForm(name="kv-fp8", max_lost_points=1, engine={"kv_cache_dtype": "fp8"}),
    ScoredForm(name="kv-int8", max_lost_points=1, engine={"kv_cache_dtype": "int8"}),
    ScoredForm(name="kv-int4", max_lost_points=3, engine={"kv_cache_dtype": "int4"}),
    ScoredForm(name="lite-fp8", max_lost_points=1, method="fp8"),
    ScoredForm(name="lite-smooth_quant-fp8", max_lost_points=1, method="smooth_quant", options={"quant_dtype": "fp8"}),
    ScoredForm(name="lite-smooth_quant-int8", max_lost_points=1, method="smooth_quant"),
    ScoredForm(name="lite-auto_awq", max_lost_points=3, method="auto_awq"),
    ScoredForm(name="lite-auto_gptq", max_lost_points=3, method="auto_gptq"),
)


def score(form: ScoredForm, model: str, num_scenes: int, batch_size: int) -> dict[str, Any]:
    """Quantize the model, and return its `shares` and the `seconds` that both took. In a process of its own, whose KV
    cache has no more blocks than the scenes take: others run beside it on the same GPU."""
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if form.method is not None:
            quantized = str(Path(folder) / form.method)
            getattr(lite, form.method)(model, quantized, batch_size=CALIBRATION_BATCH, **form.options)
            model = quantized
        config = EngineConfig(num_gpu_blocks=BLOCKS_PER_SCENE * batch_size, **form.engine)
        with seesay_answerer(model, config) as answer:
            shares = evaluate(answer, num_scenes=num_scenes, seed=FIRST_EVALUATION_SEED, batch_size=batch_size)
    return {"shares": shares, "seconds": round(time.perf_counter() - started_s, 1)}


def lost_points(before: Shares, after: Shares) -> dict[str, float]:
    """Return, by task, how many of 100 answers are right before and not after."""
    return {task: round(100 * (share - after[task]), 2) for task, share in before.items()}


def make_table(found: Mapping[str, Shares], forms: Sequence[ScoredForm]) -> tuple[str, list[str]]:
    """Return the table in Markdown of the forms' shares in percent, and one line for each task in which a form loses
    more than it may, and for each form without shares."""
    before, missed = found.get(PLAIN.name), []
    rows = [["", *TASKS, "most lost", "may lose"], ["---", *["---:"] * (len(TASKS) + 2)]]
    for form in (PLAIN, *forms):
        shares = found.get(form.name)
        if shares is None:
            missed.append(f"{form.name}: it has no scores")
            continue
        lost = {} if before is None else lost_points(before, shares)
        missed += [
            f"{form.name}: {points} points of {task} are lost, {form.max_lost_points} may be"
            for task, points in lost.items()
            if points > form.max_lost_points
        ]
        limits = ["", ""] if form is PLAIN else [f"{max(lost.values(), default=0):.1f}", f"{form.max_lost_points:g}"]
        rows.append([form.name, *(f"{100 * shares[task]:.1f}" for task in TASKS), *limits])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows), missed


def measure_scores(forms: Sequence[ScoredForm], *, model: str, num_scenes: int, batch_size: int, num_jobs: int) -> int:
    """Print a line `RESULT {JSON}` per form as soon as it is measured, then the table. Returns 1 if a form loses more
    than it may or fails, else 0."""
    found: dict[str, Shares] = {}
    for name, result in _run((PLAIN, *forms), model, num_scenes, batch_size, num_jobs):
        if isinstance(result, Exception):
            report(workload="scores", form=name, error=f"{type(result).__name__}: {result}")
        else:
            report(workload="scores", form=name, scenes=num_scenes, **result)
            found[name] = result["shares"]
    table, missed = make_table(found, forms)
    print(f"\n{table}", *missed, sep="\n")
    return 1 if missed else 0


def _run(
    forms: Sequence[ScoredForm], model: str, num_scenes: int, batch_size: int, num_jobs: int
) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
    """Yield each form's name and what `score` returns or raises, in the order in which they end."""
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        # Those that quantize first take longest.
        ordered = sorted(forms, key=lambda form: form.method is None)
        futures = {pool.submit(score, form, model, num_scenes, batch_size): form.name for form in ordered}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], error or future.result()
