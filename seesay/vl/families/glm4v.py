"""GLM-4.1V, GLM-4.5V, GLM-4.6V and its Flash: a tower with learned and rotary positions before a GLM-4-0414 or a
mixture of experts; each time step of a video is a picture with its time behind it (arXiv 2507.01006, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Modality
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.bases.pixels import find_processor_class, read_positive, read_processor
from seesay.vl.bases.timed_videos import ClipSettings, Piece, TimedVideoFamily
from seesay.vl.nearest_models import describe_nearest
from seesay.vl.published import Published
from seesay.vl.weight_map import GLM4_DECODER

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_OTHER_LIMITS = ("min_pixels", "max_pixels", "cap_pixels_per_frame")
"""Settings of Qwen's processors, which these do not have."""


class Glm4V(TimedVideoFamily):
    """The time of a step of a video is that of its first frame: in whole seconds, or with tenths where the checkpoint's
    processor is that of GLM-4.6V."""

    architectures: ClassVar[tuple[str, ...]] = ("Glm4vForConditionalGeneration", "Glm46VForConditionalGeneration")
    published = (
        Published(
            decoder="glm4v_text",
            names=("zai-org/GLM-4.1V-9B-Thinking", "zai-org/GLM-4.1V-9B-Base", "zai-org/GLM-4.6V-Flash"),
            architecture="Glm4vForConditionalGeneration",
        ),
    )
    default_sizes = {
        Modality.IMAGE: {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000},
        Modality.VIDEO: {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000},
    }
    weights = replace(
        DynamicResolutionFamily.weights,
        decoder_patterns=GLM4_DECODER,
        tower_patterns=(
            (r"^merger\.", "merger.projector."),
            (r"\.post_projection_norm\.", ".proj_norm."),
            (r"^downsample\.", "merger.patch_merger.merging_layer."),
            (r"^post_layernorm\.", "merger.norm."),
            (r"^post_conv_layernorm\.", "patch_norm."),
            (r"^embeddings\.position_embedding\.", "pos_embed."),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        if (kind := checkpoint.model_config.model_type) == "glmga":
            raise CheckpointError(
                f"{checkpoint.path}: models of type {kind!r} take other sizes of pictures and other frames of videos "
                f"than GLM-4.6V, whose architecture they have{describe_nearest(kind)}"
            )
        processor = find_processor_class(checkpoint) or checkpoint.architecture
        self._spells_tenths = processor.startswith("Glm46V")
        if not self._spells_tenths:  # which has no such settings
            settings = read_processor(checkpoint, "video_processor")
            rate = read_positive(settings, "fps", 2, checkpoint.path)
            most = int(rate * read_positive(settings, "max_duration", 300, checkpoint.path))
            self.default_sampling = {"fps": rate, "min_frames": 2, "max_frames": max(most, 2)}

    def read_item_tokens(self, modality: Modality) -> tuple[int, int, int]:
        config, kind = self.checkpoint.model_config, modality.value
        placeholder = config.image_token_id if modality is Modality.IMAGE else config.video_token_id
        return self.token_id(f"<|begin_of_{kind}|>"), placeholder, self.token_id(f"<|end_of_{kind}|>")

    def read_settings(self, modality: Modality, settings: Mapping[str, object]) -> ClipSettings:
        return ClipSettings.read(
            {name: value for name, value in settings.items() if name not in _OTHER_LIMITS},
            self.checkpoint.path,
            processor=f"Glm4v{modality.value.capitalize()}Processor",
            default_size=self.default_sizes[modality],
        )

    @property
    def row_token(self) -> int:
        return self.item_tokens[Modality.IMAGE][1]

    def find_times(self, times_s: Sequence[float], num_steps: int) -> tuple[float, ...]:
        found = times_s[::2][:num_steps]
        return (*found, *[found[-1]] * (num_steps - len(found)))

    def write_step(self, time_s: float, rows: Piece) -> tuple[Piece, ...]:
        start, _, end = self.item_tokens[Modality.IMAGE]
        spelled = f"{time_s:.1f} seconds" if self._spells_tenths else str(int(time_s))
        return ([start], False), rows, ([end, *self.tokenizer.encode(spelled)], False)

    def tower_config(self) -> PackedVisionConfig:
        from seesay.encoders.towers.packed_layout import DownsamplerConfig

        vision = self.checkpoint.model_config.vision_config
        if (side := vision.image_size // vision.patch_size) < 1:
            raise CheckpointError(
                f"vision_config: image_size={vision.image_size} is less than patch_size={vision.patch_size}"
            )
        return self.make_tower_config(
            hidden_size=vision.hidden_size,
            intermediate_size=vision.out_hidden_size,  # `intermediate_size` is the projector's
            out_hidden_size=vision.out_hidden_size,
            uses_rms_norm=True,
            norm_eps=vision.rms_norm_eps,
            patch_bias=True,
            norms_patches=True,
            position_side=side,
            position_blending="bicubic",
            has_biases=False,
            has_qkv_bias=bool(vision.attention_bias),
            projector=DownsamplerConfig(inner_size=vision.intermediate_size, activation=vision.hidden_act),
        )


class Glm4VMoe(Glm4V):
    """The same before a mixture of experts, whose norms are named as Llama's."""

    architectures = ("Glm4vMoeForConditionalGeneration",)
    published = (
        Published(
            decoder="glm4v_moe_text",
            names=("zai-org/GLM-4.5V", "zai-org/GLM-4.6V"),
            architecture="Glm4vMoeForConditionalGeneration",
        ),
    )
    weights = replace(Glm4V.weights, decoder_patterns=())
