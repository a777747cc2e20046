"""The functions of `seesay lite`, with LMDeploy's names and arguments."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from seesay.checkpoint.model_path import DEMO_MODEL
from seesay.config import EngineConfig
from seesay.config.checks import require
from seesay.demo import CHECKPOINT
from seesay.demo.evaluate import evaluate, seesay_answerer
from seesay.demo.scenes import FIRST_EVALUATION_SEED
from seesay.lite.calibrating import write_statistics
from seesay.lite.calibration.builtin import builtin_calibration
from seesay.lite.calibration.dataset import CalibrationSet, LoadCalibrationSet, open_dataset
from seesay.lite.calibration.included import INCLUDED, included_calibration
from seesay.lite.merging import merge as merge
from seesay.lite.methods.awq import BITS, AwqMethod
from seesay.lite.methods.eight_bits import EightBits, QuantDtype
from seesay.lite.methods.gptq import GptqMethod
from seesay.lite.methods.method import Method
from seesay.lite.opened import check_model
from seesay.lite.report import Report
from seesay.lite.run import Score, quantize
from seesay.lite.run_options import LiteSettings
from seesay.lite.task_adapters import extract_tasks as extract_tasks

_SCORED_SCENES = 20
_SCORING_BLOCKS = 512
"""KV blocks for all scenes of a task at once. More would only take memory from other programs."""

Folder = str | os.PathLike[str]


def auto_awq(
    model: Folder,
    work_dir: Folder = "./work_dir",
    *,
    w_bits: int = BITS,
    w_sym: bool = False,
    w_group_size: int = 128,
    search_scale: bool = True,
    **settings: Any,
) -> Report:
    """Quantize to 4 bits with AWQ, written as AutoAWQ writes it (`gemm`).

    w_sym: the middle number is the zero point of all groups. w_group_size: inputs that share a scale, 32, 64, 128 or -1
    for all. search_scale: choose each layer's scales by the error of its output; else they are half-way between the
    sizes of inputs and weights. settings: see `LiteSettings`.
    """
    require(w_bits == BITS, "w_bits", w_bits, f"must be {BITS}, which AWQ's format has")
    method = AwqMethod(group_size=w_group_size, is_symmetric=w_sym, searches=search_scale)
    options = {"w_bits": w_bits, "w_sym": w_sym, "w_group_size": w_group_size, "search_scale": search_scale}
    return _run(method, options, LiteSettings(model=model, work_dir=work_dir, **settings))


def auto_gptq(
    model: Folder,
    work_dir: Folder = "./work_dir",
    *,
    w_bits: int = 4,
    w_sym: bool = True,
    w_group_size: int = 128,
    desc_act: bool = False,
    static_groups: bool = False,
    damp_percent: float = 0.01,
    **settings: Any,
) -> Report:
    """Quantize to 4 or 8 bits with GPTQ, written as AutoGPTQ writes it.

    desc_act: round the columns with the largest inputs first, which loses less. Columns that share a scale are then
    apart, which engines read more slowly or refuse. static_groups: columns that share a scale stay side by side, also
    with `desc_act`; every scale is found before a column is rounded.
    damp_percent: what is added to the Hessian's diagonal, relative to its mean. Others: see `auto_awq`.
    """
    method = GptqMethod(
        bits=w_bits,
        group_size=w_group_size,
        is_symmetric=w_sym,
        orders_by_activation=desc_act,
        damping=damp_percent,
        has_static_groups=static_groups,
    )
    options = {
        "w_bits": w_bits,
        "w_sym": w_sym,
        "w_group_size": w_group_size,
        "desc_act": desc_act,
        "static_groups": static_groups,
        "damp_percent": damp_percent,
    }
    return _run(method, options, LiteSettings(model=model, work_dir=work_dir, **settings))


def smooth_quant(
    model: Folder,
    work_dir: Folder = "./work_dir",
    *,
    quant_dtype: QuantDtype = "int8",
    w_bits: int = 8,
    search_scale: bool = True,
    **settings: Any,
) -> Report:
    """Quantize weights, and activations while they are computed, to int8 or FP8 with SmoothQuant; written in
    compressed-tensors' format.

    search_scale: choose by the error how much of the activations' range each layer's weights take; else half of it.
    settings: see `LiteSettings`.
    """
    require(w_bits == 8, "w_bits", w_bits, "must be 8")
    method = EightBits(quant_dtype=quant_dtype, smooths=True, searches=search_scale)
    options = {"quant_dtype": quant_dtype, "search_scale": search_scale}
    return _run(method, options, LiteSettings(model=model, work_dir=work_dir, **settings))


def fp8(model: Folder, work_dir: Folder = "./work_dir", **settings: Any) -> Report:
    """Quantize weights, and activations while they are computed, to FP8 without calibration; written in
    compressed-tensors' format. With `calib_dataset`, errors of outputs and perplexity are measured."""
    method = EightBits(quant_dtype="fp8", smooths=False, searches=False)
    return _run(method, {}, LiteSettings(model=model, work_dir=work_dir, **settings))


def calibrate(model: Folder, work_dir: Folder = "./work_dir", **settings: Any) -> dict[str, Any]:
    """Write statistics of the inputs of every linear layer to calibration.safetensors in `work_dir`. Returns a summary.
    settings: see `LiteSettings`."""
    given = LiteSettings(model=model, work_dir=work_dir, **settings)
    check_model(given)
    load_calibration = _find_calibration(given, is_needed=True)
    assert load_calibration is not None
    return write_statistics(given, load_calibration)


def _run(method: Method, options: dict[str, Any], settings: LiteSettings) -> Report:
    check_model(settings)
    score = _score_on(settings.device) if _is_builtin(settings) else None
    return quantize(settings, method, options, _find_calibration(settings, is_needed=method.needs_inputs), score)


def _find_calibration(settings: LiteSettings, *, is_needed: bool) -> LoadCalibrationSet | None:
    """Return what loads the calibration set that is asked for; by default the scenes of the built-in model for that,
    and for others the set that comes with seesay, or none where it is not needed. It is checked at once if the model
    may have to be downloaded, and otherwise when it is loaded, after the model."""
    if settings.calib_dataset is None and _is_builtin(settings):
        return partial(builtin_calibration, settings.calib_samples)
    if settings.calib_dataset is None and not is_needed:
        return None
    name = os.fspath(settings.calib_dataset or INCLUDED)
    if name == INCLUDED and not Path(name).exists():
        return partial(included_calibration, settings.calib_samples)
    if Path(settings.model).expanduser().is_dir():
        return partial(_load_dataset, name)
    return open_dataset(name)


def _load_dataset(name: str) -> CalibrationSet:
    return open_dataset(name)()


def _is_builtin(settings: LiteSettings) -> bool:
    """Whether the model is the built-in one. Nothing is downloaded for that."""
    name = os.fspath(settings.model)
    return name == DEMO_MODEL or Path(name).expanduser().resolve() == CHECKPOINT.resolve()


def _score_on(device: str) -> Score:
    def score(folder: Path) -> dict[str, float]:
        with seesay_answerer(str(folder), EngineConfig(device_type=device, num_gpu_blocks=_SCORING_BLOCKS)) as answer:
            return evaluate(answer, num_scenes=_SCORED_SCENES, seed=FIRST_EVALUATION_SEED)

    return score
