"""The models that families are compared with: Transformers', or the references of what it does not have."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from enrolment import OWN_CODE, reference_of
from PIL import Image


def load_oracle(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return the model and the processor of the vision-language checkpoint `path`."""
    published, path = path, reference_of(path)
    config = json.loads((path / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture == "MiniCPMV":
        from reference.minicpmv import MiniCPMV, MiniCPMVProcessor

        return MiniCPMV.load(path).to(dtype), MiniCPMVProcessor(path, version=config.get("version", 2.5))
    if architecture == "DeepseekVLV2ForCausalLM":
        from reference.deepseek_vl2 import DeepseekVL2, DeepseekVL2Processor

        return DeepseekVL2.load(path).to(dtype), DeepseekVL2Processor(path)
    if architecture == "DeepseekOCRForCausalLM":
        from reference.deepseek_ocr import DeepseekOCR, DeepseekOCRProcessor

        return DeepseekOCR.load(path).to(dtype), DeepseekOCRProcessor(path, config=config)
    if architecture == "MultiModalityCausalLM":
        from reference.deepseek_vl import DeepseekVL, DeepseekVLProcessor

        return DeepseekVL.load(path).to(dtype), DeepseekVLProcessor(path, config=config)
    if architecture == "Ovis":
        from reference.ovis2 import Ovis2, Ovis2Processor

        return Ovis2.load(path).to(dtype), Ovis2Processor(path, config=config)
    if architecture == "KimiVLForConditionalGeneration":
        from reference.kimi_vl import KimiVL, KimiVLProcessor

        return KimiVL.load(path).to(dtype), KimiVLProcessor(path)
    if architecture == "MolmoForCausalLM":
        from reference.molmo import Molmo, MolmoProcessor

        return Molmo.load(path).to(dtype), MolmoProcessor(path)
    if architecture == "Phi3VForCausalLM":
        from reference.phi3_v import Phi3V, Phi3VProcessor

        return Phi3V.load(path).to(dtype), Phi3VProcessor(path, tile=config["vision_config"]["image_size"])
    if architecture == "QWenLMHeadModel":
        from reference.qwen_vl import QwenVL, QwenVLProcessor

        return QwenVL.load(path).to(dtype), QwenVLProcessor(path, visual=config["visual"])
    if architecture == "ChatGLMModel":
        from reference.chatglm_4v import Glm4V, Glm4VProcessor

        return Glm4V.load(path).to(dtype), Glm4VProcessor(path, vision=config["vision_config"])
    if architecture == "CogVLMForCausalLM":
        from reference.cogvlm import CogVlm, CogVlmProcessor

        return CogVlm.load(path).to(dtype), CogVlmProcessor(path, config=config)
    if architecture == "CogVLMVideoForCausalLM":
        from reference.cogvlm import CogVlmVideo, CogVlmVideoProcessor

        return CogVlmVideo.load(path).to(dtype), CogVlmVideoProcessor(path, config=config)
    tower = (config.get("vision_config") or {}).get("model_type")
    if tower == "intern_vit_patch":
        from reference.mono_internvl import MonoInternVL, MonoInternVLProcessor

        return MonoInternVL.load(path).to(dtype), MonoInternVLProcessor(path, config=config)
    if architecture in ("MGMLlamaForCausalLM", "MGMGemmaForCausalLM", "MGMMixtralForCausalLM"):
        from reference.mini_gemini import MiniGemini, MiniGeminiProcessor

        return MiniGemini.load(path).to(dtype), MiniGeminiProcessor(path, config=config)
    if architecture == "InternLMXComposer2ForCausalLM":
        from reference.xcomposer2 import XComposer2, XComposer2Processor

        composer = XComposer2.load(path).to(dtype)
        return composer, XComposer2Processor(path, composer)
    from transformers import AutoModelForImageTextToText, AutoProcessor

    runs_code = architecture in OWN_CODE.values()
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, trust_remote_code=runs_code).eval()
    if architecture in (
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
    ):
        _tell_videos_apart(model)
    if architecture == "NemotronH_Omni_Reasoning_V3":
        processor = AutoProcessor.from_pretrained(path)
        _tell_frames_apart(model, processor.tokenizer)
        return model, processor
    if architecture == "Ernie4_5_VLMoeForConditionalGeneration":
        _tell_media_apart(model)
    if architecture == "Llama4ForConditionalGeneration":
        _repair_llama4(model)
    if architecture == "MllamaForConditionalGeneration":
        _follow_published_mllama(model)
        processor = AutoProcessor.from_pretrained(path)
        processor.tokenizer.backend_tokenizer.post_processor = None
        return model, processor
    processor = AutoProcessor.from_pretrained(path, trust_remote_code=runs_code)
    if architecture == "DeepseekOcr2ForConditionalGeneration":
        _keep_thin_pictures(processor.image_processor)
    if published != path:
        for each in (processor.image_processor, getattr(processor, "video_processor", None)):
            if each is not None:
                resize_with_pillow(each)
    return model, processor


def resize_with_pillow(processor: Any) -> None:
    """Let a processor of Transformers resize pictures as Pillow does, as the authors' processors do."""
    inherited = processor.resize

    def resize(image: torch.Tensor, *args: Any, resample: Any = None, **options: Any) -> torch.Tensor:
        """The size is that of the inherited method, which takes it in several forms."""
        like = inherited(image, *args, resample=resample, **options)
        filter = Image.Resampling(int(processor.resample if resample is None else resample))
        pictures = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
        size = like.shape[-1], like.shape[-2]
        scaled = [np.array(Image.fromarray(picture).resize(size, filter)) for picture in pictures]
        return torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2).reshape(like.shape)

    processor.resize = resize


