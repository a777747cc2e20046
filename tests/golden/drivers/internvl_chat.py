"""How an InternVLChatModel of github.com/OpenGVLab/InternVL is loaded and asked: by its own `chat`, with pictures cut
as its data set and README do it. FOLDER is `internvl_chat` there; `internvl_chat_gpt_oss` for InternVL 3.5."""

from __future__ import annotations

import ast
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import torch
from golden import record
from golden.cases import NUM_TOKENS, STANDARD, VIDEO, Case
from golden.formula import fill_model
from PIL import Image

CASES = (*STANDARD, VIDEO)
_MODEL = "internvl/model/internvl_chat"
_CUTTING = "internvl/train/dataset.py"
_FUNCTIONS = ("find_closest_aspect_ratio", "dynamic_preprocess", "build_transform")


def list_files(*others: str) -> tuple[str, ...]:
    """Return the published files that run. others: the conversations, and a decoder that Transformers does not have."""
    own = ("configuration_intern_vit", "configuration_internvl_chat", "modeling_intern_vit", "modeling_internvl_chat")
    return *(f"{_MODEL}/{name}.py" for name in own), _CUTTING, *others


class Loaded(NamedTuple):
    """A model, its tokenizer, and the published functions that cut pictures."""

    model: Any
    tokenizer: Any
    cutting: dict[str, Any]


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    from transformers import AutoTokenizer

    sys.path.insert(0, str(code))
    peft = types.ModuleType("peft")  # imported, and used for training alone
    peft.LoraConfig = peft.get_peft_model = None  # type: ignore[attr-defined]
    sys.modules.setdefault("peft", peft)
    classes = importlib.import_module("internvl.model.internvl_chat.modeling_internvl_chat")
    config = classes.InternVLChatConfig(**json.loads((folder / "config.json").read_text()))
    model = classes.InternVLChatModel(config, use_flash_attn=False).float().eval()
    tensors = fill_model(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Loaded(model, tokenizer, _read_functions(code / _CUTTING)), tensors


def _read_functions(path: Path) -> dict[str, Any]:
    """Return the functions of a file that imports what only training needs."""
    tree = ast.parse(path.read_text())
    kept: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS]
    from torchvision import transforms
    from torchvision.transforms.functional import InterpolationMode

    constants = {"IMAGENET_MEAN": (0.485, 0.456, 0.406), "IMAGENET_STD": (0.229, 0.224, 0.225)}
    names: dict[str, Any] = {"T": transforms, "InterpolationMode": InterpolationMode, **constants}
    exec(compile(ast.Module(kept, []), str(path), "exec"), names)
    return names


def _cut(loaded: Loaded, picture: Image.Image, max_tiles: int) -> torch.Tensor:
    """Return the tiles of a picture, as the README's `load_image` does it."""
    config = loaded.model.config
    side = config.force_image_size
    cut = loaded.cutting["dynamic_preprocess"]
    tiles = cut(picture.convert("RGB"), image_size=side, use_thumbnail=config.use_thumbnail, max_num=max_tiles)
    transform = loaded.cutting["build_transform"](is_train=False, input_size=side)
    return torch.stack([transform(tile) for tile in tiles])


def run(loaded: Loaded, case: Case) -> record.Record:
    """Ask as the README does: `<image>` for each picture, `Frame1: <image>` for a frame, which is one tile."""
    tiles, turns = [], []
    for turn in case.turns:
        most = 1 if turn.is_video else loaded.model.config.max_dynamic_patch
        tiles += [_cut(loaded, picture.draw(), most) for picture in turn.pictures]
        labels = [f"Frame{number}: " if turn.is_video else "" for number in range(1, len(turn.pictures) + 1)]
        turns.append(("".join(f"{label}<image>\n" for label in labels) + turn.question, turn.answer))
    pixels = torch.cat(tiles) if tiles else None
    asked: dict[str, Any] = {}
    generate = type(loaded.model).generate

    def keep(**given: Any) -> torch.Tensor:
        made: torch.Tensor = generate(loaded.model, **given)
        asked.update(given, made=made)
        return made

    loaded.model.generate = keep
    settings = {"max_new_tokens": NUM_TOKENS, "do_sample": False}
    history: list[Any] | None = turns[:-1] or None
    counts = [len(each) for each in tiles]
    loaded.model.chat(loaded.tokenizer, pixels, turns[-1][0], settings, history=history, num_patches_list=counts)
    return _note(loaded, asked, tiles, is_video=any(turn.is_video for turn in case.turns))


def _note(loaded: Loaded, asked: dict[str, Any], tiles: list[torch.Tensor], *, is_video: bool) -> record.Record:
    """Return the record of a call of `generate`."""
    ids = asked["input_ids"][0]
    ids = torch.where(ids == loaded.model.img_context_token_id, record.EMBEDDING, ids)
    items = [torch.cat(tiles)] if is_video else tiles
    rows = [record.note_rows(loaded.model.extract_feature(item).flatten(0, 1)) for item in items]
    tokens = asked["made"][0].tolist()
    if tokens[0] == loaded.model.language_model.config.bos_token_id:  # Transformers 4.37 starts from it, for embeddings
        del tokens[0]
    if tokens[-1] == asked["eos_token_id"]:
        del tokens[-1]
    return record.Record(ids=ids.tolist(), pixels=record.note_pixels(tiles), rows=rows, tokens=tokens)
