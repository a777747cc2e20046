"""What a `quantization_config` says, whatever it is."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_folders import FORMS, PACKED_FORMS
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.quantization import Quantization, exclusions, read_quantization
from seesay.errors import CheckpointError

FILE = Path("folder/config.json")
INTEGERS = FORMS["compressed-tensors, int8 channels"].config
COMPRESSED = FORMS["compressed-tensors, channels"].config
BLOCKS = FORMS["fp8, blocks of 128"].config
PACKED = PACKED_FORMS["pack-quantized, groups of 32"].config
WEIGHTS = "config_groups.group_0.weights"


def read(settings: Any) -> Quantization | None:
    return read_quantization(FILE, {"quantization_config": settings}, None)


def changed(settings: Any, path: str, value: Any) -> Any:
    settings = copy.deepcopy(dict(settings))
    *parents, last = path.split(".")
    inner = settings
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return settings


def test_every_published_form_is_read() -> None:
    found = {name: read(form.config) for name, form in FORMS.items()}
    assert {name: q.strategy for name, q in found.items() if q} == {
        "compressed-tensors, channels": "channel",
        "compressed-tensors, static tensors": "tensor",
        "compressed-tensors, blocks": "block",
        "fp8, tensors": "tensor",
        "fp8, blocks of 128": "block",
        "fp8, small blocks": "block",
        "compressed-tensors, int8 channels": "channel",
        "compressed-tensors, int8 static tensors": "tensor",
        "compressed-tensors, naive int8": "channel",
        "smooth_quant, int8": "channel",
        "smooth_quant, fp8": "channel",
        "modelopt, tensors": "tensor",
        "modelopt, channels": "channel",
    }
    assert {name for name, q in found.items() if q and q.format == "int8"} == {name for name in FORMS if "int8" in name}
    small = found["fp8, small blocks"]
    assert small is not None and small.block_size == (32, 16)
    assert [name for name, q in found.items() if q and q.has_input_scale] == [
        "compressed-tensors, static tensors",
        "compressed-tensors, int8 static tensors",
        "modelopt, tensors",
    ]
    assert read(None) is None and read({}) is None
    for part in ("text_config", "llm_config"):
        assert read_quantization(FILE, {part: {"quantization_config": COMPRESSED}}, None) is not None


def test_every_packed_form_is_read() -> None:
    found = {name: read(form.config) for name, form in PACKED_FORMS.items()}
    packed = {name: q for name, q in found.items() if q and q.format == "pack-quantized"}
    assert {name for name, q in packed.items() if q.has_order} == {"pack-quantized, in order of activations"}
    assert {name for name, q in packed.items() if q.bits == 8} == {"pack-quantized, 8 bits"}
    assert {name for name, q in packed.items() if q.group_size is None} == {"pack-quantized, channels"}
    assert {name for name, q in packed.items() if not q.is_symmetric} == {
        "pack-quantized, zero points",
        "pack-quantized, 8 bits",
    }


@pytest.mark.parametrize(
    ("excluded", "covered", "not_covered"),
    [
        (("lm_head",), "model.layers.0.mlp.down_proj", "lm_head"),
        (("visual",), "model.visually.qkv", "visual.blocks.3.attn.qkv"),
        (("model.visual.blocks.3.attn.qkv",), "visual.blocks.33.attn.qkv", "visual.blocks.3.attn.qkv"),
        (("model.language_model.layers.1",), "model.layers.11.mlp.up_proj", "model.layers.1.mlp.up_proj"),
        (("mlp.gate",), "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate"),
        (("re:.*mlp\\.gate$",), "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate"),
        (("re:vision.*",), "model.layers.0.vision", "vision_tower.encoder.layers.0.mlp.fc1"),
        (("re:model\\.vision.*",), "model.layers.0.vision", "vision_tower.encoder.layers.0.mlp.fc1"),
    ],
)
def test_exclusions_name_modules(excluded: tuple[str, ...], covered: str, not_covered: str) -> None:
    quantization = Quantization(strategy="channel", excluded=excluded)
    assert quantization.covers(covered) and not quantization.covers(not_covered)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            r"quantization_config \(bitsandbytes\): this format is not supported. Supported are awq",
        ),
        ({"quant_method": "awq", "bits": 3}, r"\(awq\): bits must be 4, got 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version must be 'gemm', got 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point must be True, got False"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, r"group_size must be -1 or in \[8, 1048576\], got 0"),
        ({"quant_method": "gptq", "bits": 3}, r"\(gptq\): bits must be 4 or 8, got 3"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": "x"},
            r"group_size must be -1 or in \[8, 1048576\], got 'x'",
        ),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format must be 'gptq' or"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}, "+:y": {"bits": 8}}}, r"supported, got '\+:y'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": ["-:x"]}, "dynamic must be an object"),
        ({"bits": 4}, r"\(None\): this format is not supported"),
        ("int8", r"\(int8\): it must be an object"),
        (["fp8"], "it must be an object"),
        ([], "it must be an object"),
        (False, "it must be an object"),
        ({"quant_method": "gptq", "bits": 4, "sym": "yes"}, "sym must be None or True or False, got 'yes'"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": "no"}, "desc_act must be None or True or False, got 'no'"),
        (changed(COMPRESSED, "format", "marlin-24"), "format must be 'float-quantized' or .*got 'marlin-24'"),
        (changed(COMPRESSED, "format", "int-quantized"), "weights.type must be 'int', got 'float'"),
        (changed(COMPRESSED, "format", ["x"]), r"format must be .*, got \['x'\]"),
        (changed(INTEGERS, "config_groups.group_0.input_activations", None), "input_activations must be .* got None"),
        (changed(INTEGERS, "config_groups.group_0.input_activations.type", "float"), "activations.type must be 'int'"),
        (changed(INTEGERS, "config_groups.group_0.input_activations.symmetric", False), "symmetric must be True"),
        (
            changed(INTEGERS, "config_groups.group_0.input_activations.strategy", "group"),
            "strategy must be 'tensor' or",
        ),
        (changed(INTEGERS, "config_groups.group_0.weights.symmetric", False), "weights.symmetric must be True"),
        (changed(INTEGERS, "config_groups.group_0.weights.strategy", "block"), "weights.strategy must be 'tensor' or"),
        ({"quant_method": "smooth_quant", "quant_dtype": "int4"}, "quant_dtype must be 'int8' or 'float8_e4m3fn', got"),
        ({"quant_method": "smooth_quant", "quant_dtype": {}}, "quant_dtype must be 'int8' or"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            r"\(modelopt\): quant_algo must be 'FP8' or .*got 'NVFP4'",
        ),
        ({"quant_method": "modelopt"}, "quant_algo must be 'FP8' or .*got None"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": "lm_head"}, "ignore must be a list"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"},
            "kv_cache_quant_algo must be None or 'FP8', got 'NVFP4'",
        ),
        (
            changed(COMPRESSED, "kv_cache_scheme", {"num_bits": 8, "type": "int"}),
            "scheme.type must be 'float', got 'int'",
        ),
        (
            changed(COMPRESSED, "kv_cache_scheme", {"num_bits": 4, "type": "float"}),
            "scheme.num_bits must be 8, got 4",
        ),
        (changed(COMPRESSED, "kv_cache_scheme", "fp8"), "kv_cache_scheme must be an object"),
        (changed(COMPRESSED, "config_groups", {}), "there must be one group"),
        (changed(COMPRESSED, "config_groups.group_0", []), "its group has no weights"),
        (changed(COMPRESSED, "config_groups.group_0.targets", ["re:.*down_proj"]), "targets must be"),
        (changed(COMPRESSED, "config_groups.group_0.weights.num_bits", 4), "weights.num_bits must be 8, got 4"),
        (
            changed(COMPRESSED, "config_groups.group_0.weights.strategy", "group"),
            "weights.strategy must be 'tensor' or",
        ),
        (changed(PACKED, f"{WEIGHTS}.num_bits", 3), "weights.num_bits must be 4 or 8, got 3"),
        (changed(PACKED, f"{WEIGHTS}.type", "float"), "weights.type must be 'int', got 'float'"),
        (changed(PACKED, f"{WEIGHTS}.strategy", "tensor"), "weights.strategy must be 'group' or 'channel'"),
        (changed(PACKED, f"{WEIGHTS}.symmetric", "yes"), "weights.symmetric must be True or False, got 'yes'"),
        (changed(PACKED, f"{WEIGHTS}.group_size", 24), "weights.group_size must be -1 or a multiple of 16, got 24"),
        (
            changed(PACKED, f"{WEIGHTS}.group_size", None),
            r"weights.group_size must be -1 or in \[8, 1048576\], got None",
        ),
        (changed(PACKED, f"{WEIGHTS}.actorder", "magic"), "weights.actorder must be None or .*got 'magic'"),
        (
            changed(PACKED, "config_groups.group_0.input_activations", {"num_bits": 8}),
            "input_activations must be None",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 8}, "group_size must be -1 or a multiple of 16, got 8"),
        (changed(COMPRESSED, "transform_config", {"config_groups": {"u": {}}}), "transform_config must be None, got"),
        (
            changed(COMPRESSED, "sparsity_config", {"format": "sparse-24-bitmask"}),
            "sparsity_config.format must be",
        ),
        ({"quant_method": "gptq", "bits": 4.0}, r"bits must be 4 or 8, got 4.0"),
        (changed(PACKED, f"{WEIGHTS}.num_bits", 4.0), "weights.num_bits must be 4 or 8, got 4.0"),
        (changed(PACKED, f"{WEIGHTS}.symmetric", 1), "weights.symmetric must be True or False, got 1"),
        (changed(COMPRESSED, "ignore", ["re:" + "(" * 450 + ")" * 450]), "is not a regular expression: maximum recur"),
        (changed(COMPRESSED, "ignore", "lm_head"), "ignore must be a list of names of modules"),
        (changed(COMPRESSED, "ignore", [1]), "ignore must be a list of names of modules"),
        (changed(COMPRESSED, "ignore", ["re:("]), "'re:\\(' is not a regular expression"),
        (changed(COMPRESSED, "ignore", ["x" * 2000]), "ignore: a name may have at most 1000 characters, got 2000"),
        (changed(COMPRESSED, "ignore", ["x"] * 20_001), "ignore may have at most 20000 names, got 20001"),
        ({"quant_method": "awq", "bits": "4"}, "bits must be 4, got '4'"),
        (
            changed(BLOCKS, "weight_block_size", [128]),
            r"weight_block_size must be two positive integers, got \[128\]",
        ),
        (changed(BLOCKS, "weight_block_size", [0, -1]), "weight_block_size must be two positive integers"),
        (changed(BLOCKS, "weight_block_size", "128"), "weight_block_size must be two positive integers"),
        (changed(BLOCKS, "fmt", "e5m2"), "fmt must be 'e4m3' or .*got 'e5m2'"),
        (changed(COMPRESSED, "format", "nvfp4-pack-quantized"), "format must be .*, got 'nvfp4-pack-quantized'"),
        (changed(COMPRESSED, "format", "mxfp4-pack-quantized"), "format must be .*, got 'mxfp4-pack-quantized'"),
        (changed(BLOCKS, "activation_scheme", "static"), "activation_scheme must be 'dynamic', got 'static'"),
        (changed(BLOCKS, "modules_to_not_convert", {"a": 1}), "modules_to_not_convert must be a list"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read(settings)
    assert str(raised.value).startswith(str(FILE))


def test_settings_of_modelopt_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    settings = {"quant_algo": "fp8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*vision_tower*"]}
    content = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": settings}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    found = read_quantization(file, {}, None)
    assert found is not None and (found.format, found.strategy, found.has_input_scale) == ("fp8", "tensor", True)
    assert found.covers("model.layers.0.mlp.up_proj") and found.ignored == ("k_scale", "v_scale")
    assert found.kv_format == "fp8"
    assert not found.covers("vision_tower.layers.0.mlp.up_proj") and not found.covers("lm_head")
    assert read_quantization(file, {"quantization_config": None}, None) is None, "turned off by the user"
    wrong: list[Any] = [{}, {"quantization": []}, {"quantization": {"quant_algo": "W4A8_AWQ"}}]
    for bad in wrong:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(bad))
        with pytest.raises(
            CheckpointError, match=r"hf_quant_config\.json: quantization_config \(modelopt\): quant_algo"
        ):
            read_quantization(file, {}, None)


def test_a_pattern_that_takes_for_ever_is_refused() -> None:
    quantization = read(changed(COMPRESSED, "ignore", ["re:(a|aa)+$"]))
    assert quantization is not None
    with pytest.raises(CheckpointError, match=r"^folder/config\.json: .* takes too long for module"):
        quantization.covers("a" * 60 + "b")  # 2^60 steps


def test_many_slow_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusions, "_ALL_PATTERNS_S", 0.2)
    slow = read(changed(COMPRESSED, "ignore", [f"re:(a|aa)+{i}$" for i in range(1000)]))
    assert slow is not None
    with pytest.raises(
        CheckpointError, match=r"^folder/config\.json: .* its 1000 patterns take more than 0\.2 s in all"
    ):
        slow.covers("a" * 18 + "b")
    many = read(changed(COMPRESSED, "ignore", [f"re:x{i}" for i in range(1001)]))
    assert many is not None
    with pytest.raises(CheckpointError, match="at most 1000 patterns may name excluded modules, got 1001"):
        many.covers("lm_head")


def test_defaults_are_those_of_compressed_tensors() -> None:
    """A scale for all tokens is static where nothing is said; empty settings of newer versions change nothing."""
    settings = copy.deepcopy(dict(INTEGERS)) | {"transform_config": {}, "sparsity_config": {"format": "dense"}}
    inputs = settings["config_groups"]["group_0"]["input_activations"]
    del inputs["dynamic"], settings["config_groups"]["group_0"]["weights"]["type"]
    for strategy in ("tensor", "token"):
        inputs["strategy"] = strategy
        found = read(settings)
        assert found is not None and found.format == "int8" and found.has_input_scale == (strategy == "tensor")


def test_a_folder_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "bnb"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json: quantization_config \(bnb\)"):
        Checkpoint.load(tmp_path)
    assert Checkpoint.load(tmp_path, {"quantization_config": None}).quantization is None
