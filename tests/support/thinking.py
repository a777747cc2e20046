"""Writes tiny random checkpoints that think: their chat template and tokenizer know the markers of a thought."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import tokenizers

Markers = Literal["special", "added", "spelled"]
BEGIN, FINISH = "<think>", "</think>"

_TURNS = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
)
SWITCHED = _TURNS + (
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""As Qwen3's: the model begins the thought by itself, and a variable turns it off."""
OPENED = _TURNS + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
"""As DeepSeek-R1's: the prompt begins the thought."""


def write_thinking(plain: Path, path: Path, *, markers: Markers = "special", template: str = SWITCHED) -> Path:
    """Write the text model in `plain` as one that thinks. Markers are special tokens, other added tokens, or texts of
    several tokens."""
    shutil.copytree(plain, path)
    file = path / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    if markers == "special":
        backend.add_special_tokens([BEGIN, FINISH])
    elif markers == "added":
        backend.add_tokens([BEGIN, FINISH])
    backend.save(str(file))
    (path / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path
