"""Compares the packed forward pass with Transformers' own, conversation by conversation."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from packaging.version import Version
from tokenizers import Tokenizer
from torch import Tensor

from demo_training import packing as pk
from demo_training.network import Batch, PackedModel
from demo_training.talks import TALK_TASKS, make_talk
from seesay.demo.scenes import TRAINING_TASKS, make_example

LOGIT_TOLERANCE = 1e-4
FRACTIONAL_STEPS_SINCE = "5.18"
"""The first Transformers version that keeps the fraction of a clip's seconds per step in M-RoPE positions.

Older ones truncate `second_per_grid_ts` before they multiply (https://github.com/huggingface/transformers/pull/48669).
"""


def check_logits(model: PackedModel, tokenizer: Tokenizer) -> None:
    """Raise RuntimeError naming the conversations whose packed logits differ from the installed Transformers'.

    Clips that an old Transformers version places wrongly are left out, with a warning.
    """
    conversations = sample_conversations(tokenizer)
    if Version(transformers.__version__) < Version(FRACTIONAL_STEPS_SINCE):
        skipped = [name for name, conversation in conversations.items() if has_fractional_steps(conversation)]
        warnings.warn(
            f"Transformers {transformers.__version__} truncates the seconds between a clip's steps: "
            f"{', '.join(skipped)} not compared; needs Transformers {FRACTIONAL_STEPS_SINCE} or newer",
            stacklevel=2,
        )
        conversations = {name: conversation for name, conversation in conversations.items() if name not in skipped}
    errors = logit_errors(model, conversations)
    differing = [f"{name} by {error:.2e}" for name, error in errors.items() if not error < LOGIT_TOLERANCE]
    if differing:
        raise RuntimeError(
            f"logits differ from those of Transformers {transformers.__version__}, as a share of the largest logit: "
            f"{', '.join(differing)}; the limit is {LOGIT_TOLERANCE:.0e}"
        )


def sample_conversations(tokenizer: Tokenizer) -> dict[str, pk.Conversation]:
    """Return one conversation per task of either maker, by the call that makes it."""
    encoder, rng = pk.Encoder(tokenizer), random.Random(0)
    examples = {f"make_example({task!r}, 0)": make_example(task, 0) for task in TRAINING_TASKS}
    examples |= {f"make_talk({task!r}, 0)": make_talk(task, 0) for task in TALK_TASKS}
    return {name: encoder.encode(example, rng) for name, example in examples.items()}


def has_fractional_steps(conversation: pk.Conversation) -> bool:
    """Return whether a clip's steps are not whole seconds apart."""
    return any(vision.seconds_per_step % 1 != 0 for vision in conversation.visions)


@torch.no_grad()
def logit_errors(model: PackedModel, conversations: dict[str, pk.Conversation]) -> dict[str, float]:
    """Return the greatest logit difference of each conversation, as a share of its largest; fp32 on the CPU."""
    memory = torch.empty(1, pk.PACK_BYTES, dtype=torch.uint8)
    views = pk.pack_views(memory[0].numpy())
    if pk.write_pack(views, ((conversation, "") for conversation in conversations.values())) < len(conversations):
        raise ValueError("the conversations to compare do not fit into one pack")
    batch = Batch(memory)
    logits = model.read(batch, model.see(batch))
    start, errors = 0, {}
    for name, conversation in conversations.items():
        end = start + len(conversation.token_ids)
        expected = model.model(**reference_inputs(model, conversation)).logits[0]
        errors[name] = float((logits[start:end] - expected).abs().max() / expected.abs().max())
        start = end
    return errors


def reference_inputs(model: PackedModel, conversation: pk.Conversation) -> dict[str, Any]:
    """Return the inputs of Transformers' model for one conversation. The model computes the positions itself."""
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
