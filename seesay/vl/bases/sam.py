"""The sizes of a SAM, as configurations of Transformers call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig
    from seesay.encoders.towers.sam import SamConfig


def read_sam(vision: ModelConfig, where: str) -> SamConfig:
    """Return the sizes of the SAM that is configured at `where`. Raises `CheckpointError` naming what is not
    supported."""
    from seesay.encoders.towers.sam import SamConfig
    from seesay.encoders.towers.vit_layers import LayerConfig

    indices, depth = vision.global_attn_indexes, vision.num_hidden_layers
    if not indices or not all(type(index) is int and 0 <= index < depth for index in indices):
        raise CheckpointError(f"{where}.global_attn_indexes must be some of {depth} layers, got {str(indices)[:80]}")
    for name in ("use_abs_pos", "use_rel_pos"):
        if not getattr(vision, name):
            raise CheckpointError(f"{where}.{name}=false is not supported")
    layers = LayerConfig(
        hidden_size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        intermediate_size=vision.mlp_dim,
        activation=vision.hidden_act,
        norm_eps=vision.layer_norm_eps,
        qkv=("qkv",),
        has_qkv_bias=vision.qkv_bias,
    )
    return SamConfig(
        layers=layers,
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        num_layers=depth,
        window=vision.window_size,
        global_layers=tuple(indices),
        out_channels=vision.output_channels,
    )
