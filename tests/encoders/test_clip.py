from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from seesay.checkpoint import Checkpoint
from seesay.encoders.clip import ClipConfig, ClipEncoder, ClipTower, ProjectedClip
from seesay.encoders.layers import PixelNormalizer, cut_patches
from seesay.encoders.weights import load_tower
from seesay.errors import CheckpointError

CLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}


def make_config(**changes: Any) -> ClipConfig:
    values: dict[str, Any] = {
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "image_size": 12,
        "patch_size": 4,
        "activation": "quick_gelu",
        "norm_eps": 1e-5,
        "feature_layers": (2,),
        "has_class_token": True,
        "keeps_class_row": False,
        "out_hidden_size": 24,
        "projector_activation": "gelu",
        "projector_bias": True,
    }
    return ClipConfig(**{**values, **changes})


def test_every_feature_layer_equals_transformers(tmp_path: Path) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    reference = CLIPVisionModel(CLIPVisionConfig(num_hidden_layers=3, num_attention_heads=2, **CLIP)).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path)
    with torch.device("meta"):
        tower = ClipTower(make_config(feature_layers=(3, 0, 1)))

    def name_of(name: str) -> str | None:
        name = name.removeprefix("vision_model.")  # it depends on the version of transformers
        return None if name.startswith("post_layernorm.") else name

    load_tower(tower, Checkpoint.load(tmp_path), name_of, device=torch.device("cpu"), dtype=torch.float32)
    frames = torch.randn(4, 12, 12, 3)
    with torch.no_grad():
        outputs = reference(frames.permute(0, 3, 1, 2), output_hidden_states=True).hidden_states
        rows = tower(cut_patches(frames, (4, 4)))
    torch.testing.assert_close(rows, torch.cat([outputs[i] for i in (3, 0, 1)], dim=-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("keeps_class_row", [True, False])
def test_pictures_together_equal_each_alone(keeps_class_row: bool) -> None:
    torch.manual_seed(0)
    config = make_config(keeps_class_row=keeps_class_row)
    encoder = ClipEncoder(
        ProjectedClip(config).eval(), PixelNormalizer(mean=[0.5] * 3, std=[0.2] * 3, rescale_factor=1 / 255)
    )
    for parameter in encoder.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    features = [{"pixels": torch.randint(0, 256, (1, 12, 12, 3), dtype=torch.uint8).numpy()} for _ in range(3)]
    together = encoder.encode(features)
    assert [tuple(rows.shape) for rows in together] == [(config.num_patches + keeps_class_row, 24)] * 3
    for one, rows in zip(features, together):
        torch.testing.assert_close(encoder.encode([one])[0], rows, rtol=0, atol=1e-5)


def test_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'swishy'"):
        ProjectedClip(make_config(activation="swishy"))


def test_normalizer_equals_torchvisions_rounding() -> None:
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 1)
    scaled = [torch.tensor(v) * (1.0 / (1 / 255)) for v in (mean, std)]
    expected = (pixels.float() - scaled[0][:, None]) / scaled[1][:, None]
    found = PixelNormalizer(mean=mean, std=std, rescale_factor=1 / 255)(pixels, channel_dim=0)
    assert torch.equal(found, expected)
