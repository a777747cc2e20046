"""How DeepSeek-VL of github.com/deepseek-ai/DeepSeek-VL is loaded and asked. FOLDER is that repository.

The published towers have their sizes by name. Those of a folder's `config.json` stand beside the name, and are put
under it here.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from golden.cases import ALPHA_DROPPED, NUM_TOKENS, PICTURE_IN_SECOND_TURN, STANDARD, Case
from golden.formula import fill_model
from golden.record import EMBEDDING, Record, note_pixels, note_rows

CASES = (*STANDARD, ALPHA_DROPPED, PICTURE_IN_SECOND_TURN)
_MODELS = ("clip_encoder", "image_processing_vlm", "modeling_vlm", "processing_vlm", "projector", "sam", "siglip_vit")
FILES = (*(f"deepseek_vl/models/{name}.py" for name in _MODELS), "deepseek_vl/utils/conversation.py")
_SIGLIP = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
_SAM = {**_SIGLIP, "global_attn_indexes": "global_attn_indexes", "output_channels": "prompt_embed_dim"}


class Loaded(NamedTuple):
    """A model and its processor."""

    model: Any
    processor: Any


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32 with its processor, and names and shapes of its tensors."""
    sys.path.insert(0, str(code))
    published = importlib.import_module("deepseek_vl.models")
    config = json.loads((folder / "config.json").read_text())
    params = config["vision_config"]["params"]
    for tower in (params[name] for name in ("low_res_cfg", "high_res_cfg")) if "low_res_cfg" in params else (params,):
        _set_sizes(tower)
    classes = importlib.import_module("deepseek_vl.models.modeling_vlm")
    model = published.MultiModalityCausalLM(classes.MultiModalityConfig(**config)).float().eval()
    tensors = fill_model(model)
    return Loaded(model, published.VLChatProcessor.from_pretrained(folder)), tensors


def _set_sizes(tower: Mapping[str, Any]) -> None:
    name = tower["model_name"]
    is_sam = name.startswith("sam")
    module = importlib.import_module(f"deepseek_vl.models.{'sam' if is_sam else 'siglip_vit'}")
    sizes = (module.SAM_MODEL_CONFIG if is_sam else module.SigLIP_MODEL_CONFIG)[name]
    sizes.update({known: tower[given] for given, known in (_SAM if is_sam else _SIGLIP).items()})
    sizes["patch_size"] = tower["patch_size"]
    if is_sam:
        sizes["downsample_channels"] = (2 * tower["output_channels"], 4 * tower["output_channels"])


def run(loaded: Loaded, case: Case) -> Record:
    """Ask as `inference.py` does."""
    model, processor = loaded
    conversation: list[dict[str, Any]] = []
    for turn in case.turns:
        tags = processor.image_tag * len(turn.pictures)
        conversation.append({"role": "User", "content": tags + turn.question})
        conversation.append({"role": "Assistant", "content": turn.answer or ""})
    images = [picture.draw().convert("RGB") for picture in case.pictures]  # as the published load_pil_images
    if not images:
        return _answer_text(loaded, conversation)
    inputs = processor(conversations=conversation, images=images, force_batchify=True)
    ids = inputs.input_ids[0].clone()
    ids[inputs.images_seq_mask[0]] = EMBEDDING
    seen: list[torch.Tensor] = []
    tower = getattr(model.vision_model, "vision_tower_low", model.vision_model).vision_tower
    hook = tower.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    embeddings = model.prepare_inputs_embeds(**dict(inputs))
    hook.remove()
    rows = [note_rows(each) for each in embeddings[inputs.images_seq_mask].split(processor.num_image_tokens)]
    return Record(ids=ids.tolist(), pixels=note_pixels(seen), rows=rows, tokens=_generate(loaded, embeddings))


def _answer_text(loaded: Loaded, conversation: list[dict[str, Any]]) -> Record:
    """Answer without pictures, which the published processor does not take: its template, and the decoder."""
    model, processor = loaded
    prompt = processor.apply_sft_template_for_multi_turn_prompts(
        conversation, sft_format=processor.sft_format, system_prompt=processor.system_prompt
    )
    ids = torch.tensor([processor.tokenizer.encode(prompt)])
    tokens = _generate(loaded, model.language_model.get_input_embeddings()(ids))
    return Record(ids=ids[0].tolist(), pixels=note_pixels([]), rows=[], tokens=tokens)


def _generate(loaded: Loaded, embeddings: torch.Tensor) -> list[int]:
    tokenizer = loaded.processor.tokenizer
    made = loaded.model.language_model.generate(
        inputs_embeds=embeddings,
        attention_mask=torch.ones(embeddings.shape[:2], dtype=torch.long),
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        use_cache=True,
    )
    return [token for token in made[0].tolist() if token != tokenizer.eos_token_id]
