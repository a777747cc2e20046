"""CogVLM and CogVLM2 (arXiv 2311.03079, 2408.16500): a Llama in which the rows of pictures have weights of their own in
all linear layers of attention and feed-forward (visual experts), behind an EVA-CLIP; and CogVLM2-Video, whose Llama has
none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from seesay.checkpoint import Checkpoint
from seesay.llm.models.spec import MediaRowsSpec
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Crop, Tiles
from seesay.vl.bases.eva_clip import EVA_CLIP_TOWER, EvaClipFamily, name_eva_clip
from seesay.vl.bases.float_pixels import FloatPixelsFamily
from seesay.vl.family import Backbone, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import BARE_DECODER, WeightMap

_MARKERS: Mapping[Modality, str] = {Modality.IMAGE: "<image>", Modality.VIDEO: "<video>"}
"""What stands for media in a prompt. No token spells it: the text behind it is tokenized by itself, as published."""
_MAX_FRAMES = 24


class CogVlm(EvaClipFamily):
    """has_experts: rows of pictures have weights of their own."""

    has_experts: ClassVar[bool] = True
    architectures = ("CogVLMForCausalLM",)
    published = (
        Published(
            decoder="llama",
            names=("THUDM/cogvlm-chat-hf", "THUDM/cogvlm2-llama3-chat-19B", "THUDM/cogvlm2-llama3-chinese-chat-19B"),
        ),
    )
    weights = WeightMap(
        decoder={**{f"model.{name}": name for name in BARE_DECODER}, "lm_head.": "lm_head."},
        tower=name_eva_clip("model.vision."),
        tower_patterns=EVA_CLIP_TOWER,
        decoder_patterns=(
            (r"\.self_attn\.language_expert_query_key_value\.", ".self_attn.qkv_proj."),
            (r"\.self_attn\.language_expert_dense\.", ".self_attn.o_proj."),
            (r"\.self_attn\.vision_expert_query_key_value\.", ".media.self_attn.qkv_proj."),
            (r"\.self_attn\.vision_expert_dense\.", ".media.self_attn.o_proj."),
            (r"\.mlp\.language_mlp\.", ".mlp."),
            (r"\.mlp\.vision_mlp\.", ".media.mlp."),
        ),
    )

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        return self.checkpoint.model_config.image_token_index, _MARKERS[modality]

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """All tokens take rows, the first and the last one learned ones."""
        return make_expansion(([self.image_token] * (self.num_rows + 2), True))

    def backbone(self) -> Backbone:
        """In the published code a row is a picture's where the token behind it takes a row, too: the last learned row
        is computed as text."""
        if not self.has_experts:
            return super().backbone()
        has_bias = self.checkpoint.model_config.has_expert_bias
        return replace(super().backbone(), media_rows=MediaRowsSpec(tokens="all_but_last", qkv_bias=has_bias))


class CogVlmVideo(CogVlm, FloatPixelsFamily):
    """A picture is a video of one frame. Behind the rows of a frame stands the second at which it is shown, as text;
    not in the model that is not made for chats (`template_version` of config.json).

    Published, frames are taken at whole seconds, and their numbers written: the same, but for clips of other rates."""

    architectures = ("CogVLMVideoForCausalLM",)
    published = (
        Published(
            decoder="llama",
            names=(
                "THUDM/cogvlm2-video-llama3-chat",
                "THUDM/cogvlm2-video-llama3-base",
                "THUDM/cogvlm2-llama3-caption",
            ),
        ),
    )
    modalities = (Modality.IMAGE, Modality.VIDEO)
    processor = "CogVLMVideoProcessor"
    library = "torchvision"
    has_experts = False
    antialiases = False

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._markers = dict(_MARKERS)
        self._tells_time = checkpoint.config.get("template_version") != "base"
        self.default_sampling = {"num_frames": _MAX_FRAMES}
        if self._tells_time:
            self.default_sampling = {"fps": 1.0, "min_frames": 1, "max_frames": _MAX_FRAMES}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """The shorter side of a frame becomes that of the tower's pictures, and its middle is cut out."""
        shorter, side = min(size.height, size.width), self.image_size
        height, width = (math.floor(length / shorter * side) for length in (size.height, size.width))
        times_s = size.timestamps_s or range(size.num_frames)
        seconds = tuple(math.floor(time_s + 0.5) for time_s in times_s)
        return {"num_tiles": size.num_frames, "resized": (height, width), "seconds": seconds}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows = ([self.image_token] * (self.num_rows + 2), True)
        pieces = []
        for second in measures["seconds"]:
            pieces += [rows, (self.tokenizer.encode(str(second)) if self._tells_time else [], False)]
        return make_expansion(*pieces)

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        resized, side = measures["resized"], self.image_size
        top, left = (round((length - side) / 2) for length in resized)
        return ((self.pixels.resize(resized), Crop((side, side), (top, left)), Tiles((side, side))),)
