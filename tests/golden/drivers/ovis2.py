"""Ovis2 (AIDC-AI/Ovis2-34B): an AIMv2 whose rows are words of a visual vocabulary, and a Qwen2.

FOLDER holds the files of the model's own folder; `Ovis` there is the published class. Pictures are asked about as the
model's card does: a line `<image>` for each before the question.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from golden.cases import ALPHA_DROPPED, NUM_TOKENS, PICTURE_IN_SECOND_TURN, STANDARD, Case
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "AIDC-AI/Ovis2-34B"
FILES = ("configuration_aimv2.py", "configuration_ovis.py", "modeling_aimv2.py", "modeling_ovis.py")
TRANSFORMERS = "4.46.2"
CASES = (*STANDARD, ALPHA_DROPPED, PICTURE_IN_SECOND_TURN)


def load(code: Path, folder: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the published model, with its tokenizer and processor inside, and the shapes of its tensors."""
    sys.path.insert(0, str(code.resolve().parent))
    published = importlib.import_module(f"{code.name}.modeling_ovis")
    config = published.OvisConfig.from_pretrained(folder)
    config.name_or_path = str(folder)  # the class loads tokenizer and processor from there
    model = published.Ovis(config).float().eval()
    return model, fill_model(model)


def run(model: Any, case: Case) -> Record:
    """Return what the published `preprocess_inputs` and `generate` make of a case."""
    conversations: list[dict[str, str]] = []
    for turn in case.turns:
        conversations.append({"from": "human", "value": "<image>\n" * len(turn.pictures) + turn.question})
        if turn.answer is not None:
            conversations.append({"from": "gpt", "value": turn.answer})
    images = [picture.draw() for picture in case.pictures]
    _, ids, pixels = model.preprocess_inputs(conversations, images)
    inputs = {"pixel_values": [pixels], "attention_mask": torch.ones_like(ids, dtype=torch.bool)[None]}
    greedy = {"do_sample": False, "top_p": None, "top_k": None, "temperature": None, "repetition_penalty": None}
    ends = model.llm.config.eos_token_id
    made = model.generate(ids[None], max_new_tokens=NUM_TOKENS, eos_token_id=ends, pad_token_id=0, **greedy, **inputs)
    tokens = [token for token in made[0].tolist() if token != ends]
    prompt, rows = _note_prompt(model, ids, inputs)
    return Record(ids=prompt, pixels=note_pixels([] if pixels is None else [pixels]), rows=rows, tokens=tokens)


def _note_prompt(model: Any, ids: torch.Tensor, inputs: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """Return the ids of the prompt, and of each picture what `note_rows` keeps: its embeddings stand from the first
    indicator to the last, those of the indicators among them."""
    _, embeddings, _, _ = model.merge_multimodal(ids[None], inputs["attention_mask"], None, inputs["pixel_values"])
    side = model.visual_tokenizer.backbone.config.image_size // model.visual_tokenizer.backbone.config.patch_size
    num_rows = (side // model.visual_tokenizer.config.hidden_stride) ** 2
    prompt: list[int] = []
    rows, first = [], 0
    for token in ids.tolist():
        if token == -301:
            first = len(prompt)
        prompt.extend([EMBEDDING] * num_rows if token == -300 else [max(token, EMBEDDING)])
        if token == -305:
            rows.append(note_rows(embeddings[0, first : len(prompt)]))
    assert len(prompt) == embeddings.shape[1]
    return prompt, rows
