"""Qwen-VL-Chat, asked by its own `from_list_format` and `make_context`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers.utils
from golden.cases import ALPHA_DROPPED, LONG_TEXTS, STANDARD, Case
from golden.drivers import qwen
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "Qwen/Qwen-VL-Chat"
FILES = (*qwen.FILES, "visual.py")
TRANSFORMERS = qwen.TRANSFORMERS
CASES = (*STANDARD, ALPHA_DROPPED, *LONG_TEXTS)


def load(code: Path, folder: Path) -> tuple[qwen.Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    find = transformers.utils.try_to_load_from_cache
    transformers.utils.try_to_load_from_cache = lambda *_: "no font"  # that boxes would be drawn with
    try:
        return qwen.load(code, folder)
    finally:
        transformers.utils.try_to_load_from_cache = find


def run(loaded: qwen.Loaded, case: Case) -> Record:
    """Return what the published code makes of a case. Pictures are files, whose paths stand in the prompt."""
    seen: list[torch.Tensor] = []
    made: list[torch.Tensor] = []

    def keep(module: Any, given: tuple[torch.Tensor], rows: torch.Tensor) -> None:
        seen.extend(given[0])
        made.extend(rows)

    with tempfile.TemporaryDirectory() as folder:
        paths = {index: Path(folder) / f"{index}.png" for index in range(len(case.pictures))}
        for path, picture in zip(paths.values(), case.pictures):
            picture.draw().save(path)
        ids = _write(loaded, case, [str(path) for path in paths.values()])
        hook = loaded.model.transformer.visual.register_forward_hook(keep)
        tokens = qwen.answer(loaded, ids)
        hook.remove()
    rows = [note_rows(each) for each in made]
    return Record(ids=_mark(loaded, ids), pixels=note_pixels(seen), rows=rows, tokens=tokens)


def _write(loaded: qwen.Loaded, case: Case, paths: list[str]) -> list[int]:
    """`from_list_format` numbers the pictures of one message; those of later ones go on, as the README of Qwen-VL
    numbers them."""
    turns, count = [], 0
    for turn in case.turns:
        text = loaded.tokenizer.from_list_format(
            [*({"image": path} for path in paths[count : count + len(turn.pictures)]), {"text": turn.question}]
        )
        assert not (count and turn.pictures), "no case has pictures in two messages"
        count += len(turn.pictures)
        turns.append((text, turn.answer))
    return qwen.write(loaded, turns)


def _mark(loaded: qwen.Loaded, ids: list[int]) -> list[int]:
    """The path of a picture and its padding are the places of its rows."""
    marked, is_inside = [], False
    for token in ids:
        is_inside = is_inside and token != loaded.tokenizer.img_end_id
        marked.append(EMBEDDING if is_inside else token)
        is_inside = is_inside or token == loaded.tokenizer.img_start_id
    return marked
