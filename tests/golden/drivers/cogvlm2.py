"""CogVLM2 (arXiv 2408.16500). Its prompts have one picture at most.

It runs on a GPU alone: here xformers' attention is torch's, and the Triton kernel of util.py, which turns the two
halves of each head, is its formula.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from golden.cases import ALPHA_DROPPED, NUM_TOKENS, STANDARD, Case
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "THUDM/cogvlm2-llama3-chat-19B"
FILES = ("configuration_cogvlm.py", "modeling_cogvlm.py", "util.py", "visual.py")
TRANSFORMERS = "4.43.3"
CASES = tuple(case for case in (*STANDARD, ALPHA_DROPPED) if len(case.pictures) < 2)


def load(code: Path, folder: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, with its tokenizer, and the shapes of its tensors."""
    from transformers import PreTrainedTokenizerFast

    ops = types.ModuleType("xformers.ops")
    ops.memory_efficient_attention = _attend  # type: ignore[attr-defined]
    sys.modules |= {"xformers": types.ModuleType("xformers"), "xformers.ops": ops}
    sys.path.insert(0, str(code.parent))
    package = types.ModuleType(code.name)
    package.__path__ = [str(code)]
    sys.modules[code.name] = package
    modeling: Any = importlib.import_module(f"{code.name}.modeling_cogvlm")
    util: Any = importlib.import_module(f"{code.name}.util")
    util.apply_rotary = _turn
    config = modeling.CogVLMConfig(**json.loads((folder / "config.json").read_text()))
    model = modeling.CogVLMForCausalLM(config).eval()
    shapes = fill_model(model)
    model.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return model, shapes


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return attention of [batch, length, heads, size]."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> torch.Tensor:
    """Turn x [batch, heads, length, size] in place by angles [batch, length, size / 2]."""
    assert options["inplace"] and not options["interleaved"] and options["seqlen_offsets"] == 0
    cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, dim=-1)
    return x.copy_(torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1))


def run(model: Any, case: Case) -> Record:
    """Return what the published code makes of a case."""
    pictures = [picture.draw().convert("RGB") for picture in case.pictures]
    history = [(turn.question, turn.answer) for turn in case.turns if turn.answer is not None]
    made = model.build_conversation_input_ids(
        model.tokenizer, query=case.turns[-1].question, history=history, images=pictures, template_version="chat"
    )
    types_of = made["token_type_ids"].tolist()
    ids = [EMBEDDING if kind else token for token, kind in zip(made["input_ids"].tolist(), types_of, strict=True)]
    inputs = {name: made[name][None] for name in ("input_ids", "token_type_ids", "attention_mask")}
    images = [made["images"]] if pictures else None
    written = model.generate(
        **inputs, images=images, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=model.config.pad_token_id
    )
    answer = [token for token in written[0, len(ids) :].tolist() if token != model.tokenizer.eos_token_id]
    rows = [note_rows(rows) for rows in model.model.encode_images(images)] if images else []
    return Record(ids=ids, pixels=note_pixels(made["images"] if pictures else []), rows=rows, tokens=answer)
