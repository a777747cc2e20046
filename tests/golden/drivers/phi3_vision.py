"""Phi-3-vision. With Transformers 4.40 and huggingface_hub 0.24.

The published tower has the sizes of CLIP ViT-L/14 at 336 pixels, as constants: its layers are made fewer and narrower
by those of `vision_config` in the folder, which seesay reads. Its width is as published: the code asserts it.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from golden.cases import (
    ALPHA,
    ALPHA_DROPPED,
    BEYOND_4096,
    FIVE_SIZES,
    GROWS_BEYOND_4096,
    NUM_TOKENS,
    PICTURE_IN_SECOND_TURN,
    TEXT,
    THIN,
    TWO_PICTURES,
    TWO_TURNS,
    Case,
)
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows
from transformers import PreTrainedTokenizerFast

MODEL = "microsoft/Phi-3-vision-128k-instruct"
TRANSFORMERS = "4.40.0"
FILES = (
    "configuration_phi3_v.py",
    "image_embedding_phi3_v.py",
    "image_processing_phi3_v.py",
    "modeling_phi3_v.py",
    "processing_phi3_v.py",
)
CASES = (
    TEXT,
    *FIVE_SIZES,
    *THIN[1::2],
    ALPHA,
    ALPHA_DROPPED,
    TWO_PICTURES,
    TWO_TURNS,
    PICTURE_IN_SECOND_TURN,
    BEYOND_4096,
    GROWS_BEYOND_4096,
)


class Asked:
    """The published model with its processor, and the rows that it made of the last pictures."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.rows: torch.Tensor | None = None
        tower = model.model.vision_embed_tokens
        transform = tower.hd_feature_transform

        def noting(*args: Any) -> torch.Tensor:
            self.rows = transform(*args)
            return self.rows

        tower.hd_feature_transform = noting


def load(code: Path, folder: Path) -> tuple[Asked, dict[str, tuple[int, ...]]]:
    """Return the published model with the sizes of a folder, and the shapes of its tensors."""
    published = types.ModuleType("published")
    published.__path__ = [str(code)]
    sys.modules["published"] = published

    def find(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"published.{module}"), name)

    config = find("configuration_phi3_v", "Phi3VConfig").from_pretrained(folder)
    config._attn_implementation = "eager"
    tower = find("image_embedding_phi3_v", "CLIP_VIT_LARGE_PATCH14_336_CONFIG")
    tower.update(json.loads((folder / "config.json").read_text())["vision_config"])
    model = find("modeling_phi3_v", "Phi3VForCausalLM")(config).eval().float()
    tensors = fill_model(model)
    processor = find("processing_phi3_v", "Phi3VProcessor")(
        find("image_processing_phi3_v", "Phi3VImageProcessor").from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder, model_input_names=["input_ids", "attention_mask"]),
    )
    return Asked(model, processor), tensors


def run(asked: Asked, case: Case) -> Record:
    """Return what the published code makes of a conversation, written as on the model card."""
    messages, number = list[dict[str, str]](), 0
    for turn in case.turns:
        numbers = range(number + 1, number + 1 + len(turn.pictures))
        number += len(turn.pictures)
        marks = "".join(f"<|image_{each}|>\n" for each in numbers)
        messages.append({"role": "user", "content": marks + turn.question})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    tokenizer = asked.processor.tokenizer
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pictures = [picture.draw() for picture in case.pictures]
    inputs = asked.processor(prompt, pictures or None, return_tensors="pt")
    ids = inputs["input_ids"][0].clone()
    counts = [int((ids == -number).sum()) for number in range(1, len(pictures) + 1)]
    ids[ids < 0] = EMBEDDING
    end = tokenizer.eos_token_id
    made = asked.model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=end)
    tokens = made[0, len(ids) :].tolist()
    rows, pixels = [], []
    if pictures:
        assert asked.rows is not None
        rows = [note_rows(each) for each in torch.split(asked.rows, counts)]
        tiles = [1 + (height // 336) * (width // 336) for height, width in inputs["image_sizes"].tolist()]
        pixels = [each[:count] for each, count in zip(inputs["pixel_values"], tiles)]
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    return Record(ids=ids.tolist(), pixels=note_pixels(pixels), rows=rows, tokens=tokens)
