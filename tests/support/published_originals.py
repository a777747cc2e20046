"""Tiny checkpoints of InternVLChat and LLaVA in the layouts of their authors, with the names, shapes and fields that
their published code has (`tests/golden`). The model of Transformers in the folder `SIBLING` gets their weights.

The code that is named in the files is not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from enrolment import SIBLING
from golden.formula import fill
from original_layouts import CODE, Json, State, copy_tokenizer, publish_text
from safetensors.torch import load_file, save_file

# --- published names and fields ---------------------------------------------------------------------------------------

_GOLDEN = Path(__file__).parents[1] / "golden"


def fill_published(name: str, is_taken: Callable[[str], bool] = lambda _: True) -> State:
    """Return tensors under the names and in the shapes that the published model `name` of `tests/golden` has."""
    return {own: fill(own, shape) for own, shape in list_published(name).items() if is_taken(own)}


def list_published(name: str) -> Mapping[str, Iterable[int]]:
    """Return the shapes of the tensors of the published model `name`, by their names."""
    shapes: Mapping[str, Iterable[int]] = json.loads((_GOLDEN / name / "tensors.json").read_text())
    return shapes


def read_published(name: str) -> Json:
    """Return the published config.json of a model of `tests/golden`."""
    fields: Json = json.loads((_GOLDEN / name / "config.json").read_text())
    return fields


def take_values(fields: Mapping[str, Any], values: Mapping[str, Any], but: Iterable[str] = ("architectures",)) -> Json:
    """Return published fields with the values that another configuration has, except for those in `but`."""
    kept = {"model_type", "architectures", "transformers_version", *but}
    return {name: values[name] if name in values and name not in kept else value for name, value in fields.items()}


def give_weights(
    sibling: Path, tensors: State, published: State, name_of: Callable[[str, Mapping[str, Any]], str]
) -> None:
    """Give the model in `sibling` published tensors. name_of: from its names and those of `published` to the authors'.
    Asserts that each has its shape, and that none is left."""
    file = sibling / "model.safetensors"
    names = {own: name_of(own, published) for own in load_file(file)}
    assert sorted(names.values()) == sorted(tensors), sorted(set(names.values()) ^ set(tensors))
    given = {own: tensors[name].contiguous() for own, name in names.items()}
    assert {own: each.shape for own, each in given.items()} == {own: e.shape for own, e in load_file(file).items()}
    save_file(given, file, {"format": "pt"})


def _replace(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for known, original in pairs:
        name = name.replace(known, original)
    return name


# --- InternVL ---------------------------------------------------------------------------------------------------------

_INTERN_VIT = (
    (".cls_token", ".class_embedding"),
    (".patch_embeddings.projection.", ".patch_embedding."),
    (".position_embeddings", ".position_embedding"),
    (".encoder.layer.", ".encoder.layers."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".attention.projection_layer.", ".attn.proj."),
    (".attention.", ".attn."),
    (".lambda_1", ".ls1"),
    (".lambda_2", ".ls2"),
    ("vision_tower.", "vision_model."),
    ("multi_modal_projector.layer_norm.", "mlp1.0."),
    ("multi_modal_projector.linear_1.", "mlp1.1."),
    ("multi_modal_projector.linear_2.", "mlp1.3."),
)


INTERN_PROCESSOR = {
    "crop_size": 448, "do_center_crop": True, "do_normalize": True, "do_resize": True, "size": 448, "resample": 3,
    "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip
"""As published, which the authors' code does not read."""


def write_internvl_chat(path: Path, *, is_internlm2: bool, **changes: Any) -> None:
    """Write an InternVLChatModel with the published names, shapes and fields of `tests/golden`: InternLM2 with
    InternViT-300M, or Qwen3 with InternViT-6B. The InternVL in `path / SIBLING` gets its weights."""
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    tower, decoder = ("internvl_internlm2",) * 2 if is_internlm2 else ("internvl_llama", "internvl_qwen3")
    published = {
        **fill_published(tower, lambda name: not name.startswith(_INNER)),
        **fill_published(decoder, lambda name: name.startswith(_INNER)),
    }
    save_file(published, path / "model.safetensors")
    parts = _take_apart_internvl(published, config["text_config"])
    give_weights(sibling, parts, published, _name_as_internvl)
    own, text = config["vision_config"], publish_text(config["text_config"])
    vision = {"image_size": own["image_size"][0], "patch_size": own["patch_size"][0]}
    fields = read_published(decoder)
    fields["llm_config"] = take_values(fields["llm_config"], text, but=_OF_INTERNLM2)
    fields["vision_config"] = take_values(read_published(tower)["vision_config"], {**own, **vision})
    fields |= {"force_image_size": vision["image_size"], "max_dynamic_patch": 6, **changes}
    (path / "config.json").write_text(json.dumps(fields))
    (path / "preprocessor_config.json").write_text(json.dumps(INTERN_PROCESSOR))
    for code in ("configuration_intern_vit", "configuration_internvl_chat", "modeling_intern_vit", "conversation"):
        (path / f"{code}.py").write_text(CODE)
    named_tokens = ("<img>", "</img>", "<IMG_CONTEXT>")
    copy_tokenizer(path, "<video>", extra_special_tokens=list(named_tokens))


