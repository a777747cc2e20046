"""The first Qwen, text alone, asked by its own `make_context`. Its prompts reach beyond the trained length."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from golden.cases import LONG_TEXTS, NUM_TOKENS, TEXT_ONLY, Case
from golden.formula import fill_model
from golden.record import Record, note_pixels

MODEL = "Qwen/Qwen-7B"
FILES = ("configuration_qwen.py", "modeling_qwen.py", "qwen_generation_utils.py", "tokenization_qwen.py")
TRANSFORMERS = "4.37.2"
CASES = (*TEXT_ONLY, *LONG_TEXTS)
SYSTEM = "You are a helpful assistant."
"""The default of `chat` in modeling_qwen.py."""


class Loaded(NamedTuple):
    """The published model, tokenizer, and function that writes conversations."""

    model: Any
    tokenizer: Any
    make_context: Any


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    sys.path.insert(0, str(code.parent))
    tokens: Any
    tokens, modeling, writing = (
        importlib.import_module(f"{code.name}.{name}")
        for name in ("tokenization_qwen", "modeling_qwen", "qwen_generation_utils")
    )
    if hasattr(tokens, "SPECIAL_START_ID"):  # behind the 256 tokens of the tiny tokenizer
        shift = tokens.SPECIAL_START_ID - 256
        tokens.SPECIAL_TOKENS = tuple((index - shift, token) for index, token in tokens.SPECIAL_TOKENS)
    tokens.QWenTokenizer.mergeable_ranks = {}  # this release of Transformers asks for the vocabulary too early
    tokenizer = tokens.QWenTokenizer(str(folder / "qwen.tiktoken"))
    config = modeling.QWenConfig(**json.loads((folder / "config.json").read_text()))
    model = modeling.QWenLMHeadModel(config).float().eval()
    shapes = fill_model(model)
    return Loaded(model, tokenizer, writing.make_context), shapes


def run(loaded: Loaded, case: Case) -> Record:
    """Return what the published code makes of a case."""
    ids = write(loaded, [(turn.question, turn.answer) for turn in case.turns])
    return Record(ids=ids, pixels=note_pixels([]), rows=[], tokens=answer(loaded, ids))


def write(loaded: Loaded, turns: list[tuple[str, str | None]]) -> list[int]:
    """Return the ids of a conversation whose last turn is to be answered."""
    *history, (question, _) = turns
    _, ids = loaded.make_context(
        loaded.tokenizer, question, history=history, system=SYSTEM, max_window_size=8192, chat_format="chatml"
    )
    return list(ids)


def answer(loaded: Loaded, ids: list[int]) -> list[int]:
    """Return the likeliest tokens, each computed with the keys of those before it."""
    tokens: list[int] = []
    given, past = torch.tensor([ids]), None
    for _ in range(NUM_TOKENS):
        mask = torch.ones(1, len(ids) + len(tokens))
        output = loaded.model(given, past_key_values=past, attention_mask=mask, use_cache=True)
        token = int(output.logits[0, -1].argmax())
        if token in (loaded.tokenizer.eod_id, loaded.tokenizer.im_end_id):
            break
        tokens.append(token)
        given, past = torch.tensor([[token]]), output.past_key_values
    return tokens
