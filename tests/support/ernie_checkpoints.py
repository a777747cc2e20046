"""The tiny ERNIE-4.5-VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import ImageFont
from transformers import (
    Ernie4_5_VLMoeConfig,
    Ernie4_5_VLMoeForConditionalGeneration,
    Ernie4_5_VLMoeImageProcessor,
    Ernie4_5_VLMoeProcessor,
    Ernie4_5_VLMoeVideoProcessor,
)

FONT = "Tiny-Regular.ttf"


def write_ernie_vl(path: Path) -> None:
    """One layer without experts before two with, those of media smaller; the font of times is Pillow's own."""
    from vl.checkpoints import CHATML, QWEN_TEXT, make_tokenizer, save_model

    template = CHATML
    for kind in ("image", "video"):
        marker = f"<|{kind.upper()}_START|><|{kind}@placeholder|><|{kind.upper()}_END|>"
        template = template.replace(f"@{kind}@", marker)
    names: dict[str, Any] = {
        f"{kind}_{end}token": text
        for kind in ("image", "video")
        for end, text in (
            ("", f"<|{kind}@placeholder|>"),
            ("start_", f"<|{kind.upper()}_START|>"),
            ("end_", f"<|{kind.upper()}_END|>"),
        )
    }
    tokenizer = make_tokenizer(template, **names)
    text = {
        "vocab_size": 288, **QWEN_TEXT, "num_hidden_layers": 3, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
        "moe_intermediate_size": [32, 24], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1,
        "moe_norm_min": 0.3,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_merge_size": 2,
    }  # fmt: skip
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in names}
    config = Ernie4_5_VLMoeConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    path.mkdir(parents=True, exist_ok=True)
    font = ImageFont.load_default(size=10)
    assert isinstance(font, ImageFont.FreeTypeFont)
    (path / FONT).write_bytes(font.font_bytes)
    save_model(Ernie4_5_VLMoeForConditionalGeneration(config), path)
    sizes = {"patch_size": 4, "merge_size": 2}
    Ernie4_5_VLMoeProcessor(
        image_processor=Ernie4_5_VLMoeImageProcessor(size={"shortest_edge": 256, "longest_edge": 6400}, **sizes),
        video_processor=Ernie4_5_VLMoeVideoProcessor(
            size={"shortest_edge": 128, "longest_edge": 2304}, font=str(path / FONT), **sizes
        ),
        tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip
