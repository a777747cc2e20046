"""Compares the packed forward pass with Transformers' own, conversation by conversation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_training import packing as pk
from demo_training.network import Batch, PackedModel
from seesay.demo.scenes import TRAINING_TASKS, make_example
from seesay.demo.talks import TALK_TASKS, make_talk


@torch.no_grad()
def largest_logit_error(model: PackedModel, tokenizer: Tokenizer) -> float:
    """Greatest difference between both passes' logits, as a share of the largest logit; fp32 on the CPU."""
    encoder, rng = pk.Encoder(tokenizer), random.Random(0)
    conversations = [encoder.encode(make_example(task, 0), rng) for task in TRAINING_TASKS]
    conversations += [encoder.encode(make_talk(task, 0), rng) for task in TALK_TASKS]
    memory = torch.empty(1, pk.PACK_BYTES, dtype=torch.uint8)
    views = pk.pack_views(memory[0].numpy())
    if pk.write_pack(views, ((conversation, "") for conversation in conversations)) < len(conversations):
        raise ValueError("the conversations to compare do not fit into one pack")
    batch = Batch(memory)
    logits = model.read(batch, model.see(batch))
    start, worst = 0, 0.0
    for conversation in conversations:
        end = start + len(conversation.token_ids)
        expected = model.model(**reference_inputs(model, conversation)).logits[0]
        worst = max(worst, float((logits[start:end] - expected).abs().max() / expected.abs().max()))
        start = end
    return worst


def reference_inputs(model: PackedModel, conversation: pk.Conversation) -> dict[str, Any]:
    """What Transformers' model takes for one conversation; it works out the positions itself."""
    token_ids = torch.tensor([conversation.token_ids])
    is_image = token_ids == model.model.config.image_token_id
    is_video = token_ids == model.model.config.video_token_id
    inputs: dict[str, Any] = {"input_ids": token_ids, "mm_token_type_ids": is_image.int() + 2 * is_video.int()}
    for modality, suffix in (("image", ""), ("video", "_videos")):
        visions = [vision for vision in conversation.visions if vision.modality == modality]
        if visions:
            patches = torch.cat([_raster_patches(vision) for vision in visions])
            inputs["pixel_values" + suffix] = patches * model.pixel_scale + model.pixel_shift
            grids = [(steps, rows * pk.MERGE, columns * pk.MERGE) for steps, rows, columns in (v.grid for v in visions)]
            inputs[f"{modality}_grid_thw"] = torch.tensor(grids)
        if visions and modality == "video":
            inputs["second_per_grid_ts"] = torch.tensor([vision.seconds_per_step for vision in visions])
    return inputs


def _raster_patches(vision: pk.Vision) -> Tensor:
    """Patches [n, 1176] in the cells' raster order, where `vision` has them window by window."""
    steps, rows, columns = vision.grid
    order, _ = pk.window_order(rows, columns)
    patches = vision.patches.reshape(steps, len(order), -1)[:, np.argsort(order)]
    return torch.from_numpy(patches.reshape(-1, pk.PATCH_VALUES).astype(np.float32))
