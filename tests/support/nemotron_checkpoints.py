"""The tiny Nemotron 3 Nano Omni, without its tower for audio, as Transformers and as its authors write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from enrolment import SIBLING
from original_layouts import CODE, Json, copy_tokenizer
from safetensors.torch import load_file, save_file

_PATCHES = {"patch_size": 4, "min_num_patches": 16, "max_num_patches": 256}
_VIDEO_PATCHES = {"patch_size": 4, "video_target_num_patches": 90}


def write_nemotron_omni(path: Path, **text_options: Any) -> None:
    """The tower's table of positions has 8 x 8 of them: pictures have fewer and more; three learned rows come first."""
    from transformers import (
        NemotronH_Omni_Reasoning_V3,
        NemotronH_Omni_Reasoning_V3_Config,
        NemotronH_Omni_Reasoning_V3ImageProcessor,
        NemotronH_Omni_Reasoning_V3Processor,
        NemotronH_Omni_Reasoning_V3VideoProcessor,
        NemotronHConfig,
        ParakeetFeatureExtractor,
        RadioConfig,
    )
    from vl.checkpoints import CHATML, NEMOTRON_SIZES, QWEN_TEXT, STATISTICS, make_tokenizer, save_model

    template = CHATML.replace("@image@", "<image>").replace("@video@", "<video>")
    tokenizer = make_tokenizer(
        template, image_token="<image>", video_token="<video>", audio_token="<so_embedding>",
        image_start_token="<img>", image_end_token="</img>",
    )  # fmt: skip
    options = {"hybrid_override_pattern": "M-M*-M", "num_nextn_predict_layers": 0, **text_options}
    text = NemotronHConfig(
        **QWEN_TEXT, **NEMOTRON_SIZES, vocab_size=288, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, **options,
    )  # fmt: skip
    vision = RadioConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=1.5, patch_size=4, max_img_size=32,
        num_cls_tokens=2, num_registers=1, video_temporal_patch_size=2,
    )  # fmt: skip
    config = NemotronH_Omni_Reasoning_V3_Config(
        text_config=text, vision_config=vision, projector_hidden_size=48, vision_hidden_size=32,
        image_token_id=tokenizer.image_token_id, video_token_id=tokenizer.video_token_id,
        audio_token_id=tokenizer.audio_token_id,
    )  # fmt: skip
    save_model(NemotronH_Omni_Reasoning_V3(config), path)
    NemotronH_Omni_Reasoning_V3Processor(
        image_processor=NemotronH_Omni_Reasoning_V3ImageProcessor(**_PATCHES, **STATISTICS),
        video_processor=NemotronH_Omni_Reasoning_V3VideoProcessor(
            **_VIDEO_PATCHES, norm_mean=STATISTICS["image_mean"], norm_std=STATISTICS["image_std"]
        ),
        feature_extractor=ParakeetFeatureExtractor(), tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def write_original_nemotron_omni(path: Path) -> None:
    """Experts, a norm behind the tower, no scales of the tower's updates, and the tower for audio. Transformers has the
    authors' names of most tensors and fields, too."""
    from vl.checkpoints import STATISTICS

    sibling = path / SIBLING
    write_nemotron_omni(
        sibling, hybrid_override_pattern="MEM*E", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5, num_nextn_predict_layers=1,
    )  # fmt: skip
    tensors = load_file(sibling / "model.safetensors")
    scales = [name for name in tensors if ".layer_scale" in name]
    tensors |= {name: torch.ones_like(tensors[name]) for name in scales}
    save_file(tensors, sibling / "model.safetensors", metadata={"format": "pt"})
    published = {name: tensor for name, tensor in tensors.items() if name not in scales}
    published["vision_model.radio_model.input_conditioner.norm_mean"] = torch.ones(3, 1, 1)
    published["sound_encoder.encoder.layers.0.norm_out.weight"] = torch.ones(8)
    published["sound_projection.norm.weight"] = torch.ones(8)
    save_file(published, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(_name_as_authors(json.loads((sibling / "config.json").read_text()))))
    statistics = {"norm_mean": STATISTICS["image_mean"], "norm_std": STATISTICS["image_std"]}
    kind = "NemotronH_Nano_Omni_Reasoning_V3ImageProcessor"
    auto_map = {"AutoImageProcessor": f"image_processing.{kind}", "AutoProcessor": "processing.Processor"}
    settings = {"image_processor_type": kind, "auto_map": auto_map, "downsample_ratio": 0.5, "max_model_len": 16384}
    (path / "preprocessor_config.json").write_text(json.dumps({**settings, **_PATCHES, **_VIDEO_PATCHES, **statistics}))
    for code in ("configuration", "image_processing", "modeling", "processing"):
        (path / f"{code}.py").write_text(CODE)
    copy_tokenizer(path)


def _name_as_authors(config: Json) -> Json:
    text, vision = config["text_config"], config["vision_config"]
    pattern = {"layers_block_type": None, "mtp_layers_block_type": None, "hybrid_override_pattern": "MEM*E"}
    text = {name: value for name, value in {**text, **pattern}.items() if value is not None}
    args = {"model": "vit_huge_patch16_224", "register_multiple": 10, "cls_token_per_teacher": True}
    return {
        "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"], "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
        "auto_map": {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": "modeling.Model"},
        "downsample_ratio": 0.5, "force_image_size": 512, "projector_hidden_size": config["projector_hidden_size"],
        "vit_hidden_size": vision["hidden_size"], "img_context_token_id": config["image_token_id"],
        "video_context_token_id": config["video_token_id"], "sound_context_token_id": config["audio_token_id"],
        "llm_config": text, "vision_config": {**vision, "args": args, "separate_video_embedder": True},
        "sound_config": {"model_type": "parakeet", "hidden_size": 8}, "torch_dtype": "float32",
    }  # fmt: skip
