"""Mistral's own layout: params.json, consolidated safetensors files and tekken.json, as mistral-inference reads them
(https://github.com/mistralai/mistral-inference). Read as the same model in Transformers' layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from seesay.checkpoint.fields import check_fields, read_count, read_number, read_part
from seesay.checkpoint.files import read_object
from seesay.checkpoint.tensors import StoredTensor, find_shards
from seesay.errors import CheckpointError

CONFIG_FILE, PARAMS_FILE, _PROCESSOR_FILE = "config.json", "params.json", "processor_config.json"
_WEIGHTS, _INDEX = "consolidated.safetensors", "consolidated.safetensors.index.json"

_SIZES: Mapping[str, str] = {
    "dim": "hidden_size",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
}
_FIXED: Mapping[str, object] = {"activation": "silu", "causal": True, "model_type": "transformer"}
_TEXT_ARCHITECTURES: Mapping[str, str] = {
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
_READ = (
    *_SIZES, *_FIXED, "dtype", "llama_4_scaling", "max_position_embeddings", "max_seq_len", "norm_eps", "rope_theta",
    "sliding_window", "tied_embeddings", "vision_encoder", "yarn",
)  # fmt: skip
_NOT_USED = ("max_batch_size",)
"""Fields that say how a model is to be run, and not what it is."""
_REASONS: Mapping[str, str] = {
    "moe": "experts",
    "multimodal": "an encoder of sounds",
    "quantization": "quantized weights",
}
_MAX_LENGTH = 128_000
"""Positions of a model whose params.json has no number of them, as in mistral-inference."""
_THETA, _WINDOW_THETA, _TOWER_THETA = 1e6, 1e4, 1e4

_TOWER_SIZES = (
    "hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size",
)  # fmt: skip
_TOWER_READ = (
    *_TOWER_SIZES, "adapter_bias", "add_pre_mm_projector_layer_norm", "image_break_token_id", "image_end_token_id",
    "image_token_id", "max_image_size", "mm_projector_id", "num_channels", "rope_theta", "spatial_merge_size",
)  # fmt: skip
_IMAGE_TOKEN = 10

_TENSORS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"output\.weight", "lm_head.weight"),
        (r"tok_embeddings\.weight", "@embed_tokens.weight"),
        (r"norm\.weight", "@norm.weight"),
        (r"layers\.(\d+)\.attention_norm\.weight", r"@layers.\1.input_layernorm.weight"),
        (r"layers\.(\d+)\.ffn_norm\.weight", r"@layers.\1.post_attention_layernorm.weight"),
        (r"layers\.(\d+)\.attention\.w([qkvo])\.weight", r"@layers.\1.self_attn.\2_proj.weight"),
        (r"layers\.(\d+)\.feed_forward\.w1\.weight", r"@layers.\1.mlp.gate_proj.weight"),
        (r"layers\.(\d+)\.feed_forward\.w2\.weight", r"@layers.\1.mlp.down_proj.weight"),
        (r"layers\.(\d+)\.feed_forward\.w3\.weight", r"@layers.\1.mlp.up_proj.weight"),
        (r"vision_encoder\.(patch_conv|ln_pre)\.weight", r"model.vision_tower.\1.weight"),
        (
            r"vision_encoder\.transformer\.layers\.(\d+)\.(attention|ffn)_norm\.weight",
            r"model.vision_tower.transformer.layers.\1.\2_norm.weight",
        ),
        (
            r"vision_encoder\.transformer\.layers\.(\d+)\.attention\.w([qkvo])\.weight",
            r"model.vision_tower.transformer.layers.\1.attention.\2_proj.weight",
        ),
        (
            r"vision_encoder\.transformer\.layers\.(\d+)\.feed_forward\.w1\.weight",
            r"model.vision_tower.transformer.layers.\1.feed_forward.gate_proj.weight",
        ),
        (
            r"vision_encoder\.transformer\.layers\.(\d+)\.feed_forward\.w2\.weight",
            r"model.vision_tower.transformer.layers.\1.feed_forward.down_proj.weight",
        ),
        (
            r"vision_encoder\.transformer\.layers\.(\d+)\.feed_forward\.w3\.weight",
            r"model.vision_tower.transformer.layers.\1.feed_forward.up_proj.weight",
        ),
        (r"vision_language_adapter\.w_in\.(weight|bias)", r"model.multi_modal_projector.linear_1.\1"),
        (r"vision_language_adapter\.w_out\.(weight|bias)", r"model.multi_modal_projector.linear_2.\1"),
        (r"pre_mm_projector_norm\.weight", "model.multi_modal_projector.norm.weight"),
        (
            r"patch_merger\.merging_layer\.weight",
            "model.multi_modal_projector.patch_merger.merging_layer.weight",
        ),
    )
)
"""Names of tensors in consolidated files, and in Transformers' layout; `@` is the prefix of the text model."""
_TURNED = re.compile(r"(vision_encoder\.transformer\.)?layers\.\d+\.attention\.w([qk])\.weight")


