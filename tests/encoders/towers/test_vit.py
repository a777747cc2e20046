from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_work import make_gpu_stream

from seesay.checkpoint import Checkpoint
from seesay.encoders.towers.layers import PixelNormalizer, cut_patches
from seesay.encoders.towers.projected_vit import ProjectedVit, ProjectorConfig, make_encoder
from seesay.encoders.towers.vit import RopeConfig, Vit, VitConfig
from seesay.encoders.towers.vit_layers import LayerConfig
from seesay.encoders.towers.weights import load_tower
from seesay.errors import CheckpointError
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.weight_map import WeightMap

CLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}


def make_config(activation: str = "quick_gelu", **changes: Any) -> VitConfig:
    layers = LayerConfig(hidden_size=32, num_heads=2, intermediate_size=48, activation=activation, norm_eps=1e-5)
    values: dict[str, Any] = {
        "layers": layers,
        "image_size": (12, 12),
        "patch_size": (4, 4),
        "feature_layers": (2,),
        "has_class_token": True,
        "has_patch_bias": False,
        "has_input_norm": True,
        "has_batch_axes": False,
    }
    return VitConfig(**{**values, **changes})


def test_every_feature_layer_equals_transformers(tmp_path: Path) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    reference = CLIPVisionModel(CLIPVisionConfig(num_hidden_layers=3, num_attention_heads=2, **CLIP)).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path)
    with torch.device("meta"):
        tower = Vit(make_config(feature_layers=(3, 0, 1)))

    def name_of(name: str) -> str | None:
        name = name.removeprefix("vision_model.")  # it depends on the version of transformers
        if name.startswith("post_layernorm."):
            return None
        weights = WeightMap(decoder={}, tower={"": "tower."}, tower_patterns=CLIP_TOWER)
        return str(weights.tower_name(name)).removeprefix("tower.")

    load_tower(tower, Checkpoint.load(tmp_path), name_of, device=torch.device("cpu"), dtype=torch.float32)
    frames = torch.randn(4, 12, 12, 3)
    with torch.no_grad():
        outputs = reference(frames.permute(0, 3, 1, 2), output_hidden_states=True).hidden_states
        rows = tower(cut_patches(frames, (4, 4)))
    torch.testing.assert_close(rows, torch.cat([outputs[i] for i in (3, 0, 1)], dim=-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("keeps_class_row", [True, False])
def test_pictures_together_equal_each_alone(keeps_class_row: bool) -> None:
    torch.manual_seed(0)
    config, projector = make_config(), ProjectorConfig(out_hidden_size=24, keeps_class_row=keeps_class_row)
    normalizer = PixelNormalizer(mean=[0.5] * 3, std=[0.2] * 3, rescale_factor=1 / 255)
    encoder = make_encoder(ProjectedVit(Vit(config), config.rows, projector).eval(), normalizer, 24)
    for parameter in encoder.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    features = [{"pixels": torch.randint(0, 256, (1, 12, 12, 3), dtype=torch.uint8).numpy()} for _ in range(3)]
    together = encoder.encode(features)
    assert [tuple(rows.shape) for rows in together] == [(config.num_patches + keeps_class_row, 24)] * 3
    for one, rows in zip(features, together):
        torch.testing.assert_close(encoder.encode([one])[0], rows, rtol=0, atol=1e-5)


PE = LayerConfig(
    hidden_size=64,
    num_heads=2,
    intermediate_size=96,
    activation="gelu",
    norm_eps=1e-5,
    qkv=("qkv",),
    rotates_neighbours=True,
    has_scales=True,
)
EVA02 = replace(PE, activation="silu", is_gated=True, norms_heads=True, norms_inner=True, has_scales=False)


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [PE, EVA02, replace(PE, norms_updates=True, has_scales=False)])
@pytest.mark.parametrize("has_class_token", [True, False])
def test_a_gpu_computes_as_the_host_does(layers: LayerConfig, has_class_token: bool) -> None:
    """Rotary positions, scales, gates and norms of all kinds; captured from the third call on."""
    from copy import deepcopy

    from seesay.encoders.towers.weights import finish_layers

    torch.manual_seed(0)
    config = make_config(
        layers=layers,
        has_class_token=has_class_token,
        rope=RopeConfig(grid=(5, 5), offset=1.0, columns_first=True),
        has_batch_axes=True,
    )
    model = ProjectedVit(Vit(config), config.rows, ProjectorConfig(out_hidden_size=24, pool=2)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    on_gpu = deepcopy(model).cuda()
    for each in (model, on_gpu):
        finish_layers(each)
    normalizer = PixelNormalizer(mean=[0.5] * 3, std=[0.2] * 3, rescale_factor=1 / 255)
    host, device = (make_encoder(each, normalizer, 24) for each in (model, on_gpu))
    features = [{"pixels": torch.randint(0, 256, (3, 12, 12, 3), dtype=torch.uint8).numpy()}]
    [expected] = host.encode(features)
    with torch.cuda.stream(make_gpu_stream()):
        for _ in range(5):
            [found] = device.encode(features)
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
    assert device._graphed.num_graphs == 1


def test_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'swishy'"):
        Vit(make_config("swishy"))


def test_normalizer_equals_torchvisions_rounding() -> None:
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 1)
    scaled = [torch.tensor(v) * (1.0 / (1 / 255)) for v in (mean, std)]
    expected = (pixels.float() - scaled[0][:, None]) / scaled[1][:, None]
    found = PixelNormalizer(mean=mean, std=std, rescale_factor=1 / 255)(pixels, channel_dim=0)
    assert torch.equal(found, expected)
