"""Adapters of experts whose weights are quantized, one by one or in one tensor: answers are those of PEFT on the same
weights multiplied out, also of two ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxfp4
import pytest
import torch
from adapter_folders import read_weights
from expert_folders import IN_BLOCKS, Tensors, narrow, quantize_experts, stack_blocks
from pairs import mark_after
from peft_answers import answer, randomize
from quantized_folders import FORMS, PACKED_FORMS, edit_tensors
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from seesay import EngineConfig, GenerationConfig, lite, pipeline
from seesay.errors import CheckpointError

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The following rank_pattern keys did not match:RuntimeWarning"),
]
TEXTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
NUM_TOKENS = 6
SAMPLING = GenerationConfig(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0)
FORM_NAMES = [
    "compressed-tensors, channels",
    "awq, groups of 32",
    "fp8, small blocks",
    "gptq, in order of activations",
    "pack-quantized, groups of 32",
]
RANKS = {"compressed-tensors, channels": {"tp": 2}}
"""The other forms have groups of inputs that two ranks cannot share in models as small as these."""
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "experts": {"r": 4, "lora_alpha": 16, "target_modules": [], "target_parameters": EXPERTS},
    "down": {"r": 3, "lora_alpha": 8, "target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]},
}


def ask(path: Path, folder: Path, names: list[str | None], **options: Any) -> list[list[int]]:
    """Return the answers to all texts with each adapter of a folder, in one batch."""
    adapters = {name: str(folder / name) for name in names if name is not None}
    config = EngineConfig(device_type="cpu", dtype="float32", block_size=4, adapters=adapters, **options)
    chosen = [name for name in names for _ in TEXTS]
    with pipeline(str(path), config) as pipe:
        found = pipe(TEXTS * len(names), SAMPLING, adapter_name=chosen, do_preprocess=False)
    return [each.token_ids for each in found]


def write_adapters(path: Path, folder: Path, model_type: Any = AutoModelForCausalLM) -> dict[str | None, Any]:
    """Write random adapters of a plain model, and return the answers of Transformers and PEFT."""
    peft = pytest.importorskip("peft", reason="PEFT is not here")
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    expected: dict[str | None, Any] = {}
    for name, options in ADAPTERS.items():
        base = model_type.from_pretrained(path, dtype=torch.float32).eval()
        expected[None] = [answer(base, prompt, NUM_TOKENS) for prompt in prompts]
        model: Any = peft.get_peft_model(base, peft.LoraConfig(**options)).eval()
        randomize(model, 0.3, seed=len(expected))
        model.save_pretrained(folder / name)
        expected[name] = [answer(model, prompt, NUM_TOKENS) for prompt in prompts]
    assert len({json.dumps(each) for each in expected.values()}) == len(expected), "adapters change answers"
    return expected


def check(quantized: Path, plain: Path, folder: Path, model_type: Any = AutoModelForCausalLM, **ranks: Any) -> None:
    """Compare the answers of one rank, and those of the ranks that the options ask for."""
    expected = write_adapters(plain, folder, model_type)
    answers = [each for found in expected.values() for each in found]
    assert ask(quantized, folder, [*expected]) == answers
    if ranks:
        assert ask(quantized, folder, [*expected], **ranks) == answers


@pytest.mark.parametrize("form", mark_after(3, FORM_NAMES))
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_one_by_one(family: str, form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, plain = quantize_experts(tiny_checkpoint(family), tmp_path, {**FORMS, **PACKED_FORMS}[form])
    check(quantized, plain, tmp_path / "adapters", **RANKS.get(form, {}))


@pytest.mark.parametrize("is_turned", [False, True])
def test_experts_in_one_tensor_in_fp8(is_turned: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = narrow(tiny_checkpoint("qwen3_vl_moe"), tmp_path / "narrow")
    quantized, plain = quantize_experts(source, tmp_path, IN_BLOCKS)
    stack_blocks(quantized, plain, is_turned=is_turned)
    check(quantized, plain, tmp_path / "adapters", AutoModelForImageTextToText, tp=2, expert_parallel=True)


def test_experts_in_mxfp4(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized = tiny_checkpoint("gpt_oss_mxfp4")
    plain = Path(shutil.copytree(quantized, tmp_path / "plain"))

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_blocks")]:
            whole = name.removesuffix("_blocks")
            numbers = mxfp4.multiply_out(tensors.pop(name), tensors.pop(f"{whole}_scales"))
            tensors[whole] = numbers.transpose(1, 2).contiguous()

    edit_tensors(plain, edit)
    config = json.loads((plain / "config.json").read_text())
    del config["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config))
    check(quantized, plain, tmp_path / "adapters", tp=2)


@pytest.mark.parametrize("is_turned", [False, True])
def test_merging_into_experts_in_one_tensor(
    is_turned: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """PEFT's sums are rounded to blocks with scales of their own; what the adapter leaves alone stays."""
    peft = pytest.importorskip("peft", reason="PEFT is not here")
    source = narrow(tiny_checkpoint("qwen3_vl_moe"), tmp_path / "narrow")
    quantized, plain = quantize_experts(source, tmp_path, IN_BLOCKS)
    stack_blocks(quantized, plain, is_turned=is_turned)
    base = AutoModelForImageTextToText.from_pretrained(plain, dtype=torch.float32)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=[], target_parameters=EXPERTS[1:]))
    randomize(model, 0.3, seed=1)
    model.save_pretrained(tmp_path / "adapter")
    sums = model.merge_and_unload().state_dict()
    merged = read_weights(lite.merge(str(quantized), str(tmp_path / "adapter"), str(tmp_path / "merged")))
    before = read_weights(quantized)
    assert merged.keys() == before.keys()
    changed = {name for name in merged if not torch.equal(merged[name].float(), before[name].float())}
    names = {name for name in before if name.endswith("experts.down_proj")}
    assert changed == names | {f"{name}_scale_inv" for name in names}
    for name in names:
        for weight, scale, total in zip(merged[name], merged[f"{name}_scale_inv"], sums[name], strict=True):
            tensors, _ = IN_BLOCKS.quantize(total)
            expected = tensors["weight"].float(), tensors["weight_scale_inv"]
            found = [tensor.t() if is_turned else tensor for tensor in (weight.float(), scale)]
            torch.testing.assert_close(found[1], expected[1])
            assert (found[0] == expected[0]).float().mean() > 0.99, "roundings differ where sums do in their last bits"


def test_mxfp4_is_not_merged_into(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    write_adapters(tiny_checkpoint("gpt_oss"), tmp_path)
    with pytest.raises(CheckpointError, match=r"experts\.down_proj' of .* is stored in MXFP4"):
        lite.merge(str(tiny_checkpoint("gpt_oss_mxfp4")), str(tmp_path / "down"), str(tmp_path / "merged"))
