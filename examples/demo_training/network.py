"""The forward pass over packs: Qwen2.5-VL's arithmetic on the parameters of Transformers' own module.

Transformers loops over pictures in Python; here every step works on fixed shapes, so one compiled graph serves all.
Checked against Transformers' logits whenever a checkpoint is written.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from demo_training import packing as pk
from seesay.demo.example import CELL_PX

IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
NUM_PATCH_CLASSES = (len(pk.COLOUR_IDS), len(pk.SHAPE_IDS), len(pk.GLYPH_IDS))
BOX_LOSS_BETA = 0.1
"""Cells up to which the error of a side counts by its square."""
EMPTY_PATCH_WEIGHT = 0.2
"""How much a patch without an object counts in the auxiliary loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The dimensions that a model may be given."""

    vision_hidden: int = 192
    vision_intermediate: int = 512
    vision_depth: int = 6
    vision_heads: int = 6
    full_attention_blocks: tuple[int, ...] = (1, 3, 5)
    hidden: int = 256
    intermediate: int = 512
    depth: int = 6
    heads: int = 4
    kv_heads: int = 2


MINUTE = Sizes(
    vision_hidden=32,
    vision_intermediate=32,
    vision_depth=2,
    vision_heads=2,
    full_attention_blocks=(1,),
    hidden=64,
    intermediate=64,
    depth=2,
    heads=2,
    kv_heads=1,
)
"""For tests of the script itself."""


def make_config(sizes: Sizes, *, vocab_size: int, special_ids: dict[str, int]) -> dict[str, Any]:
    """The content of config.json. `special_ids` maps the names of special tokens, without brackets, to their ids."""
    head_dim = sizes.hidden // sizes.heads
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "vocab_size": vocab_size,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.intermediate,
            "num_hidden_layers": sizes.depth,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            # A short period: the height and width of a small grid of tokens turn the slow half of each head.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 40.0,
                "mrope_section": [head_dim // 8, head_dim * 3 // 16, head_dim * 3 // 16],
            },
            "tie_word_embeddings": False,
            "bos_token_id": special_ids["endoftext"],
            "eos_token_id": special_ids["im_end"],
            "pad_token_id": special_ids["endoftext"],
        },
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "depth": sizes.vision_depth,
            "hidden_size": sizes.vision_hidden,
            "hidden_act": "silu",
            "intermediate_size": sizes.vision_intermediate,
            "num_heads": sizes.vision_heads,
            "in_channels": 3,
            "patch_size": pk.PATCH_PX,
            "spatial_merge_size": pk.MERGE,
            "temporal_patch_size": pk.TEMPORAL_PATCH,
            "tokens_per_second": pk.TOKENS_PER_SECOND,
            "window_size": pk.WINDOW_CELLS * CELL_PX,
            "out_hidden_size": sizes.hidden,
            "fullatt_block_indexes": list(sizes.full_attention_blocks),
        },
        "image_token_id": special_ids["image_pad"],
        "video_token_id": special_ids["video_pad"],
        "vision_start_token_id": special_ids["vision_start"],
        "vision_end_token_id": special_ids["vision_end"],
        "tie_word_embeddings": False,
    }


class Batch:
    """K packs on the device, their fields joined: patches [K * MAX_PATCHES, 1176], token_ids [K * MAX_TOKENS], …"""

    def __init__(self, memory: Tensor) -> None:
        """`memory`: uint8 [K, PACK_BYTES]."""
        self.num_packs = len(memory)
        fields: dict[str, Tensor] = {}
        for name, (_, shape) in pk.FIELDS.items():
            start, end = pk.FIELD_SPANS[name]
            flat = memory[:, start:end].contiguous()
            dtype = {"patches": torch.uint8, "patch_boxes": torch.int16}.get(name, torch.int32)
            fields[name] = flat.view(dtype).reshape(self.num_packs * shape[0], *shape[1:])
        self.patches = fields["patches"]
        self.patch_positions = fields["patch_positions"]
        self.patch_labels = fields["patch_labels"].long()
        self.patch_boxes = fields["patch_boxes"]
        self.token_ids = fields["token_ids"].long()
        self.positions = fields["positions"]
        self.targets = fields["targets"].long()
        self.cu_windows = self._join_lengths(fields["cu_windows"], pk.MAX_PATCHES)
        self.cu_frames = self._join_lengths(fields["cu_frames"], pk.MAX_PATCHES)
        self.cu_conversations = self._join_lengths(fields["cu_conversations"], pk.MAX_TOKENS)
        self.vision_rows = self._join_ids(fields["vision_rows"], pk.MAX_PATCHES // pk.MERGE**2)
        self.answer_ids = self._join_ids(fields["answer_ids"], pk.MAX_CONVERSATIONS)
        self.answer_tasks = fields["answer_tasks"].long()

    def _join_lengths(self, lengths: Tensor, total: int) -> Tensor:
        """Cumulative lengths of each pack → those of all packs laid end to end; empty segments are harmless."""
        packs = torch.arange(self.num_packs, device=lengths.device, dtype=torch.int32)[:, None]
        return (lengths.view(self.num_packs, -1) + packs * total).flatten()

    def _join_ids(self, ids: Tensor, num_per_pack: int) -> Tensor:
        packs = torch.arange(self.num_packs, device=ids.device)[:, None]
        ids = ids.view(self.num_packs, -1).long()
        return torch.where(ids >= 0, ids + packs * num_per_pack, ids).flatten()


def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, *, causal: bool) -> Tensor:
    """Attention within segments: q [N, heads, dim], k and v [N, kv heads, dim] → [N, heads * dim]."""
    if q.is_cuda:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest, 0.0, causal, False
        )[0]
        return out.flatten(1)
    outs = []
    for start, end in itertools.pairwise(cu_seqlens.tolist()):
        if start < end:
            segment = [x[start:end].transpose(0, 1)[None] for x in (q, k, v)]
            mixed = F.scaled_dot_product_attention(
                segment[0], segment[1], segment[2], is_causal=causal, enable_gqa=True
            )
            outs.append(mixed[0].transpose(0, 1))
    return torch.cat(outs).flatten(1)


def _linear(x: Tensor, layer: nn.Module) -> Tensor:
    """Compute a layer; one that is no plain linear layer, as with an adapter, does it itself."""
    if not isinstance(layer, nn.Linear):
        product: Tensor = layer(x)
        return product
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def _mlp(x: Tensor, mlp: Any) -> Tensor:
    return _linear(F.silu(_linear(x, mlp.gate_proj)) * _linear(x, mlp.up_proj), mlp.down_proj)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, heads, dim]; cos, sin [N, 1, dim], fp32."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def _angles(frequencies: Tensor) -> tuple[Tensor, Tensor]:
    doubled = torch.cat((frequencies, frequencies), dim=-1)[:, None]
    return doubled.cos(), doubled.sin()


class PackedModel(nn.Module):
    """Wraps Transformers' module as the holder of parameters, and adds the heads that only training has."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.model = model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config)).float()
        vision, text = model.config.vision_config, model.config.text_config
        # Every merged token says of each of its four patches what colour, shape and glyph covers it.
        self.patch_heads = nn.ModuleList(
            nn.Linear(text.hidden_size, pk.MERGE**2 * classes) for classes in NUM_PATCH_CLASSES
        )
        # And how far the sides of the shape there are.
        self.box_head = nn.Linear(text.hidden_size, pk.MERGE**2 * 4)
        vision_dim = vision.hidden_size // vision.num_heads // 2
        text_dim = text.hidden_size // text.num_attention_heads
        theta = text.rope_parameters["rope_theta"]
        section = text.rope_parameters["mrope_section"]
        self.vision_frequencies = nn.Buffer(10000.0 ** (-torch.arange(0, vision_dim, 2) / vision_dim), persistent=False)
        self.text_frequencies = nn.Buffer(theta ** (-torch.arange(0, text_dim, 2) / text_dim), persistent=False)
        axes = torch.repeat_interleave(torch.arange(3), torch.tensor(section))
        self.text_axes = nn.Buffer(axes, persistent=False)
        scale = torch.tensor([1 / (255 * std) for std in IMAGE_STD])
        shift = torch.tensor([-mean / std for mean, std in zip(IMAGE_MEAN, IMAGE_STD, strict=True)])
        values_per_channel = pk.PATCH_VALUES // 3
        self.pixel_scale = nn.Buffer(scale.repeat_interleave(values_per_channel), persistent=False)
        self.pixel_shift = nn.Buffer(shift.repeat_interleave(values_per_channel), persistent=False)
        self.compute_dtype = torch.float32

    def see(self, batch: Batch) -> Tensor:
        """Embeddings of all merged patches, [patches / 4, hidden], in window order."""
        visual = self.model.model.visual
        weight = visual.patch_embed.proj.weight.flatten(1)
        pixels = batch.patches.float() * self.pixel_scale + self.pixel_shift
        hidden = F.linear(pixels.to(self.compute_dtype), weight.to(self.compute_dtype))
        angles = batch.patch_positions[..., None] * self.vision_frequencies
        cos, sin = _angles(angles.flatten(1))
        heads = visual.config.num_heads
        for i, block in enumerate(visual.blocks):
            qkv = _linear(_rms_norm(hidden, block.norm1.weight), block.attn.qkv)
            q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            if i in visual.config.fullatt_block_indexes:
                mixed = attend(q, k, v, batch.cu_frames, pk.LONGEST_FRAME, causal=False)
            else:
                mixed = attend(q, k, v, batch.cu_windows, pk.LONGEST_WINDOW, causal=False)
            hidden = hidden + _linear(mixed, block.attn.proj)
            hidden = hidden + _mlp(_rms_norm(hidden, block.norm2.weight), block.mlp)
        merger = visual.merger
        merged = _rms_norm(hidden, merger.ln_q.weight).view(-1, pk.MERGE**2 * hidden.shape[-1])
        return _linear(F.gelu(_linear(merged, merger.mlp[0])), merger.mlp[2])

    def read(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of the packs' conversations, with `embeddings` from `see` spliced in."""
        text = self.model.model.language_model
        hidden = text.embed_tokens.weight[batch.token_ids].to(self.compute_dtype)
        seen = embeddings[batch.vision_rows.clamp(min=0)]
        hidden = torch.where(batch.vision_rows[:, None] >= 0, seen, hidden)
        cos, sin = _angles(batch.positions[:, self.text_axes] * self.text_frequencies)
        dim = hidden.shape[-1] // text.config.num_attention_heads
        for layer in text.layers:
            attention = layer.self_attn
            normed = _rms_norm(hidden, layer.input_layernorm.weight)
            q, k, v = (
                _linear(normed, projection).view(len(normed), -1, dim)
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            mixed = attend(q, k, v, batch.cu_conversations, pk.LONGEST_CONVERSATION, causal=True)
            hidden = hidden + _linear(mixed, attention.o_proj)
            hidden = hidden + _mlp(_rms_norm(hidden, layer.post_attention_layernorm.weight), layer.mlp)
        return _linear(_rms_norm(hidden, text.norm.weight), self.model.lm_head)

    def patch_loss(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Cross entropy of what covers each patch, mean over colours, shapes and glyphs; and how far the sides of
        shapes are from where they are seen, in cells (smooth L1)."""
        losses = []
        for axis, head in enumerate(self.patch_heads):
            if not isinstance(head, nn.Linear):
                raise TypeError("patch heads are linear layers")
            labels = batch.patch_labels[:, axis]
            logits = _linear(embeddings, head).view(len(labels), -1).float()
            weights = torch.where(labels > 0, 1.0, EMPTY_PATCH_WEIGHT)
            losses.append((F.cross_entropy(logits, labels, reduction="none") * weights).sum() / weights.sum())
        sides = batch.patch_boxes.float() / CELL_PX
        seen = _linear(embeddings, self.box_head).view(-1, 4).float()
        weights = (batch.patch_labels[:, 1:2] > 0).float()
        missed = F.smooth_l1_loss(seen, sides, reduction="none", beta=BOX_LOSS_BETA) * weights
        return torch.stack(losses).mean() + missed.sum() / (4 * weights.sum()).clamp(min=1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(answer loss, patch loss, whether each token's target is the likeliest: bool [tokens])."""
        embeddings = self.see(batch)
        logits = self.read(batch, embeddings).float()
        answer_loss = F.cross_entropy(logits, batch.targets, ignore_index=-1)
        return answer_loss, self.patch_loss(batch, embeddings), logits.detach().argmax(-1) == batch.targets


def answers_right(batch: Batch, is_likeliest: Tensor, num_tasks: int) -> Tensor:
    """Counts [num_tasks, 2] of (measured answers that greedy decoding gives word for word, all measured answers)."""
    num_answers = len(batch.answer_tasks)
    asked = batch.answer_ids >= 0
    wrong = torch.zeros(num_answers, device=batch.targets.device)
    wrong.index_add_(0, batch.answer_ids.clamp(min=0), (asked & ~is_likeliest).float())
    counts = torch.zeros(num_tasks, 2, device=wrong.device)
    known = batch.answer_tasks >= 0
    tasks = batch.answer_tasks.clamp(min=0)
    counts[:, 0].index_add_(0, tasks, ((wrong == 0) & known).float())
    counts[:, 1].index_add_(0, tasks, known.float())
    return counts


def tokens_right(batch: Batch, is_likeliest: Tensor, num_tasks: int) -> Tensor:
    """Counts [num_tasks, 2] of (tokens of measured answers that are likeliest after the right ones, all of them)."""
    tasks = batch.answer_tasks[batch.answer_ids.clamp(min=0)]
    known = (batch.answer_ids >= 0) & (tasks >= 0)
    counts = torch.zeros(num_tasks, 2, device=tasks.device)
    counts[:, 0].index_add_(0, tasks.clamp(min=0), (is_likeliest & known).float())
    counts[:, 1].index_add_(0, tasks.clamp(min=0), known.float())
    return counts


def init_weights(model: PackedModel, seed: int) -> None:
    """Normal weights scaled by fan-in; what ends a residual branch starts smaller, biases at zero, norms at one."""
    generator = torch.Generator().manual_seed(seed)
    depth = 2 * max(model.model.config.text_config.num_hidden_layers, model.model.config.vision_config.depth)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                std = 0.02 if "embed_tokens" in name else 0.7 / math.sqrt(parameter[0].numel())
                if name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight")):
                    std /= math.sqrt(depth)
                parameter.normal_(0.0, std, generator=generator)