def _keep_thin_pictures(processor: Any) -> None:
    """Leave a pixel of each side. In Transformers 5.24 the processor fails for pictures so thin that none is left."""
    inherited = processor.resize

    def resize(image: torch.Tensor, size: Any, **options: Any) -> Any:
        height, width = (max(1, length) for length in (size.height, size.width))
        return inherited(image, type(size)(height=height, width=width), **options)

    processor.resize = resize


def load_text_oracle(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return the model and the tokenizer of the text checkpoint `path`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = reference_of(path)
    config = json.loads((path / "config.json").read_text())
    runs_code = config["architectures"][0] in OWN_CODE.values()
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=runs_code)
    if config["model_type"] == "baichuan":
        from reference.baichuan import Baichuan13B

        return Baichuan13B.load(path).to(dtype), tokenizer
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=runs_code).eval(), tokenizer


def _repair_llama4(model: Any) -> None:
    """In Transformers 5.24 the model asks its decoder's output for `image_outputs`, which it has not, and its processor
    makes pixels of bfloat16 for a tower of any type."""
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast

    output: Any = MoeCausalLMOutputWithPast
    output.image_outputs = None
    embed = model.vision_model.patch_embedding
    embed.register_forward_pre_hook(lambda _, args: (args[0].to(embed.linear.weight.dtype),))


def _tell_media_apart(model: Any) -> None:
    """Let the decoder take `is_row` bool [1, T]: the tokens that take rows of media, and those beside them, go through
    experts of media."""
    inherited = model.model.language_model.forward
    model.splits_rows = True

    def forward(*args: Any, is_row: torch.Tensor | None = None, **options: Any) -> Any:
        if is_row is not None:
            wide = torch.nn.functional.pad(is_row, (1, 1))
            options["moe_mm_token_type_ids"] = (wide[:, :-2] | wide[:, 1:-1] | wide[:, 2:]).int()
        return inherited(*args, **options)

    model.model.language_model.forward = forward


def _follow_published_mllama(model: Any) -> None:
    """Transformers 5.24 departs from the published code twice: it keeps the outputs of the tower's layers instead of
    their inputs, and lets tokens before the first picture of a prompt attend to all of its pictures. (Its processor
    writes a BOS into prompts that have none, behind which the tokenizer must not add another one.)"""
    tower = model.model.vision_model
    tower.intermediate_layers_indices = [index - 1 for index in tower.intermediate_layers_indices]
    mask: list[torch.Tensor | None] = [None]

    def note(_module: Any, _args: Any, options: dict[str, Any]) -> None:
        found = options["full_text_row_masked_out_mask"]
        mask[0] = None if found is None else found[:, 0]

    def hide(_module: Any, _args: Any, output: Any) -> Any:
        return output if mask[0] is None else (output[0] * mask[0], *output[1:])

    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            layer.register_forward_pre_hook(note, with_kwargs=True)
            layer.cross_attn.register_forward_hook(hide)


def _tell_videos_apart(model: Any) -> None:
    """Let the model take pictures and videos in one prompt. It refuses that by itself, for it looks for the places of
    both by the same token: those of videos lie between two others."""
    config = model.config

    def get_placeholder_mask(
        input_ids: torch.Tensor, inputs_embeds: torch.Tensor, image_features: Any = None, video_features: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        markers = (config.video_start_token_id, config.video_end_token_id)
        begun, ended = ((input_ids == each).cumsum(1) for each in markers)
        places, is_video = input_ids == config.image_token_id, begun > ended
        for mask, rows in ((places & ~is_video, image_features), (places & is_video, video_features)):
            assert rows is None or int(mask.sum()) == len(rows)
        return (places & ~is_video)[..., None], (places & is_video)[..., None]

    model.model.get_placeholder_mask = get_placeholder_mask


def _tell_frames_apart(model: Any, tokenizer: Any) -> None:
    """Let Nemotron Omni take pictures and videos in one prompt. It refuses that by itself, for it looks for the places
    of both by the same token: those of videos lie behind the times of frames. The model places pictures first."""
    end = tokenizer(" seconds: ", add_special_tokens=False)["input_ids"]
    start, inherited = tokenizer.convert_tokens_to_ids("<img>"), model.get_placeholder_mask
    order = itertools.cycle((False, True))

    def get_placeholder_mask(
        input_ids: torch.Tensor, inputs_embeds: torch.Tensor, features: torch.Tensor, token_id: int
    ) -> torch.Tensor:
        if token_id != model.image_token_id:
            own: torch.Tensor = inherited(input_ids, inputs_embeds, features, token_id)
            return own
        ids, is_step, is_video = input_ids[0].tolist(), False, []
        for index, each in enumerate(ids):
            is_step = ids[index - len(end) : index] == end if each == start else is_step
            is_video.append(each == token_id and is_step)
        frames, places = torch.tensor([is_video]), input_ids == token_id
        pictures = places & ~frames
        if pictures.any() and frames.any():
            places = frames if next(order) else pictures
        assert int(places.sum()) * inputs_embeds.shape[-1] == features.numel()
        return places[..., None].expand_as(inputs_embeds)

    model.get_placeholder_mask = get_placeholder_mask
