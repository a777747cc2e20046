"""Patterns of the names that checkpoints give to a tower's tensors, and what the tower calls these: see
`WeightMap.tower_patterns`."""

from __future__ import annotations

Patterns = tuple[tuple[str, str], ...]

CLIP_TOWER: Patterns = (
    (r"^tower\.embeddings\.class_embedding$", "tower.cls_token"),
    (r"^tower\.embeddings\.patch_embedding\.", "tower.patch_embed."),
    (r"^tower\.embeddings\.position_embedding\.weight$", "tower.pos_embed"),
    (r"^tower\.pre_layrnorm\.", "tower.norm_pre."),
    (r"^tower\.post_layernorm\.", "tower.norm."),
    (r"^tower\.encoder\.layers\.", "tower.blocks."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.self_attn\.out_proj\.", ".attn.proj."),
    (r"\.self_attn\.", ".attn."),
)
"""CLIP and SigLIP."""

TIMM_TOWER: Patterns = ((r"^tower\.patch_embed\.proj\.", "tower.patch_embed."),)
"""timm's SigLIP, as DeepSeek-VL's authors have it."""

INTERN_TOWER: Patterns = (
    (r"^tower\.embeddings\.(?:cls_token|class_embedding)$", "tower.cls_token"),
    (r"^tower\.embeddings\.patch_embedding(?:s\.projection)?\.", "tower.patch_embed."),
    (r"^tower\.embeddings\.position_embeddings?$", "tower.pos_embed"),
    (r"^tower\.layernorm\.", "tower.norm."),
    (r"^tower\.encoder\.layers?\.", "tower.blocks."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.attention\.", ".attn."),
    (r"\.(?:lambda_|ls)(\d)$", r".gamma_\1"),
)
"""InternViT, in Transformers' layout and in that of its authors."""

OPEN_CLIP_TOWER: Patterns = (
    (r"^tower\.conv1\.", "tower.patch_embed."),
    (r"^tower\.positional_embedding$", "tower.pos_embed"),
    (r"^tower\.ln_pre\.", "tower.norm_pre."),
    (r"^tower\.transformer\.resblocks\.", "tower.blocks."),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"^(tower\..*)\.attn\.out_proj\.", r"\1.attn.proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)
"""OpenCLIP's, as Qwen-VL has it."""

AIM_TOWER: Patterns = (
    (r"^tower\.embeddings\.patch_embedding\.", "tower.patch_embed."),
    (r"^tower\.embeddings\.position_embedding\.weight$", "tower.pos_embed"),
    (r"^tower\.embeddings\.rms_norm\.", "tower.norm_patches."),
    (r"^tower\.rms_norm\.", "tower.norm."),
    (r"^tower\.encoder\.layers\.", "tower.blocks."),
    (r"\.rms_norm(\d)\.", r".norm\1."),
    (r"\.attention\.out_proj\.", ".attn.proj."),
    (r"\.attention\.", ".attn."),
    (r"\.ffn\.", ".mlp."),
    (r"^tower\.preprocessor\.patchifier\.proj\.", "tower.patch_embed."),
    (r"^tower\.preprocessor\.patchifier\.norm\.", "tower.norm_patches."),
    (r"^tower\.preprocessor\.pos_embed$", "tower.pos_embed"),
    (r"^tower\.trunk\.blocks\.", "tower.blocks."),
    (r"^(tower\.blocks\..*)\.norm_(\d)\.", r"\1.norm\2."),
    (r"^(tower\.blocks\..*)\.mlp\.fc1\.", r"\1.mlp.gate_proj."),
    (r"^(tower\.blocks\..*)\.mlp\.fc2\.", r"\1.mlp.down_proj."),
    (r"^(tower\.blocks\..*)\.mlp\.fc3\.", r"\1.mlp.up_proj."),
)
"""AIMv2, in Transformers' layout and in that of its authors."""

SAM_NECK: Patterns = (
    (r"neck\.0\.", "neck.conv1."),
    (r"neck\.1\.", "neck.norm1."),
    (r"neck\.2\.", "neck.conv2."),
    (r"neck\.3\.", "neck.norm2."),
)
"""What is behind a SAM, saved as a sequence."""

SAM_TOWER: Patterns = (
    (r"^high\.patch_embed\.proj(?:ection)?\.", "high.patch_embed."),
    (r"^high\.layers\.", "high.blocks."),
    (r"^(high\..*)\.layer_norm(\d)\.", r"\1.norm\2."),
    (r"^(high\.blocks\.\d+)\.mlp\.lin(\d)\.", r"\1.mlp.fc\2."),
)
"""SAM, beside another tower."""

MOLMO_TOWER: Patterns = (
    (r"^tower\.class_embedding$", "tower.cls_token"),
    (r"^tower\.positional_embedding$", "tower.pos_embed"),
    (r"^tower\.patch_embedding\.", "tower.patch_embed."),
    (r"^tower\.pre_ln\.", "tower.norm_pre."),
    (r"^tower\.transformer\.resblocks\.", "tower.blocks."),
    (r"^(tower\..*)\.attention\.w([qkv])\.", r"\1.attn.\2_proj."),
    (r"^(tower\..*)\.attention\.wo\.", r"\1.attn.proj."),
    (r"^(tower\..*)\.attention_norm\.", r"\1.norm1."),
    (r"^(tower\..*)\.ffn_norm\.", r"\1.norm2."),
    (r"^(tower\..*)\.feed_forward\.w(\d)\.", r"\1.mlp.fc\2."),
)
"""CLIP as Molmo's authors call its tensors."""

TWO_LAYERS: Patterns = ((r"^projector\.0\.", "projector.linear_1."), (r"^projector\.2\.", "projector.linear_2."))
"""A projector of two linear layers, saved as a sequence."""

WHISPER_TOWER: Patterns = (
    (r"^embed_positions\.weight$", "positions"),
    (r"^layer_norm\.", "norm."),
    (r"^layers\.", "blocks."),
    (r"\.self_attn_layer_norm\.", ".norm1."),
    (r"\.final_layer_norm\.", ".norm2."),
    (r"\.self_attn\.out_proj\.", ".attn.proj."),
    (r"\.self_attn\.", ".attn."),
    (r"\.(fc\d)\.", r".mlp.\1."),
)
"""Whisper's encoder."""
