"""The options of our own tower equal timm's Eva models: rotary positions, sub-norms, scales, gates, biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint
from seesay.encoders.towers.layers import cut_patches
from seesay.encoders.towers.vit import RopeConfig, Vit, VitConfig
from seesay.encoders.towers.vit_layers import QKV, LayerConfig
from seesay.encoders.towers.weights import load_tower

timm = pytest.importorskip("timm", reason="towers are compared with those of timm")

SIZES = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 85,
    "activation": "gelu",
    "norm_eps": 1e-6,
}
TOWER: dict[str, Any] = {
    "image_size": (16, 24),
    "patch_size": (4, 4),
    "feature_layers": (2,),
    "has_class_token": True,
    "has_final_norm": True,
}
EVA02 = {"use_rot_pos_emb": True, "swiglu_mlp": True, "ref_feat_shape": (3, 3)}
GATED = {"is_gated": True, "activation": "silu", "has_key_bias": False, "rotates_neighbours": True}
PE = {"attn_type": "rope", "use_rot_pos_emb": True, "use_pre_transformer_norm": True, "rope_grid_indexing": "xy"}
PE_TOWER = {"has_patch_bias": False, "has_input_norm": True}
ROPE = RopeConfig(grid=(3, 3))

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # EVA-02-CLIP-L: separate weights, sub-norms of attention and feed-forward.
    "eva02": (
        {**EVA02, "qkv_fused": False, "scale_mlp": True, "scale_attn_inner": True},
        {**GATED, "norms_heads": True, "norms_inner": True},
        {"rope": ROPE},
    ),
    # EVA-02 small: gate and up in one matrix.
    "eva02_joined": (EVA02, {**GATED, "qkv": ("qkv",), "gate_up": ("fc1",)}, {"rope": ROPE}),
    # EVA-CLIP-g and -E: plain layers, no bias of keys; scales; norms behind.
    "eva": ({"init_values": 0.3}, {"qkv": ("qkv",), "has_key_bias": False, "has_scales": True}, {}),
    "eva_behind": ({"use_post_norm": True}, {"qkv": ("qkv",), "has_key_bias": False, "norms_updates": True}, {}),
    # Perception Encoder L and G.
    "pe": (
        {**PE, "rope_grid_offset": 1.0, "ref_feat_shape": (5, 5), "init_values": 0.1},
        {"qkv": ("qkv",), "rotates_neighbours": True, "has_scales": True},
        {**PE_TOWER, "rope": RopeConfig(grid=(5, 5), offset=1.0, columns_first=True)},
    ),
    "pe_without_class_token": (
        {**PE, "class_token": False, "global_pool": "", "use_post_transformer_norm": False},
        {"qkv": ("qkv",), "rotates_neighbours": True},
        {
            **PE_TOWER,
            "has_class_token": False,
            "has_final_norm": False,
            "rope": RopeConfig(grid=(4, 6), columns_first=True),
        },
    ),
    "positions_of_patches_alone": (
        {"no_embed_class": True, **EVA02, "use_rot_pos_emb": False, "rope_rotate_half": True},
        {**GATED, "rotates_neighbours": False, "qkv": ("qkv",), "gate_up": ("fc1",)},
        {"has_class_position": False},
    ),
}
NAMES = {
    "patch_embed.proj.": "patch_embed.",
    ".mlp.fc1_g.": ".mlp.gate_proj.",
    ".mlp.fc1_x.": ".mlp.up_proj.",
    ".attn.q_bias": ".attn.q_proj.bias",
    ".attn.v_bias": ".attn.v_proj.bias",
}
"""What this package calls timm's tensors."""


@pytest.mark.parametrize("case", CASES)
def test_a_tower_equals_timms(case: str, tmp_path: Path) -> None:
    theirs_of, layers, tower = CASES[case]
    options = {"mlp_ratio": 85 / 32, "num_classes": 0, "global_pool": "token", **SIZES, **theirs_of}
    torch.manual_seed(0)
    reference = timm.models.eva.Eva(**options, norm_layer=lambda size, **kw: torch.nn.LayerNorm(size, eps=1e-6, **kw))
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    save_file(reference.eval().state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "siglip_vision_model"}')
    config = VitConfig(layers=LayerConfig(**{**LAYERS, **layers}), **{**TOWER, **tower})
    with torch.device("meta"):
        own = Vit(config)
    gated = config.layers.is_gated

    def name_of(name: str) -> str:
        for theirs, ours in {**NAMES, **({".mlp.fc2.": ".mlp.down_proj."} if gated else {})}.items():
            name = name.replace(theirs, ours)
        return name

    load_tower(own, Checkpoint.load(tmp_path), name_of, device=torch.device("cpu"), dtype=torch.float32)
    frames = torch.randn(3, 16, 24, 3)
    with torch.inference_mode():
        expected = reference.forward_features(frames.permute(0, 3, 1, 2))
        found = own(cut_patches(frames, (4, 4)))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)


def test_sizes_that_no_head_has_are_refused() -> None:
    from seesay.errors import CheckpointError

    with pytest.raises(CheckpointError, match="hidden_size=33 is not a multiple of its 2 heads"):
        LayerConfig(**{**LAYERS, "hidden_size": 33, "qkv": QKV})
