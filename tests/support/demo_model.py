"""The built-in checkpoint as frontends open it, and its tokenizer with other parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import seesay.demo
from seesay.config import EngineConfig, MediaLimits, VisionConfig
from seesay.engine.front.preparer import RequestPreparer
from seesay.engine.front.text_frontend import TextFrontend
from seesay.engine.opened_model import open_model
from seesay.processors.text.tokenizer import Tokenizer
from seesay.templates import choose_template

FOLDER = Path(seesay.demo.__file__).with_name("checkpoint")
MODEL = open_model(FOLDER, EngineConfig(device_type="cpu"))
TOKENIZER = MODEL.tokenizer


def make_texts() -> TextFrontend:
    return TextFrontend(TOKENIZER, choose_template(str(FOLDER), TOKENIZER, folder=FOLDER))


def make_preparer(texts: TextFrontend | None = None, **options: Any) -> RequestPreparer:
    """Return a preparer of requests, which the caller closes, with these options of `RequestPreparer`."""
    given = {
        "session_len": 2000, "max_prefill_token_num": 2000, "takes_media": True, "media_limits": MediaLimits(),
        "vision_config": VisionConfig(thread_num=1), "is_encoded": lambda _: False,
    }  # fmt: skip
    return RequestPreparer(MODEL, texts or make_texts(), **{**given, **options})


def load_changed(folder: Path, **parts: object) -> Tokenizer:
    """Return the tokenizer with other `parts` of its tokenizer.json, which is written into `folder`."""
    for path in FOLDER.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))
    return Tokenizer.load(folder)


def load_prefixed(folder: Path) -> Tokenizer:
    """Return the tokenizer with <|endoftext|> as the prefix of each text."""
    name = "<|endoftext|>"
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {name: {"id": name, "ids": [TOKENIZER.token_id(name)], "tokens": [name]}}
    processor = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}
    return load_changed(folder, post_processor=processor)
