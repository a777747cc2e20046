"""Text models whose published code is asked through the chat template of the folder."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from golden.cases import Case
from golden.drivers.greedy import answer
from golden.formula import fill_model
from golden.record import Record, note_pixels, read_scales


class Loaded(NamedTuple):
    """The published model, its tokenizer, and the chat template of its folder."""

    model: Any
    tokenizer: Any
    template: jinja2.Template


def load_causal(
    code: Path, folder: Path, *, configuration: tuple[str, str], model: tuple[str, str]
) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32 with a tokenizer, and names and shapes of its tensors. configuration,
    model: (module, class) in the folder `code`, whose files import each other."""
    from transformers import PreTrainedTokenizerFast

    sys.path.insert(0, str(code.parent))
    modules = {name: importlib.import_module(f"{code.name}.{module}") for module, name in (model, configuration)}
    made, read = (getattr(modules[name], name) for _, name in (model, configuration))
    config = read(**json.loads((folder / "config.json").read_text()))
    config._attn_implementation = "eager"  # of releases that have a choice
    published = made(config).float().eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    return Loaded(published, tokenizer, jinja2.Template(template)), fill_model(published, read_scales(folder))


def run(loaded: Loaded, case: Case) -> Record:
    """Return what the published code makes of a case."""
    messages = []
    for turn in case.turns:
        messages.append({"role": "user", "content": turn.question})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    tokenizer = loaded.tokenizer
    text = loaded.template.render(messages=messages, add_generation_prompt=True, bos_token=tokenizer.bos_token)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return Record(ids=ids, pixels=note_pixels([]), rows=[], tokens=answer(loaded.model, ids, {tokenizer.eos_token_id}))
