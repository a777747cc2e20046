"""Vision-language models of published sizes with random weights, made in memory: nothing is downloaded or written.

A model is what its config.json and preprocessor_config.json say, a tokenizer that has its special tokens alone, and
tensors that are made when they are read. Decoders have one or a few layers where only a tower is asked for.
"""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from seesay.vl.registry import find_family

Json = dict[str, Any]

SPECIAL_TOKENS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<image>", "<video>", "<img>", "</img>", "<IMG_CONTEXT>", "[IMG]", "[IMG_BREAK]", "[IMG_END]",
    "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<fake_token_around_image>", "<global-img>", "</image>",
    "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>", "<|image|>",
)  # fmt: skip
NAMED_TOKENS = {
    "eos_token": "<|im_end|>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
IDS = {token: len(_LETTERS) + index for index, token in enumerate(SPECIAL_TOKENS)}
VOCAB_SIZE = 512
"""Of decoders that are not measured."""


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
    "mistral_12b": _text(5120, 32, 8, 14336, 40, 131072, model_type="mistral", head_dim=128, sliding_window=None),
    "mistral_24b": _text(5120, 32, 8, 32768, 40, 131072, model_type="mistral", head_dim=128, sliding_window=None),
    "gemma3": _text(2560, 8, 4, 10240, 34, 262208, model_type="gemma3_text", head_dim=256, sliding_window=1024),
    "smollm2": _text(2048, 32, 32, 8192, 24, 49280, model_type="llama"),
    "phi3": _text(
        3072, 32, 32, 8192, 32, 32064, model_type="phi3", sliding_window=262144, pad_token_id=0,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    ),
}  # fmt: skip
"""Text configurations of the published models, most of 7 to 8 billion parameters."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published model.

    config: config.json but for the text's. decoder: a key of `DECODERS`. image_processor: preprocessor_config.json.
    processor: processor_config.json. picture: (height, width) of a picture for its tower, where that has small sizes.
    text_key: the field of config.json that has the text's configuration; None where it lies beside the other fields.
    reference: the classes of the plain model and processor, `module:Model:Pictures` of `tests/reference`, where
    Transformers has neither. in_transformers: the same model in Transformers' layout, where that is another.
    options: arguments with which Transformers' processor calls its image processor, or those of the plain one.
    """

    config: Json
    decoder: str
    image_processor: Json
    processor: Json = field(default_factory=dict)
    picture: tuple[int, int] | None = None
    text_key: str | None = "text_config"
    reference: str | None = None
    in_transformers: Published | None = None
    options: Json = field(default_factory=dict)

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
        inner = text if self.text_key is None else {self.text_key: text}
        return copy.deepcopy({**inner, **self.config})

    def load_reference(self) -> tuple[Any, Any]:
        """Return the classes of the plain model and of its pictures."""
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        try:
            module, model, pictures = str(self.reference).split(":")
            found = importlib.import_module(f"reference.{module}")
            return getattr(found, model), getattr(found, pictures)
        finally:
            sys.path.pop()


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
        eos_token_id=IDS["<|im_end|>"],
        chat_template=None,
        named_tokens=NAMED_TOKENS,
        has_byte_level_decoder=False,
    )
    return Tokenizer(facts, lambda: None)


def make_family(checkpoint: Checkpoint) -> Family:
    return find_family(checkpoint.architecture, checkpoint.tower_type)(checkpoint, make_tokenizer())


def make_files(model: Published) -> dict[str, Json]:
    """Return the JSON files of the processor."""
    return {"preprocessor_config.json": model.image_processor, "processor_config.json": model.processor}


def open_family(model: Published) -> Family:
    """Return the family of a model without weights, for what happens before the tower."""
    checkpoint = MadeCheckpoint.make(model.make_config(num_layers=4), make_files(model), {})
    return make_family(checkpoint)


def build_theirs(model: Published, device: torch.device, dtype: torch.dtype, *, num_layers: int | None = None) -> Any:
    """Return Transformers' model, or the plain one, of a configuration with random weights; on the meta device without
    any. num_layers: see `Published.make_config`."""
    model = model.in_transformers or model
    config = model.make_config(num_layers=num_layers)
    with device:
        if model.reference is not None:
            made = model.load_reference()[0](config).to(dtype)
        else:
            from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

            read = CONFIG_MAPPING[config["model_type"]].from_dict(config)
            made = AutoModelForImageTextToText.from_config(read, dtype=dtype)
    made = made.eval().requires_grad_(False)
    for parameter in made.parameters():  # some matrices begin as zeros, with which all rows are equal
        if parameter.dim() > 1 and not parameter.is_meta and not parameter.any():
            parameter.normal_(std=1 / math.sqrt(parameter.shape[-1]))
    return made


def make_processor(model: Published) -> Callable[[Sequence[Any]], Json]:
    """Return what makes the tower's input of PIL pictures: Transformers' image processor, as its backend is by default,
    or the plain one."""
    settings = dict((model.in_transformers or model).image_processor)
    if model.reference is not None:
        pictures = model.load_reference()[1](settings, **model.options)
        return lambda images: dict(pictures(images))
    import transformers

    processor = getattr(transformers, settings.pop("image_processor_type"))(**settings)
    return lambda images: dict(processor(images=list(images), return_tensors="pt", **model.options))