_INNER = "language_model."
_OF_INTERNLM2 = ("model_type", "architectures", "auto_map", "rope_scaling", "bias", "attn_implementation")


def _take_apart_internvl(published: State, text: Mapping[str, Any]) -> State:
    """Return the tensors, with those that hold queries, keys and values together one by one."""
    groups, size = text["num_key_value_heads"], text["hidden_size"] // text["num_attention_heads"]
    tensors: State = {}
    for name, tensor in published.items():
        if ".attn.qkv." in name:
            parts = dict(zip("qkv", tensor.chunk(3), strict=True))
        elif ".attention.wqkv." in name:
            grouped = tensor.view(groups, -1, size, tensor.shape[1])
            cut = {"q": grouped[:, :-2], "k": grouped[:, -2:-1], "v": grouped[:, -1:]}
            parts = {part: each.flatten(0, 2) for part, each in cut.items()}
        else:
            tensors[name] = tensor
            continue
        for part, each in parts.items():
            tensors[name.replace(".attn.qkv.", f".attn.{part}_proj.").replace(".wqkv.", f".w{part}.")] = each
    return tensors


_INTERNLM2 = (
    ("model.embed_tokens.", "model.tok_embeddings."),
    ("lm_head.", "output."),
    (".self_attn.q_proj.", ".attention.wq."),
    (".self_attn.k_proj.", ".attention.wk."),
    (".self_attn.v_proj.", ".attention.wv."),
    (".self_attn.o_proj.", ".attention.wo."),
    (".input_layernorm.", ".attention_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".mlp.gate_proj.", ".feed_forward.w1."),
    (".mlp.down_proj.", ".feed_forward.w2."),
    (".mlp.up_proj.", ".feed_forward.w3."),
)


def _name_as_internvl(name: str, published: Mapping[str, Any]) -> str:
    """Return what the authors call a tensor of Transformers' InternVL."""
    inner = name.removeprefix("model.")
    if not inner.startswith(_INNER) and not inner.startswith("lm_head."):
        return _replace(inner, _INTERN_VIT)
    own = inner.removeprefix(_INNER)
    causal = own if own.startswith("lm_head.") else f"model.{own.removeprefix('model.')}"
    is_internlm2 = f"{_INNER}model.tok_embeddings.weight" in published
    return _INNER + (_replace(causal, _INTERNLM2) if is_internlm2 else causal)


# --- LLaVA ------------------------------------------------------------------------------------------------------------

_LLAVA_RELEASES = {
    "LlavaLlamaForCausalLM": "llava_1_5",
    "LlavaMistralForCausalLM": "llava_1_6",
    "LlavaQwenForCausalLM": "llava_onevision",
}
"""Published models of `tests/golden`."""
_LLAVA = (
    ("multi_modal_projector.linear_1.", "mm_projector.0."),
    ("multi_modal_projector.linear_2.", "mm_projector.2."),
)


def write_original_llava(path: Path, name: str) -> None:
    """Write a `name`, such as a LlavaLlamaForCausalLM, with the published names, shapes and fields of `tests/golden`.
    The LLaVA in `path / SIBLING` gets its weights. Its tower is a small one, of which `vision_config` says the sizes.
    """
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    published = fill_published(_LLAVA_RELEASES[name])
    save_file(published, path / "model.safetensors")
    give_weights(sibling, published, published, lambda own, _: _name_as_llava(own))
    fields = take_values(read_published(_LLAVA_RELEASES[name]), publish_text(config["text_config"]))
    fields["vision_config"] = config["vision_config"]
    if "image_grid_pinpoints" in config:
        fields["image_grid_pinpoints"] = [[width, height] for height, width in config["image_grid_pinpoints"]]
    if "vision_aspect_ratio" in config:
        fields["image_aspect_ratio"] = config["vision_aspect_ratio"]
    (path / "config.json").write_text(json.dumps(fields))
    copy_tokenizer(path, "<image>", *(["<video>"] if "video_token_index" in config else []))


def _name_as_llava(name: str) -> str:
    """Return what the authors call a tensor of Transformers' LLaVA."""
    inner = name.removeprefix("model.")
    if "lm_head." in inner:
        return "lm_head.weight"
    tower = inner.removeprefix("vision_tower.")
    if tower != inner:
        return f"model.vision_tower.vision_tower.vision_model.{tower.removeprefix('vision_model.')}"
    return f"model.{_replace(inner, _LLAVA).removeprefix('language_model.').removeprefix('model.')}"
