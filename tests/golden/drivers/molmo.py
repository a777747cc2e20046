"""Molmo 7B-D (arXiv 2409.17146): sizes of the tower, which the published code has as constants, are those of
`vision_config`. The formatter is of github.com/allenai/molmo, olmo/data/data_formatter.py."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from golden.cases import ALPHA_DROPPED, NUM_TOKENS, STANDARD, Case
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "allenai/Molmo-7B-D-0924"
FILES = (
    "config_molmo.py",
    "modeling_molmo.py",
    "image_preprocessing_molmo.py",
    "preprocessing_molmo.py",
    "data_formatter.py",
)
TRANSFORMERS = "4.43.3"
CASES = (*STANDARD, ALPHA_DROPPED)
_FORMATTER = {"prompt_templates": "none", "message_format": "role", "system_prompt": "none"}


@dataclass
class Molmo:
    """The published model, processor and formatter."""

    model: Any
    processor: Any
    formatter: Any


def load(code: Path, folder: Path) -> tuple[Molmo, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, and the shapes of its tensors."""
    from transformers import PreTrainedTokenizerFast

    sys.path.insert(0, str(code.parent))
    modeling, images, texts, formatter = (
        importlib.import_module(f"{code.name}.{name}")
        for name in ("modeling_molmo", "image_preprocessing_molmo", "preprocessing_molmo", "data_formatter")
    )
    config = json.loads((folder / "config.json").read_text())
    _shrink(modeling, config["vision_config"])
    model = modeling.MolmoForCausalLM(modeling.MolmoConfig(**config)).eval()
    shapes = fill_model(model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    processor = texts.MolmoProcessor.__new__(texts.MolmoProcessor)
    processor.tokenizer, processor.image_processor = tokenizer, images.MolmoImageProcessor(**settings)
    processor._special_tokens = None
    processor.settings = {
        name: settings[name] for name in texts.MolmoProcessorKwargs._defaults["images_kwargs"] if name in settings
    }
    return Molmo(model, processor, formatter.DataFormatter(always_start_with_space=True, **_FORMATTER)), shapes


def _shrink(modeling: Any, sizes: dict[str, int]) -> None:
    """Give the tower of the published code other sizes."""
    published = modeling.VisionBackboneConfig
    side, size, heads = sizes["image_size"], sizes["hidden_size"], sizes["num_attention_heads"]
    small = {
        "image_default_input_size": (side, side),
        "image_patch_size": sizes["patch_size"],
        "image_pos_patch_size": sizes["patch_size"],
        "image_emb_dim": size,
        "image_num_heads": heads,
        "image_num_key_value_heads": heads,
        "image_num_layers": sizes["num_hidden_layers"],
        "image_head_dim": size // heads,
        "image_mlp_dim": sizes["intermediate_size"],
        "image_num_pos": (side // sizes["patch_size"]) ** 2 + 1,
    }
    modeling.VisionBackboneConfig = lambda **given: published(**{**given, **small})


def run(molmo: Molmo, case: Case) -> Record:
    """Return what the published code makes of a case. Answers end with the token that ends texts."""
    tokenizer, processor = molmo.processor.tokenizer, molmo.processor
    texts = [text for turn in case.turns for text in (turn.question, turn.answer) if text is not None]
    tokens: list[int] = []
    for index, message in enumerate(molmo.formatter.format_messages(texts)):
        tokens += tokenizer.encode(message, add_special_tokens=False)
        tokens += [tokenizer.eos_token_id] if index % 2 else []
    if len(texts) == 1:
        assert tokens == type(processor).get_tokens_input(processor, texts[0], "role", True)
    processor.get_tokens_input = lambda *_: tokens
    pictures = [picture.draw().convert("RGB") for picture in case.pictures]
    if pictures:
        made = processor.process(text="", images=pictures, images_kwargs=dict(processor.settings))
    else:  # the published processor puts this token before every prompt, and fails without a picture
        made = {"input_ids": torch.tensor([tokenizer.eos_token_id, *tokens])}
    batch = {name: value[None] for name, value in made.items()}
    row_token = processor.special_token_ids["<im_patch>"]
    ids = [EMBEDDING if token == row_token else token for token in batch["input_ids"][0].tolist()]
    rows = []
    if pictures:
        features, _ = molmo.model.model.vision_backbone(batch["images"], batch["image_masks"])
        added = molmo.model.model.transformer.wte.new_embedding[row_token - molmo.model.config.embedding_size]
        rows = [note_rows(each + added) for each in _sort(molmo, case, features[0], batch["image_input_idx"][0])]
    pixels = note_pixels([batch["images"]] if pictures else [])
    return Record(ids=ids, pixels=pixels, rows=rows, tokens=_answer(molmo, batch))


def _sort(molmo: Molmo, case: Case, features: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows of each picture in the order of their places in the prompt."""
    counts = [
        len(molmo.processor.process(text="", images=[each.draw().convert("RGB")],
                                    images_kwargs=dict(molmo.processor.settings))["images"])
        for each in case.pictures
    ]  # fmt: skip
    found = []
    for rows, own in zip(torch.split(features, counts), torch.split(places, counts)):
        rows, own = rows.flatten(0, 1), own.flatten()
        found.append(rows[own >= 0][own[own >= 0].argsort()])
    return found


def _answer(molmo: Molmo, batch: dict[str, torch.Tensor]) -> list[int]:
    ids, answer = batch["input_ids"], []
    for _ in range(NUM_TOKENS):
        output = molmo.model(**{**batch, "input_ids": ids}, use_cache=False)
        token = int(output.logits[0, -1].argmax())
        if token == molmo.processor.tokenizer.eos_token_id:
            break
        answer.append(token)
        ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
    return answer
