"""Baichuan 2, asked by its own `build_chat_input`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from golden.cases import TEXT_ONLY, Case
from golden.drivers.greedy import answer
from golden.formula import fill_model
from golden.record import Record, note_pixels

FILES = ("configuration_baichuan.py", "modeling_baichuan.py", "generation_utils.py")
TRANSFORMERS = "4.37.2"
CASES = TEXT_ONLY


class Loaded(NamedTuple):
    """The published model, and what its function that writes conversations takes."""

    model: Any
    tokenizer: Any
    settings: Any
    build_chat_input: Any


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    from transformers import PreTrainedTokenizerFast

    sys.path.insert(0, str(code.parent))
    accelerate = ModuleType("accelerate")
    accelerate.init_empty_weights = None  # type: ignore[attr-defined]  # used for quantized weights alone
    sys.modules.setdefault("accelerate", accelerate)
    modeling, writing = (
        importlib.import_module(f"{code.name}.{name}") for name in ("modeling_baichuan", FILES[2][:-3])
    )
    config = json.loads((folder / "config.json").read_text())
    model = modeling.BaichuanForCausalLM(modeling.BaichuanConfig(**config)).float().eval()
    shapes = fill_model(model)
    generation = json.loads((folder / "generation_config.json").read_text())
    settings = SimpleNamespace(
        generation_config=SimpleNamespace(**generation), config=model.config, device=torch.device("cpu")
    )
    return Loaded(model, PreTrainedTokenizerFast.from_pretrained(folder), settings, writing.build_chat_input), shapes


def run(loaded: Loaded, case: Case) -> Record:
    """Return what the published code makes of a case."""
    messages = []
    for turn in case.turns:
        messages.append({"role": "user", "content": turn.question})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    ids = loaded.build_chat_input(loaded.settings, loaded.tokenizer, messages)[0].tolist()
    tokens = answer(loaded.model, ids, {loaded.settings.generation_config.eos_token_id})
    return Record(ids=ids, pixels=note_pixels([]), rows=[], tokens=tokens)
