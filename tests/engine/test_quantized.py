"""Quantized models from end to end: text alone and with pictures, in a thread and in a process of the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, loop_of, make_picture, parse
from enrolment import COMPOSED
from family_contract import draw_image, load_family, preprocess
from quantized_folders import FORMS, PACKED_FORMS, edit_tensors, is_quantized, set_config, write_quantized

from seesay import GenerationConfig, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError

FORM = FORMS["compressed-tensors, channels"]
TOWERS = [
    "lm_head",
    "re:.*(visual|vision_(tower|model|embed_tokens|backbone|proj)|multi_modal_projector|connector|aligner|vpm|resampler).*",
    "re:.*\\.vision\\..*",
    "re:.*(vit\\.|mlp1\\.|Plora_|model\\.merger\\.|sam_model|qwen2_model|model\\.projector).*",
    "re:.*(mlp\\.(gate|shared_expert_gate)|router|(mlp|feed_forward)\\.experts)$",
]


PROMPTS: list[Any] = ["the game", ("the game", make_picture(20, 30, 1))]


def answer(path: Path, **options: Any) -> list[list[int]]:
    config = EngineConfig(device_type="cpu", block_size=16, **options)
    with AsyncEngine(str(path), backend_config=config) as engine:
        outputs = ask(engine, parse(PROMPTS, max_new_tokens=12, ignore_eos=True))
    assert all(output.error is None for output in outputs)
    return [list(output.token_ids) for output in outputs]


def is_quantized_or_mixed(name: str) -> bool:
    """Whether a tensor is quantized, those of delta nets included, whose inputs are one product, but not those of a
    decoder in a tower."""
    return "qwen2_model" not in name and (is_quantized(name) or ".linear_attn.in_proj" in name)


@pytest.mark.parametrize("name", COMPOSED)
def test_the_text_part_of_every_family(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, plain = write_quantized(tiny_checkpoint(name), tmp_path, FORM, is_quantized_or_mixed)
    set_config(quantized, quantization_config={**FORM.config, "ignore": TOWERS})
    assert answer(quantized) == answer(plain)


@pytest.mark.parametrize(
    "form",
    [
        "awq, groups of 32",
        "gptq, in order of activations",
        "pack-quantized, zero points",
        "compressed-tensors, int8 channels",
        "compressed-tensors, int8 static tensors",
        "smooth_quant, int8",
        "modelopt, tensors",
    ],
)
def test_other_formats_beside_a_plain_tower(form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    forms = {**FORMS, **PACKED_FORMS}
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, forms[form])
    assert answer(quantized) == answer(plain)


@pytest.mark.parametrize("form", ["awq, groups of 32", "gptq, in order of activations", "pack-quantized, zero points"])
def test_packed_weights_with_a_copy_multiplied_out(
    form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """On the CPU the copy is all there is, as nothing reads packed numbers faster."""
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, PACKED_FORMS[form])
    config = EngineConfig(device_type="cpu", block_size=16, unpacked_copy=True)
    with AsyncEngine(str(quantized), backend_config=config) as engine:
        outputs = ask(engine, parse(PROMPTS, max_new_tokens=12, ignore_eos=True))
        tensors = loop_of(engine)._runner.decoder.weights.tensors()
    assert all(tensor.is_floating_point() for tensor in tensors)
    assert [list(output.token_ids) for output in outputs] == answer(plain)


@pytest.mark.parametrize("form", [None, "compressed-tensors, channels"])
def test_weights_that_are_not_packed_have_no_copy(
    form: str | None, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_checkpoint("qwen2_5_vl")
    if form is not None:
        path, _ = write_quantized(path, tmp_path, FORMS[form])
    with pytest.raises(ConfigError, match="unpacked_copy=True: the weights of this checkpoint are not packed"):
        answer(path, unpacked_copy=True)


@pytest.mark.gpu
def test_a_copy_that_is_small_is_made_by_default(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, _ = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, PACKED_FORMS["awq, groups of 32"])
    sizes = {}
    for chosen in (None, True, False):
        config = EngineConfig(dtype="bfloat16", engine_process=False, num_gpu_blocks=100, unpacked_copy=chosen)
        with AsyncEngine(str(quantized), backend_config=config) as engine:
            outputs = ask(engine, parse(["the game"], max_new_tokens=4, ignore_eos=True))
            assert outputs[0].error is None
            tensors = loop_of(engine)._runner.decoder.weights.tensors()
            sizes[chosen] = sum(tensor.nbytes for tensor in tensors)
    assert sizes[None] == sizes[True] > sizes[False]


def test_biases_of_zeros_that_the_model_has_not(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As AutoGPTQ writes them beside every layer, in published models of the first Qwen too."""
    quantized, plain = write_quantized(tiny_checkpoint("qwen_vl"), tmp_path, PACKED_FORMS["gptq, symmetric"])
    bias = "transformer.h.1.mlp.w2.bias"

    def add(tensors: dict[str, torch.Tensor]) -> None:
        sizes = {"attn.c_proj": 256, "mlp.w1": 96, "mlp.w2": 96, "mlp.c_proj": 256}
        tensors |= {f"transformer.h.{i}.{name}.bias": torch.zeros(size) for i in (0, 1) for name, size in sizes.items()}

    edit_tensors(quantized, add)
    assert answer(quantized) == answer(plain)
    edit_tensors(quantized, lambda tensors: tensors.update({bias: torch.eye(1, 96)[0]}))
    with pytest.raises(CheckpointError, match=f"tensor '{bias}' must be zeros: this layer has no bias in the model"):
        answer(quantized)
    edit_tensors(plain, add)
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'transformer\.h\.0\.attn\.c_proj\.bias'"):
        answer(plain)


@pytest.mark.parametrize("form", ["compressed-tensors, channels", "fp8, small blocks"])
def test_a_quantized_tower(form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def is_quantized(name: str) -> bool:
        return "visual.blocks" in name and name.endswith(".weight") and "norm" not in name

    source = tiny_checkpoint("qwen2_5_vl")
    quantized, plain = write_quantized(source, tmp_path, FORMS[form], is_quantized)
    ignore = ["lm_head", "re:.*layers.*", "re:.*merger.*"]
    if "fp8" in form:
        ignore = ["model.layers", "visual.merger"]
    key = "modules_to_not_convert" if "fp8" in form else "ignore"
    set_config(quantized, quantization_config={**FORMS[form].config, key: ignore})
    rows = []
    for path in (quantized, plain, source):
        family, _ = load_family(path)
        encoder = family.build_encoder(torch.device("cpu"), torch.float32)
        rows.append(encoder.encode([preprocess(family, draw_image(30, 40))])[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-4)
    assert (rows[1] - rows[2]).abs().max() > 1e-2, "the tower was not quantized"


@pytest.mark.parametrize("quantization", ["fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_in_flight_in_both_process_forms(quantization: str) -> None:
    """The built-in model, whose answers are sure enough to be the same."""
    plain, thread, process = (
        answer_about_a_scene(quantization=kind, engine_process=is_process)
        for kind, is_process in ((None, False), (quantization, False), (quantization, True))
    )
    assert thread == process
    assert thread[0] == plain[0] and thread[1] != plain[1], "the same answer, by other weights"


def answer_about_a_scene(**options: Any) -> tuple[list[int], list[dict[int, float]]]:
    config = EngineConfig(device_type="cpu", **options)
    with pipeline("seesay-demo", backend_config=config) as pipe:
        response = pipe("What is a square?", gen_config=GenerationConfig(max_new_tokens=8, logprobs=1))
    assert response.logprobs is not None
    return response.token_ids, response.logprobs
