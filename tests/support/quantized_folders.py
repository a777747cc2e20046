"""Checkpoints in the layouts that quantization tools publish, and plain ones with the same weights multiplied out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FP8 = torch.float8_e4m3fn
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Form:
    """A `quantization_config`, and the function that makes of a module's weight its stored tensors and its numbers
    multiplied out."""

    config: Mapping[str, Any]
    quantize: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]


def _to_fp8(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = (weight / scale).to(FP8)
    return numbers, numbers.float() * scale


def per_tensor(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    numbers, exact = _to_fp8(weight, scale)
    return {"weight": numbers, "weight_scale": scale.reshape(1), "input_scale": torch.tensor([0.5])}, exact


def per_tensor_vllm(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, exact = per_tensor(weight)
    return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale"].reshape(())}, exact


def per_channel(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    numbers, exact = _to_fp8(weight, scale.float())
    return {"weight": numbers, "weight_scale": scale}, exact


def per_block(rows: int, columns: int, name: str) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        shape = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
        scale = torch.empty(shape)
        for i in range(shape[0]):
            for j in range(shape[1]):
                block = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                scale[i, j] = block.abs().max() / 448
        fine = scale.repeat_interleave(rows, 0)[: len(weight)].repeat_interleave(columns, 1)[:, : weight.shape[1]]
        numbers, exact = _to_fp8(weight, fine)
        return {"weight": numbers, name: scale}, exact

    return quantize


def _to_int8(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    return numbers, numbers.float() * scale


def int8_channels(weight: torch.Tensor, name: str = "weight_scale") -> tuple[Tensors, torch.Tensor]:
    """As compressed-tensors rounds: 127.5 steps for the largest number."""
    scale = (weight.abs().amax(1, keepdim=True) / 127.5).bfloat16()
    numbers, exact = _to_int8(weight, scale.float())
    return {"weight": numbers, name: scale}, exact


def int8_tensors(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 127.5
    numbers, exact = _to_int8(weight, scale)
    return {"weight": numbers, "weight_scale": scale.reshape(1), "input_scale": torch.tensor([0.5])}, exact


def smooth_quant_int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, exact = int8_channels(weight, "scale")
    return tensors | {"scale": tensors["scale"].float()}, exact


def smooth_quant_fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    numbers, exact = _to_fp8(weight, scale)
    return {"weight": numbers, "scale": scale}, exact


def modelopt_tensors(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    numbers, exact = _to_fp8(weight, scale)
    return {"weight": numbers, "weight_scale": scale.reshape(()), "input_scale": torch.tensor(0.5)}, exact


def modelopt_channels(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1) / 448
    numbers, exact = _to_fp8(weight, scale[:, None])
    return {"weight": numbers, "weight_scale": scale}, exact


def _pack(numbers: torch.Tensor, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Pack each run of 32 / bits numbers along the last axis into a word; field i is number order[i] of the run."""
    runs = torch.unflatten(numbers.to(torch.int64), -1, (-1, 32 // bits))
    words = torch.zeros_like(runs[..., 0])
    for field, number in enumerate(order):
        words += runs[..., number] << (bits * field)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _to_groups(
    weight: torch.Tensor, groups: torch.Tensor, bits: int, *, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers [in, out], zero points [groups, out], scales [groups, out] and the weight multiplied out. `groups`
    [in] is the group of each input."""
    most, zeros, scales = (1 << bits) - 1, [], []
    for group in range(int(groups.max()) + 1):
        chosen = weight[:, groups == group]
        low, high = chosen.amin(1).clamp(max=0), chosen.amax(1).clamp(min=0)
        if is_symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / most).half().float()
        scales.append(scale)
        zeros.append(torch.full_like(scale, (most + 1) // 2) if is_symmetric else (-low / scale).round().clamp(1, most))
    zero, scale = torch.stack(zeros), torch.stack(scales)
    numbers = (weight.t() / scale[groups] + zero[groups]).round().clamp(0, most)
    return numbers, zero, scale, ((numbers - zero[groups]) * scale[groups]).t()


def awq(group_size: int) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        num_inputs = weight.shape[1]
        groups = torch.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)
        numbers, zeros, scales, exact = _to_groups(weight, groups, 4, is_symmetric=False)
        words = {name: _pack(t, 4, AWQ_ORDER) for name, t in (("qweight", numbers), ("qzeros", zeros))}
        return words | {"scales": scales.half()}, exact

    return quantize


def gptq(
    group_size: int, *, bits: int = 4, is_symmetric: bool = True, has_order: bool = False, zero_offset: int = 1
) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        num_inputs, order = weight.shape[1], tuple(range(32 // bits))
        groups = torch.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)
        if has_order:
            groups = groups[torch.randperm(num_inputs, generator=torch.Generator().manual_seed(weight.shape[0]))]
        numbers, zeros, scales, exact = _to_groups(weight, groups, bits, is_symmetric=is_symmetric)
        tensors = {
            "qweight": _pack(numbers.t(), bits, order).t(),
            "qzeros": _pack(zeros - zero_offset, bits, order),
            "scales": scales.half(),
            "g_idx": groups.to(torch.int32),
        }
        return tensors, exact

    return quantize


def pack_quantized(
    group_size: int,
    *,
    bits: int = 4,
    is_symmetric: bool = True,
    has_order: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        num_inputs, fields = weight.shape[1], tuple(range(32 // bits))
        groups = torch.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)
        if has_order:
            groups = groups[torch.randperm(num_inputs, generator=torch.Generator().manual_seed(weight.shape[0]))]
        numbers, zeros, scales, _ = _to_groups(weight, groups, bits, is_symmetric=is_symmetric)
        scales = scales.to(dtype)
        tensors = {
            "weight_packed": _pack(numbers.t(), bits, fields),
            "weight_scale": scales.t(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not is_symmetric:
            tensors["weight_zero_point"] = _pack(zeros, bits, fields).t()
        if has_order:
            tensors["weight_g_idx"] = groups.to(torch.int32)
        return tensors, ((numbers - zeros[groups]) * scales.float()[groups]).t()

    return quantize


def compressed_tensors(
    weights: Mapping[str, Any], inputs: Mapping[str, Any], ignore: list[str], *, kind: str = "float", form: str = ""
) -> dict[str, Any]:
    common = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "dynamic": False, **weights},
        "input_activations": {**common, **inputs},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form or f"{kind}-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
    }


def modelopt(algorithm: str) -> dict[str, Any]:
    """As `hf_ptq.py` writes it to config.json."""
    group = {
        "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
        "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
        "targets": ["Linear"],
    }
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "model.visual*"],
        "producer": {"name": "modelopt", "version": "0.39.0"},
    }


TOKENS = {"strategy": "token", "dynamic": True}
STATIC = {"strategy": "tensor", "dynamic": False}
FORMS = {
    "compressed-tensors, channels": Form(
        compressed_tensors({"strategy": "channel"}, TOKENS, ["lm_head", "re:.*visual.*"]), per_channel
    ),
    "compressed-tensors, static tensors": Form(
        compressed_tensors({"strategy": "tensor"}, {"strategy": "tensor", "dynamic": False}, ["lm_head", "visual"]),
        per_tensor,
    ),
    "compressed-tensors, blocks": Form(
        compressed_tensors(
            {"strategy": "block", "block_structure": [128, 128]},
            {"strategy": "group", "group_size": 128, "dynamic": True},
            ["re:.*lm_head", "re:model\\.visual.*"],
        ),
        per_block(128, 128, "weight_scale"),
    ),
    "fp8, tensors": Form(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head", "visual"]},
        per_tensor_vllm,
    ),
    "fp8, blocks of 128": Form(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["visual"],
        },
        per_block(128, 128, "weight_scale_inv"),
    ),
    "fp8, small blocks": Form(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 16]},
        per_block(32, 16, "weight_scale_inv"),
    ),
    "compressed-tensors, int8 channels": Form(
        compressed_tensors({"strategy": "channel"}, TOKENS, ["lm_head", "re:.*visual.*"], kind="int"), int8_channels
    ),
    "compressed-tensors, int8 static tensors": Form(
        compressed_tensors({"strategy": "tensor"}, STATIC, ["lm_head", "visual"], kind="int"), int8_tensors
    ),
    "compressed-tensors, naive int8": Form(
        compressed_tensors({"strategy": "channel"}, TOKENS, ["lm_head", "visual"], kind="int", form="naive-quantized"),
        int8_channels,
    ),
    "smooth_quant, int8": Form({"quant_method": "smooth_quant", "quant_dtype": "int8"}, smooth_quant_int8),
    "smooth_quant, fp8": Form({"quant_method": "smooth_quant", "quant_dtype": "float8_e4m3fn"}, smooth_quant_fp8),
    "modelopt, tensors": Form(modelopt("FP8"), modelopt_tensors),
    "modelopt, channels": Form(modelopt("FP8_PER_CHANNEL_PER_TOKEN"), modelopt_channels),
}


def _awq_config(group_size: int) -> dict[str, Any]:
    common = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
    return {**common, "group_size": group_size, "modules_to_not_convert": ["visual"]}


def _gptq_config(group_size: int, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": group_size, "sym": True, "desc_act": False, **changes}


def _pack_quantized_config(group_size: int, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    strategy = {"strategy": "channel"} if group_size == -1 else {"strategy": "group", "group_size": group_size}
    common = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "actorder": None, "observer": "minmax"}
    group = {
        "targets": ["Linear"],
        "weights": {**common, **strategy, **weights},
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*visual.*"],
        "kv_cache_scheme": None,
    }


PACKED_FORMS = {
    "awq, groups of 32": Form(_awq_config(32), awq(32)),
    "awq, one group": Form(_awq_config(-1), awq(-1)),
    "awq, groups larger than layers": Form(_awq_config(128), awq(128)),
    "gptq, symmetric": Form(_gptq_config(32), gptq(32)),
    "gptq, one group": Form(_gptq_config(-1), gptq(-1)),
    "gptq, in order of activations": Form(
        _gptq_config(32, sym=False, desc_act=True), gptq(32, is_symmetric=False, has_order=True)
    ),
    "gptq, version 2": Form(
        _gptq_config(32, sym=False, checkpoint_format="gptq_v2"), gptq(32, is_symmetric=False, zero_offset=0)
    ),
    "gptq, 8 bits": Form(_gptq_config(32, bits=8), gptq(32, bits=8)),
    "gptq, 8 bits in order of activations": Form(
        _gptq_config(32, bits=8, sym=False, desc_act=True), gptq(32, bits=8, is_symmetric=False, has_order=True)
    ),
    "pack-quantized, groups of 32": Form(_pack_quantized_config(32), pack_quantized(32)),
    "pack-quantized, channels": Form(_pack_quantized_config(-1), pack_quantized(-1, dtype=torch.bfloat16)),
    "pack-quantized, zero points": Form(
        _pack_quantized_config(32, symmetric=False), pack_quantized(32, is_symmetric=False)
    ),
    "pack-quantized, in order of activations": Form(
        _pack_quantized_config(32, actorder="group"), pack_quantized(32, has_order=True)
    ),
    "pack-quantized, 8 bits": Form(
        _pack_quantized_config(32, num_bits=8, symmetric=False), pack_quantized(32, bits=8, is_symmetric=False)
    ),
}
"""Sizes of layers must be multiples of 32."""


def is_quantized(name: str) -> bool:
    """Whether a tensor is the weight of a linear layer of the language model, but for its head."""
    endings = (
        "_proj.weight", ".kv_a_proj_with_mqa.weight", ".mlp.c_fc.weight", ".c_attn.weight", ".mlp.w1.weight",
        ".mlp.w2.weight",
    )  # fmt: skip
    is_molmo = name.startswith("model.transformer.blocks.") and name.endswith((".attn_out.weight", ".ff_out.weight"))
    is_chatglm = name.startswith("transformer.encoder.layers.") and name.endswith(".weight") and "norm" not in name
    is_split = name.endswith(("_expert_query_key_value.weight", "_expert_dense.weight"))
    is_internlm2 = name.endswith((".wqkv.weight", ".wo.weight", ".w1.weight", ".w2.weight", ".w3.weight"))
    is_of_tower = any(part in name for part in ("visual", "vision", "projector", "vpm", "resampler"))
    is_of_decoder = name.startswith("model.layers.") or not is_of_tower
    return (name.endswith(endings) or is_chatglm or is_molmo or is_split or is_internlm2) and is_of_decoder


def write_quantized(
    source: Path, folder: Path, form: Form, is_quantized: Callable[[str], bool] = is_quantized
) -> tuple[Path, Path]:
    """Write the checkpoint `source` in this form, and plain with the same numbers; return both folders."""
    quantized, plain = folder / "quantized", folder / "plain"
    stored: Tensors = {}
    exact: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if is_quantized(name) and tensor.dim() == 2:
            tensors, exact[name] = form.quantize(tensor.float())
            stored |= {f"{name.removesuffix('weight')}{part}": t.contiguous() for part, t in tensors.items()}
        else:
            stored[name] = exact[name] = tensor
    for target, tensors in ((quantized, stored), (plain, exact)):
        shutil.copytree(source, target)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    set_config(quantized, quantization_config=dict(form.config))
    return quantized, plain


def set_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
