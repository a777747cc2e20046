"""DeepSeek-VL2 of github.com/deepseek-ai/DeepSeek-VL2. FOLDER is that repository. The decoder is that of
deepseek-vl2-small, with latent attention.

`xformers` is not there: its attention is torch's.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import torch
from golden.cases import ALPHA_DROPPED, NUM_TOKENS, PICTURE_IN_SECOND_TURN, STANDARD, Case
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

MODEL = "deepseek-ai/deepseek-vl2-small"
TRANSFORMERS = "4.38.2"
CASES = (*STANDARD, ALPHA_DROPPED, PICTURE_IN_SECOND_TURN)
_MODELS = ("configuration_deepseek", "conversation", "modeling_deepseek", "modeling_deepseek_vl_v2")
FILES = tuple(f"deepseek_vl2/models/{name}.py" for name in (*_MODELS, "processing_deepseek_vl_v2", "siglip_vit"))


class Loaded(NamedTuple):
    """A model and its processor."""

    model: Any
    processor: Any


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: float = 0.0) -> torch.Tensor:
    """Return the attention of [N, rows, heads, dim]."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p).transpose(1, 2)


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32 with its processor, and names and shapes of its tensors."""
    xformers, ops = types.ModuleType("xformers"), types.ModuleType("xformers.ops")
    ops.memory_efficient_attention = _attend  # type: ignore[attr-defined]
    sys.modules.update({"xformers": xformers, "xformers.ops": ops})
    sys.path.insert(0, str(code))
    published = importlib.import_module("deepseek_vl2.models")
    classes = importlib.import_module("deepseek_vl2.models.modeling_deepseek_vl_v2")
    config = classes.DeepseekVLV2Config(**json.loads((folder / "config.json").read_text()))
    model = published.DeepseekVLV2ForCausalLM(config).float().eval()
    tensors = fill_model(model)
    return Loaded(model, published.DeepseekVLV2Processor.from_pretrained(folder)), tensors


def run(loaded: Loaded, case: Case) -> Record:
    """Ask as `inference.py` does."""
    model, processor = loaded
    conversation: list[dict[str, Any]] = []
    for turn in case.turns:
        tags = f"{processor.image_token}\n" * len(turn.pictures)
        conversation.append({"role": "<|User|>", "content": tags + turn.question})
        conversation.append({"role": "<|Assistant|>", "content": turn.answer or ""})
    images = [picture.draw().convert("RGB") for picture in case.pictures]  # as the published load_pil_images
    inputs = processor(conversations=conversation, images=images, force_batchify=True, system_prompt="")
    ids, is_row = inputs.input_ids[0].clone(), inputs.images_seq_mask[0].bool()
    ids[is_row] = EMBEDDING
    embeddings = model.prepare_inputs_embeds(**dict(inputs))
    prepared = processor.process_one(conversations=conversation, images=images)
    rows = [note_rows(each) for each in embeddings[0][is_row].split(prepared.num_image_tokens)] if images else []
    pixels = note_pixels(inputs.images if images else [])
    tokenizer = processor.tokenizer
    made = model.language.generate(
        inputs_embeds=embeddings,
        attention_mask=inputs.attention_mask,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        use_cache=True,
    )
    tokens = [token for token in made[0].tolist() if token != tokenizer.eos_token_id]
    return Record(ids=ids.tolist(), pixels=pixels, rows=rows, tokens=tokens)
