"""How a LLaVA of github.com/haotian-liu/LLaVA (1.5, 1.6) or github.com/LLaVA-VL/LLaVA-NeXT (OneVision) is loaded and
asked, as their `run_llava.py` and tutorials do it. FOLDER is the repository.

The published towers have one size: here they have that of `vision_config`, a field which published folders lack. Their
code asserts 729 rows of SigLIP: run it with `python -O`.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from golden import record
from golden.cases import NUM_TOKENS, Case
from golden.formula import fill_model

FILES = (
    "llava/constants.py",
    "llava/conversation.py",
    "llava/mm_utils.py",
    "llava/model/llava_arch.py",
    "llava/model/multimodal_encoder/builder.py",
    "llava/model/multimodal_encoder/clip_encoder.py",
    "llava/model/multimodal_projector/builder.py",
)


class Loaded(NamedTuple):
    """A model with its tokenizer, the published module `mm_utils`, and the conversation to begin with."""

    model: Any
    tokenizer: Any
    tools: Any
    conversation: Any


def load(
    code: Path, folder: Path, *, kind: str, classes: tuple[str, str], conversation: str
) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors. kind: the module of `classes`, which
    are those of the model and its configuration. conversation: its name in `conv_templates`."""
    from transformers import AutoTokenizer

    sys.path.insert(0, str(code))
    settings = json.loads((folder / "config.json").read_text())
    tower = settings.pop("vision_config")
    (_replace_siglip if tower["model_type"] == "siglip_vision_model" else _replace_clip)(tower)
    module = importlib.import_module(f"llava.model.language_model.{kind}")
    model_class, config_class = (getattr(module, name) for name in classes)
    del settings["model_type"]
    config = config_class(**settings)
    model = model_class(config)
    if not model.get_vision_tower().is_loaded:
        model.get_vision_tower().load_model()
    tensors = fill_model(model.float().eval())
    conversations = importlib.import_module("llava.conversation").conv_templates
    tools = importlib.import_module("llava.mm_utils")
    return Loaded(model, AutoTokenizer.from_pretrained(folder), tools, conversations[conversation]), tensors


def _replace_clip(tower: dict[str, Any]) -> None:
    """Let the code find a CLIP and its processor of these sizes where it asks the hub for one."""
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    module = importlib.import_module("llava.model.multimodal_encoder.clip_encoder")
    config, side = CLIPVisionConfig(**tower), tower["image_size"]
    processor = CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    for name, made in (
        ("CLIPVisionConfig", lambda: config),
        ("CLIPVisionModel", lambda: CLIPVisionModel(config)),
        ("CLIPImageProcessor", lambda: processor),
    ):
        setattr(module, name, SimpleNamespace(from_pretrained=lambda *_, made=made, **__: made()))


def _replace_siglip(tower: dict[str, Any]) -> None:
    """As `_replace_clip`, for a SigLIP, of which the code drops the last layer."""
    module = importlib.import_module("llava.model.multimodal_encoder.siglip_encoder")
    tower["num_hidden_layers"] += 1
    config, model, side = module.SigLipVisionConfig, module.SigLipVisionModel, tower["image_size"]
    size = {"size": (side, side), "crop_size": {"height": side, "width": side}}
    replaced = {
        "SigLipVisionConfig": lambda: config(**tower),
        "SigLipImageProcessor": partial(module.SigLipImageProcessor, **size),
        "SigLipVisionModel": SimpleNamespace(from_pretrained=lambda *_, **__: model(config(**tower))),
    }
    for name, made in replaced.items():
        setattr(module, name, made)


def run(loaded: Loaded, case: Case, *, several: str | None = None) -> record.Record:
    """Ask about the pictures of a case. several: `image_aspect_ratio` of prompts with more than one picture."""
    model, tools = loaded.model, loaded.tools
    token = "<image>"
    chat = loaded.conversation.copy()
    is_video = any(turn.is_video for turn in case.turns)
    for turn in case.turns:
        count = min(1, len(turn.pictures)) if turn.is_video else len(turn.pictures)
        chat.append_message(chat.roles[0], f"{token}\n" * count + turn.question)
        chat.append_message(chat.roles[1], turn.answer)
    ids = tools.tokenizer_image_token(chat.get_prompt(), loaded.tokenizer, return_tensors="pt")
    pictures = [picture.draw().convert("RGB") for picture in case.pictures]
    processor, own = model.get_vision_tower().image_processor, model.config.image_aspect_ratio
    if is_video:
        frames = np.stack([np.asarray(picture) for picture in pictures])
        images = [processor.preprocess(frames, return_tensors="pt")["pixel_values"]]
    else:
        model.config.image_aspect_ratio = several if several is not None and len(pictures) > 1 else own
        images = list(tools.process_images(pictures, processor, model.config)) if pictures else []
    given: dict[str, Any] = {"image_sizes": [picture.size for picture in pictures]} if pictures else {}
    given |= {"modalities": ["video"]} if is_video else {}
    rows = [_make_rows(model, image, place, given) for place, image in enumerate(images)]
    settings = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "use_cache": True}
    made = model.generate(ids[None], images=images or None, **(given if images else {}), **settings)[0].tolist()
    model.config.image_aspect_ratio = own
    counts = iter([len(each) for each in rows])
    full: list[int] = []
    for number in ids.tolist():
        full += [record.EMBEDDING] * next(counts) if number < 0 else [number]
    tokens = made[1:] if made[0] == model.config.bos_token_id else made  # Transformers 4.37, for embeddings
    if tokens and tokens[-1] == model.generation_config.eos_token_id:
        del tokens[-1]
    noted = [record.note_rows(each) for each in rows]
    return record.Record(ids=full, pixels=record.note_pixels(images), rows=noted, tokens=tokens)


def _make_rows(model: Any, image: torch.Tensor, place: int, given: dict[str, Any]) -> torch.Tensor:
    """Return the rows that the model puts in the place of one picture."""
    one = {name: values if name == "modalities" else [values[place]] for name, values in given.items()}
    ids = torch.tensor([[-200, 0]])  # a prompt of one token is taken for one of an answer
    embedded: torch.Tensor = model.prepare_inputs_labels_for_multimodal(ids, None, None, None, None, [image], **one)[4]
    return embedded[0, :-1]
