"""Vision-language models of published sizes with random weights, made in memory: nothing is downloaded or written.

A model is what its config.json and preprocessor_config.json say, a tokenizer that has its special tokens alone, and
tensors that are made when they are read. Decoders have one or a few layers where only a tower is asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.tensors import StoredTensor, TensorSlices
from seesay.processors.text.tokenizer import Tokenizer
from seesay.processors.text.tokenizer_facts import TokenizerFacts
from seesay.vl.family import Family
from seesay.vl.registry import find_family, list_families

Json = dict[str, Any]

SPECIAL_TOKENS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<image>", "<video>", "<img>", "</img>", "<IMG_CONTEXT>",
)  # fmt: skip
NAMED_TOKENS = {
    "eos_token": "<|im_end|>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_IDS = {token: len(_LETTERS) + index for index, token in enumerate(SPECIAL_TOKENS)}
VOCAB_SIZE = 512
"""Of decoders that are not measured."""

_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3}
_QWEN_IDS = {
    "image_token_id": _IDS["<|image_pad|>"],
    "video_token_id": _IDS["<|video_pad|>"],
    "vision_start_token_id": _IDS["<|vision_start|>"],
    "vision_end_token_id": _IDS["<|vision_end|>"],
}
_CLIP_336 = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768,
}  # fmt: skip
_SIGLIP_384 = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_NEXT_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_ONEVISION_RESOLUTIONS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


def _text(hidden: int, heads: int, kv_heads: int, inner: int, layers: int, vocab: int, **more: Any) -> Json:
    return {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocab,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _mrope(*sections: int, **more: Any) -> Json:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections), **more}}


DECODERS: Mapping[str, Json] = {
    "qwen2_5_vl": _text(3584, 28, 4, 18944, 28, 152064, **_mrope(16, 24, 24)),
    "qwen2_vl": _text(3584, 28, 4, 18944, 28, 152064, **_mrope(16, 24, 24)),
    "qwen3_vl": _text(4096, 32, 8, 12288, 36, 151936, head_dim=128, **_mrope(24, 20, 20, mrope_interleaved=True)),
    "llama": _text(4096, 32, 32, 11008, 32, 32064, model_type="llama"),
    "llama3": _text(4096, 32, 8, 14336, 32, 128256, model_type="llama"),
    "mistral": _text(4096, 32, 8, 14336, 32, 32064, model_type="mistral", sliding_window=None),
    "qwen2": _text(3584, 28, 4, 18944, 28, 152128, model_type="qwen2"),
    "qwen3": _text(4096, 32, 8, 12288, 36, 151936, model_type="qwen3", head_dim=128),
}
"""Text configurations of the published models of 7 to 8 billion parameters."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published model. config: config.json but for its text_config. decoder: a key of `DECODERS`. image_processor:
    preprocessor_config.json. picture: (height, width) of a picture for its tower, where that has small sizes."""

    config: Json
    decoder: str
    image_processor: Json
    picture: tuple[int, int] | None = None

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    def with_decoder(self, decoder: str) -> Published:
        """Return the model with another decoder inside."""
        return replace(self, decoder=decoder)

    def make_config(self, *, num_layers: int | None = None) -> Json:
        """Return config.json; with `num_layers`, with so many layers and few tokens in the decoder."""
        text = dict(DECODERS[self.decoder])
        if num_layers is not None:
            text |= {"num_hidden_layers": num_layers, "vocab_size": VOCAB_SIZE, "intermediate_size": 256}
        return copy.deepcopy({**self.config, "text_config": text})


def _qwen(architecture: str, model_type: str, decoder: str, vision: Json, processor: Json) -> Published:
    config = {"architectures": [architecture], "model_type": model_type, "vision_config": vision, **_QWEN_IDS}
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 2, "merge_size": 2, **processor}
    return Published(config=config, decoder=decoder, image_processor=settings)


_QWEN_SIZE = {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 12845056}, **_CLIP}

MODELS: Mapping[str, Published] = {
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        "qwen2_5_vl",
        {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
            "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
        },
        _QWEN_SIZE,
    ),
    "qwen2_vl": _qwen(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        "qwen2_vl",
        {
            "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
            "temporal_patch_size": 2, "spatial_merge_size": 2,
        },
        _QWEN_SIZE,
    ),
    "qwen3_vl": _qwen(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        "qwen3_vl",
        {
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **_HALVES},
    ),
    "llava": Published(
        config={
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": _CLIP_336,
            "image_token_index": _IDS["<image>"], "image_seq_length": 576, "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        decoder="llama",
        image_processor={
            "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336}, **_CLIP,
        },
    ),
    "llava_next": Published(
        config={
            "architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next",
            "vision_config": _CLIP_336, "image_token_index": _IDS["<image>"], "image_seq_length": 576,
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
            "image_grid_pinpoints": _NEXT_RESOLUTIONS,
        },
        decoder="mistral",
        image_processor={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336}, "image_grid_pinpoints": _NEXT_RESOLUTIONS, **_CLIP,
        },
    ),
    "llava_onevision": Published(
        config={
            "architectures": ["LlavaOnevisionForConditionalGeneration"], "model_type": "llava_onevision",
            "vision_config": _SIGLIP_384, "image_token_index": _IDS["<image>"], "video_token_index": _IDS["<video>"],
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9", "image_grid_pinpoints": _ONEVISION_RESOLUTIONS,
        },
        decoder="qwen2",
        image_processor={
            "image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 384, "width": 384},
            "image_grid_pinpoints": _ONEVISION_RESOLUTIONS, **_HALVES,
        },
    ),
    "internvl": Published(
        config={
            "architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl",
            "vision_config": {
                "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                "attention_bias": True, "image_size": [448, 448], "patch_size": [14, 14],
            },
            "image_token_id": _IDS["<IMG_CONTEXT>"], "image_seq_length": 256, "downsample_ratio": 0.5,
        },
        decoder="qwen2",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 448, "width": 448},
            "crop_to_patches": True, "min_patches": 1, "max_patches": 12, **_IMAGENET,
        },
    ),
}  # fmt: skip
"""By the names of their families."""


@dataclass(frozen=True, kw_only=True)
class MadeCheckpoint(Checkpoint):
    """A model folder that is not there. given: tensors by their names; others are drawn when they are read."""

    files: Mapping[str, Json]
    given: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def make(
        cls,
        config: Json,
        files: Mapping[str, Json],
        shapes: Mapping[str, tuple[int, ...]],
        given: Mapping[str, torch.Tensor] | None = None,
    ) -> MadeCheckpoint:
        path = Path("made")
        stored = {name: StoredTensor(file=path, dtype="BF16", shape=shape) for name, shape in shapes.items()}
        return cls(
            path=path,
            config=config,
            generation_config={},
            stored=stored,
            quantization=None,
            revision_digest=bytes(32),
            files=files,
            given=given or {},
        )

    def read_json(self, name: str) -> Json | None:
        return self.files.get(name)

    def slices(self, names: Iterable[str], device: torch.device | str) -> Iterator[tuple[str, TensorSlices]]:
        for name in names:
            shape = self.stored[name].shape
            yield name, TensorSlices(_Reader(self.given.get(name), shape, device), name, shape)


class _Reader:
    """One tensor, read as `safetensors.safe_open` reads those of a file."""

    def __init__(self, tensor: torch.Tensor | None, shape: tuple[int, ...], device: torch.device | str) -> None:
        self._tensor, self._shape, self._device = tensor, shape, device

    def get_tensor(self, name: str) -> torch.Tensor:
        if self._tensor is not None:
            return self._tensor
        return draw(name, self._shape, self._device)

    get_slice = get_tensor


def draw(name: str, shape: tuple[int, ...], device: torch.device | str) -> torch.Tensor:
    """Return random numbers with which a model of any depth computes finite ones."""
    if len(shape) == 1 and name.endswith("weight"):
        return torch.ones(shape, dtype=torch.bfloat16, device=device)
    spread = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.02
    return torch.randn(shape, dtype=torch.bfloat16, device=device) * spread


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer of letters and `SPECIAL_TOKENS`."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: i for i, letter in enumerate(_LETTERS)}, merges=[])
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    facts = TokenizerFacts(
        backend=backend.to_str(),
        bos_token_id=None,
        eos_token_id=_IDS["<|im_end|>"],
        chat_template=None,
        named_tokens=NAMED_TOKENS,
        has_byte_level_decoder=False,
    )
    return Tokenizer(facts, lambda: None)


def list_others() -> list[str]:
    """Return the architectures with pictures of which no model is here."""
    here = {model.architecture for model in MODELS.values()}
    return [name for name, family in list_families().items() if family.modalities and name not in here]


def make_family(model: Published, checkpoint: Checkpoint) -> Family:
    return find_family(model.architecture)(checkpoint, make_tokenizer())


def make_files(model: Published) -> dict[str, Json]:
    """Return the JSON files of the processor."""
    return {"preprocessor_config.json": model.image_processor}


def open_family(model: Published) -> Family:
    """Return the family of a model without weights, for what happens before the tower."""
    checkpoint = MadeCheckpoint.make(model.make_config(num_layers=4), make_files(model), {})
    return make_family(model, checkpoint)


def build_transformers(config: Json, device: torch.device, dtype: torch.dtype) -> Any:
    """Return Transformers' model of a configuration with random weights; on the meta device without any."""
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    with device:
        return AutoModelForImageTextToText.from_config(made, dtype=dtype).eval().requires_grad_(False)