def read_stand_ins(folder: Path) -> dict[str, dict[str, object]]:
    """Return the JSON files of Transformers' layout that a folder in Mistral's own layout stands for, by name; nothing
    for a folder with a config.json, or without params.json. Raises `CheckpointError` naming what cannot be read."""
    if (folder / CONFIG_FILE).exists() or (params := read_object(folder / PARAMS_FILE)) is None:
        return {}
    try:
        return read_params(params)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / PARAMS_FILE}: {error}") from None


def read_model_object(folder: Path, name: str) -> dict[str, object] | None:
    """Return a JSON file of a model folder, or what stands for it there; None where there is neither."""
    found = read_object(folder / name)
    return read_stand_ins(folder).get(name) if found is None else found


def read_params(params: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return the files config.json and, of a model with a tower, processor_config.json that mean the same as a
    params.json. Raises `CheckpointError` naming a field that is missing, not valid or not supported."""
    for name, kept in _REASONS.items():
        if params.get(name):
            raise CheckpointError(
                f"{name}: {kept} in Mistral's own layout are not supported: give the same model in Transformers' "
                "layout, with a config.json"
            )
    check_fields(params, _FIXED)
    _expect_known(params, (*_READ, *_NOT_USED))
    text, dtype = _read_text(params), params.get("dtype") or "bfloat16"
    if params.get("vision_encoder") is None:
        architecture = _TEXT_ARCHITECTURES[str(text["model_type"])]
        return {CONFIG_FILE: {"architectures": [architecture], "dtype": dtype, **text}}
    try:
        config, processor = _read_tower(read_part(params, "vision_encoder"))
    except CheckpointError as error:
        raise CheckpointError(f"vision_encoder: {error}") from None
    config |= {"dtype": dtype, "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}
    return {CONFIG_FILE: config, _PROCESSOR_FILE: processor}


def _expect_known(fields: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise `CheckpointError` for a field that says something which is not read here."""
    for name, value in fields.items():
        if name not in known and value is not None and value is not False:
            raise CheckpointError(f"{name[:40]!r} is not a field that is supported, got {str(value)[:40]!r}")


def _read_text(params: Mapping[str, object]) -> dict[str, object]:
    sizes = {name: read_count(params, own) for own, name in _SIZES.items()}
    window = params.get("sliding_window")
    theta = read_number(params, "rope_theta", _THETA if window is None else _WINDOW_THETA)
    text: dict[str, object] = {
        **sizes,
        "model_type": "mistral",
        "hidden_act": "silu",
        "max_position_embeddings": _read_length(params),
        "rms_norm_eps": read_number(params, "norm_eps", 1e-5),
        "rope_theta": theta,
        "sliding_window": None,
        "tie_word_embeddings": _read_flag(params, "tied_embeddings", default=False),
    }
    if isinstance(window, list):
        text |= _read_windows(window, sizes["num_hidden_layers"])
    elif window is not None:
        text["sliding_window"] = read_count(params, "sliding_window")
    if params.get("yarn") is None and params.get("llama_4_scaling") is not None:
        raise CheckpointError("llama_4_scaling without yarn is not supported")
    if params.get("yarn") is not None:
        text |= _read_yarn(params, theta)
        del text["rope_theta"]  # it is one of `rope_parameters`
    return text


def _read_length(params: Mapping[str, object]) -> int:
    for name in ("max_position_embeddings", "max_seq_len"):
        if params.get(name) is not None:
            return read_count(params, name)
    return _MAX_LENGTH


def _read_windows(windows: list[object], num_layers: int) -> dict[str, object]:
    """Return the fields of a model whose layers take turns with the entries of `windows`: a length, or null."""
    if not _are_windows(windows) or num_layers % len(windows):
        raise CheckpointError(
            "sliding_window must be a positive integer, or a list of one such integer and null whose length divides "
            f"the number of layers, got {str(windows)[:40]!r}"
        )
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    layer_types = kinds * (num_layers // len(windows))
    return {"layer_types": layer_types, "model_type": "ministral", "sliding_window": next(filter(None, windows))}


def _are_windows(windows: list[object]) -> bool:
    """Return whether these are one length and, if any more, null."""
    if not all(window is None or (type(window) is int and window > 0) for window in windows):
        return False
    return len(set(windows) - {None}) == 1


def _read_yarn(params: Mapping[str, object], theta: float) -> dict[str, object]:
    """Return the rotary embeddings of YaRN (arXiv 2309.00071) without its temperature, and, where queries grow with
    their position, by how much."""
    yarn, growth = read_part(params, "yarn"), params.get("llama_4_scaling")
    _expect_known(yarn, ("alpha", "apply_scale", "beta", "factor", "original_max_position_embeddings"))
    if yarn.get("apply_scale") is not False:
        raise CheckpointError(f"yarn.apply_scale must be false, got {str(yarn.get('apply_scale'))[:40]!r}")
    length = read_count(yarn, "original_max_position_embeddings")
    rotary: dict[str, object] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": read_number(yarn, "factor"),
        "original_max_position_embeddings": length,
        "beta_fast": read_number(yarn, "beta", 32.0),
        "beta_slow": read_number(yarn, "alpha", 1.0),
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    if growth is None:
        return {"rope_parameters": rotary}
    growth = read_part(params, "llama_4_scaling")
    _expect_known(growth, ("beta", "original_max_position_embeddings"))
    if read_count(growth, "original_max_position_embeddings") != length:
        raise CheckpointError("llama_4_scaling.original_max_position_embeddings must be that of yarn")
    rotary["llama_4_scaling_beta"] = read_number(growth, "beta")
    return {"model_type": "ministral3", "rope_parameters": rotary}


def _read_tower(tower: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return config.json without the text model, and processor_config.json."""
    _expect_known(tower, (*_TOWER_READ, "head_dim"))
    sizes = {name: read_count(tower, name) for name in _TOWER_SIZES}
    if tower.get("head_dim") is not None and (
        read_count(tower, "head_dim") * sizes["num_attention_heads"] != sizes["hidden_size"]
    ):
        raise CheckpointError(f"head_dim={tower['head_dim']} is not hidden_size divided by num_attention_heads")
    merge = _read_merging(tower)
    if merge is None:
        kind: dict[str, object] = {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "vision_feature_select_strategy": "full",
        }
    else:
        kind = {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "spatial_merge_size": merge,
        }
    config = {
        **kind,
        "image_token_index": _read_id(tower, "image_token_id", _IMAGE_TOKEN),
        "multimodal_projector_bias": _read_flag(tower, "adapter_bias", default=True),
        "projector_hidden_act": "gelu",
        "vision_config": {
            **sizes,
            "hidden_act": "silu",
            "model_type": "pixtral",
            "num_channels": read_count(tower, "num_channels") if "num_channels" in tower else 3,
            "rope_theta": read_number(tower, "rope_theta", _TOWER_THETA),
        },
        "vision_feature_layer": -1,
    }
    return config, _make_processor(tower, sizes, merge or 1)


def _read_merging(tower: Mapping[str, object]) -> int | None:
    """Return the side of the squares of patches that become one row, behind a norm; None without both. Raises
    `CheckpointError` for one without the other."""
    is_merged = tower.get("mm_projector_id") == "patch_merge"
    merge = read_count(tower, "spatial_merge_size") if tower.get("spatial_merge_size") is not None else 1
    has_norm = _read_flag(tower, "add_pre_mm_projector_layer_norm", default=False)
    check_fields(tower, {"mm_projector_id": "patch_merge" if is_merged else None})
    if is_merged != has_norm or (merge > 1 and not is_merged):
        raise CheckpointError(
            f"mm_projector_id={tower.get('mm_projector_id')!r} with spatial_merge_size={merge} and "
            f"add_pre_mm_projector_layer_norm={has_norm} is not supported"
        )
    return merge if is_merged else None


def _make_processor(tower: Mapping[str, object], sizes: Mapping[str, int], merge: int) -> dict[str, object]:
    edge = read_count(tower, "max_image_size") if "max_image_size" in tower else sizes["image_size"]
    side = sizes["patch_size"]
    processor: dict[str, object] = {
        "image_processor": {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": {"height": side, "width": side},
            "size": {"longest_edge": edge},
        },
        "patch_size": side,
        "processor_class": "PixtralProcessor",
        "spatial_merge_size": merge,
    }
    for name in ("image_break_token_id", "image_end_token_id"):
        if name in tower:
            processor[name] = _read_id(tower, name, 0)
    return processor


def _read_flag(fields: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{name} must be true or false, got {str(value)[:40]!r}")
    return default if value is None else value


def _read_id(fields: Mapping[str, object], name: str, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{name} must be the id of a token, got {str(value)[:40]!r}")
    return value


def find_consolidated(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder in this layout. Raises `CheckpointError` where there are none."""
    return find_shards(folder, read_object(folder / _INDEX), single=_WEIGHTS, index_file=_INDEX)


def rename_tensors(stored: Mapping[str, StoredTensor], config: Mapping[str, object]) -> dict[str, StoredTensor]:
    """Return the tensors of consolidated files by their names in Transformers' layout. config: the config.json that
    `read_params` returned.

    The files have, for rotary embeddings, the two rows of each pair beside each other; Transformers has the first ones
    of all pairs of a head and then the second ones.
    Raises `CheckpointError` for two tensors of one name, and for one whose rows are not those of whole heads.
    """
    text = config.get("text_config")
    prefix = "model." if text is None else "model.language_model."
    found: dict[str, StoredTensor] = {}
    for own, tensor in stored.items():
        name = _rename(own, prefix)
        if name in found:
            raise CheckpointError(f"{tensor.file}: tensor {own!r} is there under another name, too")
        found[name] = replace(tensor, own_name=own, num_paired_heads=_count_heads(own, config))
        if not found[name].has_whole_pairs:
            raise CheckpointError(
                f"{tensor.file}: tensor {own!r} has shape {list(tensor.shape)}, which is not that of "
                f"{found[name].num_paired_heads} heads"
            )
    return found


def _rename(own: str, prefix: str) -> str:
    for pattern, name in _TENSORS:
        if (match := pattern.fullmatch(own)) is not None:
            return match.expand(name).replace("@", prefix)
    return own


def _count_heads(own: str, config: Mapping[str, object]) -> int:
    """Return the heads whose rows are in pairs; 0 for a tensor without rotary embeddings."""
    if (match := _TURNED.fullmatch(own)) is None:
        return 0
    if match[1]:
        return read_count(read_part(config, "vision_config"), "num_attention_heads")
    text = read_part(config, "text_config") if "text_config" in config else config
    return read_count(text, "num_attention_heads" if match[2] == "q" else "num_key_value_heads")
