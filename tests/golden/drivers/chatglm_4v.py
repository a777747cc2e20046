"""GLM-4V, with prompts as `apply_chat_template` of its tokenization_chatglm.py writes them, which takes one picture."""

from __future__ import annotations

from pathlib import Path

import torch
from golden.cases import ALPHA, ALPHA_DROPPED, FIVE_SIZES, TEXT, TWO_TURNS, Case
from golden.drivers import chatglm3
from golden.drivers.greedy import answer
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "THUDM/glm-4v-9b"
FILES = (*chatglm3.FILES, "visual.py")
TRANSFORMERS = chatglm3.TRANSFORMERS
CASES = (TEXT, *FIVE_SIZES, ALPHA, ALPHA_DROPPED, TWO_TURNS)
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def load(code: Path, folder: Path) -> tuple[chatglm3.Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    return chatglm3.load(code, folder)


def run(loaded: chatglm3.Loaded, case: Case) -> Record:
    """Return what the published code makes of a case. Pictures are converted to RGB, as in the README."""
    from torchvision import transforms

    side = loaded.model.config.vision_config["image_size"]
    bicubic = transforms.InterpolationMode.BICUBIC
    read = transforms.Compose(
        [transforms.Resize((side, side), bicubic), transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    )
    pictures = [read(picture.draw().convert("RGB"))[None] for picture in case.pictures]
    ids, first = _write(loaded, case), {"images": torch.cat(pictures)} if pictures else {}
    ends = set(loaded.model.config.eos_token_id)
    tokens = answer(chatglm3.count_positions(loaded.model), ids, ends, **first)
    rows = [loaded.model.transformer.vision(picture)[0] for picture in pictures]
    marked = ids
    if rows:  # those of the tokens around the place are of the picture, too
        start = ids.index(loaded.tokenizer.convert_tokens_to_ids("<|endoftext|>")) - 1
        marked = [*ids[:start], *[EMBEDDING] * len(rows[0]), *ids[start + 3 :]]
    return Record(ids=marked, pixels=note_pixels(pictures), rows=list(map(note_rows, rows)), tokens=tokens)


def _write(loaded: chatglm3.Loaded, case: Case) -> list[int]:
    command, encode = loaded.tokenizer.convert_tokens_to_ids, loaded.tokenizer.encode
    ids = [command("[gMASK]"), command("<sop>")]
    for turn in case.turns:
        ids += [command("<|user|>"), *encode("\n")]
        if turn.pictures:
            ids += command(["<|begin_of_image|>", "<|endoftext|>", "<|end_of_image|>"])
        ids += encode(turn.question)
        if turn.answer is not None:
            ids += [command("<|assistant|>"), *encode("\n"), *encode(turn.answer)]
    return [*ids, command("<|assistant|>")]
