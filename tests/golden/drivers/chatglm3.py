"""ChatGLM3, with prompts as `build_chat_input` of its tokenization_chatglm.py writes them: the tokens of each role's
line and of each text apart. That file's own tokens are SentencePiece's, so the tiny tokenizer writes them here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from golden.cases import TEXT_ONLY, Case
from golden.drivers.greedy import answer
from golden.formula import fill_model
from golden.record import Record, note_pixels

MODEL = "THUDM/chatglm3-6b"
FILES = ("configuration_chatglm.py", "modeling_chatglm.py")
TRANSFORMERS = "4.37.2"
CASES = TEXT_ONLY


class Loaded(NamedTuple):
    """The published model, and a tokenizer."""

    model: Any
    tokenizer: Any


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    from transformers import PreTrainedTokenizerFast

    sys.path.insert(0, str(code.parent))
    modeling = importlib.import_module(f"{code.name}.modeling_chatglm")
    config = modeling.ChatGLMConfig(**json.loads((folder / "config.json").read_text()))
    model = modeling.ChatGLMForConditionalGeneration(config, empty_init=False).float().eval()
    shapes = fill_model(model)
    return Loaded(model, PreTrainedTokenizerFast.from_pretrained(folder)), shapes


def run(loaded: Loaded, case: Case) -> Record:
    """Return what the published code makes of a case."""
    command, tokenizer = loaded.tokenizer.convert_tokens_to_ids, loaded.tokenizer
    ids = [command("[gMASK]"), command("sop")]
    for turn in case.turns:
        for role, text in (("user", turn.question), ("assistant", turn.answer)):
            if text is not None:  # SentencePiece puts a space before the first letter of each text
                ids += [command(f"<|{role}|>"), *tokenizer.encode("\n"), *tokenizer.encode(f" {text}")]
    ids.append(command("<|assistant|>"))
    ends = {loaded.model.config.eos_token_id, command("<|user|>"), command("<|observation|>")}
    return Record(ids=ids, pixels=note_pixels([]), rows=[], tokens=answer(count_positions(loaded.model), ids, ends))


def count_positions(model: Any) -> Any:
    """Return the forward of a ChatGLM, which takes positions from 0 on where none are given."""

    def forward(ids: torch.Tensor, *, attention_mask: torch.Tensor, **given: Any) -> Any:
        stop = attention_mask.shape[1]
        positions = torch.arange(stop - ids.shape[1], stop)[None]
        return model(ids, attention_mask=attention_mask, position_ids=positions, **given)

    return forward
