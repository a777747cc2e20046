"""How MiniCPM-V's published chat is asked: what its versions have in common. No driver itself.

`chat` writes the prompt, calls the processor and the model; what passes between them is noted on its way.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing
from pathlib import Path
from typing import Any

import torch
from golden.cases import (
    ALPHA,
    ALPHA_DROPPED,
    FIVE_SIZES,
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

CASES = (TEXT, *FIVE_SIZES, *THIN, ALPHA, ALPHA_DROPPED, TWO_PICTURES, TWO_TURNS, PICTURE_IN_SECOND_TURN)
FILES = (
    "configuration_minicpm.py",
    "image_processing_minicpmv.py",
    "modeling_minicpmv.py",
    "processing_minicpmv.py",
    "resampler.py",
    "tokenization_minicpmv_fast.py",
)


class Asked:
    """The published model with its processor, and what passed through them while they were asked."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.inputs: Any = None
        self.rows: list[Any] = []
        self.tokens: list[int] = []
        self.stops: list[int] = []
        model.get_vllm_embedding = self._note_rows(model.get_vllm_embedding)
        model.llm.generate = self._note_tokens(model.llm.generate)

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> None:
        """Have the published chat answer greedily."""
        greedy = {"sampling": False, "num_beams": 1, "repetition_penalty": 1.0, "max_new_tokens": NUM_TOKENS}
        self.model.chat(
            image=None, msgs=messages, tokenizer=self.processor.tokenizer, processor=self, **greedy, **options
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Stand for the processor in `chat`."""
        made = self.processor(*args, **kwargs)
        self.inputs = dict(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def _note_rows(self, call: Any) -> Any:
        def noting(data: Any) -> Any:
            embeddings, self.rows = call(data)
            return embeddings, self.rows

        return noting

    def _note_tokens(self, call: Any) -> Any:
        def noting(**kwargs: Any) -> Any:
            made = call(**kwargs)
            self.tokens, self.stops = made[0].tolist(), kwargs["eos_token_id"]
            return made

        return noting


def load(code: Path, folder: Path) -> tuple[Asked, dict[str, tuple[int, ...]]]:
    """Return the published model with the sizes of a folder, asked through its chat, and the shapes of its tensors."""
    for name in ("List", "Optional", "Tuple", "Union"):  # the published files take them from torch of their time
        setattr(torch.nn.functional, name, getattr(typing, name))
    published = types.ModuleType("published")
    published.__path__ = [str(code)]
    sys.modules["published"] = published

    def find(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"published.{module}"), name)

    config = find("configuration_minicpm", "MiniCPMVConfig").from_pretrained(folder)
    model = find("modeling_minicpmv", "MiniCPMV")(config).eval().float()
    tensors = fill_model(model)
    processor = find("processing_minicpmv", "MiniCPMVProcessor")(
        find("image_processing_minicpmv", "MiniCPMVImageProcessor").from_pretrained(folder),
        find("tokenization_minicpmv_fast", "MiniCPMVTokenizerFast").from_pretrained(folder),
    )
    return Asked(model, processor), tensors


def write_messages(case: Case) -> list[dict[str, Any]]:
    """Return the conversation as the published chat takes it: each turn's pictures before its text."""
    messages: list[dict[str, Any]] = []
    for turn in case.turns:
        content = [*(picture.draw() for picture in turn.pictures), turn.question]
        messages.append({"role": "user", "content": content})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": [turn.answer]})
    return messages


def run(asked: Asked, case: Case, *, media_of_slices: list[int] | None = None, **options: Any) -> Record:
    """Return what the published chat made of a conversation. `options` are those of the chat. media_of_slices: how many
    slices, or packs of them, each medium has, where it is not a picture."""
    asked.rows = []
    asked.chat(write_messages(case), **options)
    inputs = asked.inputs
    ids = inputs["input_ids"][0].clone()
    for first, end in inputs["image_bound"][0].tolist():
        ids[first:end] = EMBEDDING
    pixels = [each for of_request in inputs["pixel_values"] for each in of_request]
    slices = asked.rows[0] if len(pixels) else torch.zeros(0)
    counts = media_of_slices or [
        count_slices(asked.processor.image_processor, size, **options) for size in inputs["image_sizes"][0]
    ]
    assert sum(counts) == len(slices)
    rows = [note_rows(each.flatten(0, 1)) for each in torch.split(slices, counts)] if len(slices) else []
    end = next((index for index, token in enumerate(asked.tokens) if token in asked.stops), NUM_TOKENS)
    return Record(ids=ids.tolist(), pixels=note_pixels(pixels), rows=rows, tokens=asked.tokens[:end])


def count_slices(processor: Any, size: tuple[int, int], max_slice_nums: int | None = None, **_: Any) -> int:
    """Return the slices of a picture of (width, height), with the picture as a whole."""
    further = () if processor.version == 2.5 else (max_slice_nums or processor.max_slice_nums,)
    grid = processor.get_sliced_grid(size, *further)
    return 1 if grid is None else 1 + grid[0] * grid[1]
