from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_contract import preprocess

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Modality
from seesay.vl.registry import find_family

VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False}, {}),
    ({"use_mean_pooling": False}, {}),
    ({"use_absolute_position_embeddings": False}, {}),
    ({"num_hidden_layers": 3}, {"vision_feature_layer": -2}),
    ({"image_size": [16, 16], "patch_size": [2, 2]}, {"image_seq_length": 16}),
]


@pytest.mark.parametrize(("vision", "outer"), VARIANTS)
def test_variants_equal_transformers(
    vision: dict[str, Any], outer: dict[str, Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    import shutil

    from transformers import InternVLConfig, InternVLForConditionalGeneration

    path = shutil.copytree(tiny_checkpoint("internvl"), tmp_path / "variant")
    config = InternVLConfig.from_pretrained(path).to_dict()
    config["vision_config"].update(vision)
    config.update(outer)
    torch.manual_seed(0)
    model = InternVLForConditionalGeneration(InternVLConfig(**config)).eval()
    for name, parameter in model.model.named_parameters():
        if "language" not in name:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name or "lambda" in name else 0.0, std=0.2)
    model.save_pretrained(path)
    checkpoint = Checkpoint.load(path)
    family = find_family(checkpoint.architecture)(checkpoint, Tokenizer.load(path))
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    frames = np.random.default_rng(0).integers(0, 256, (1, 40, 90, 3), dtype=np.uint8)
    features = preprocess(family, DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32)))
    rows = encoder.encode([features])[0]
    pixels = encoder.load_pixels(features).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = model.model.get_image_features(pixels).pooler_output.flatten(0, 1)
    assert expected.std() > 0.05
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)


def test_layer_that_is_not_there_is_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("internvl")
    checkpoint = Checkpoint.load(path, {"vision_feature_layer": 9})
    family = find_family(checkpoint.architecture)(checkpoint, Tokenizer.load(path))
    with pytest.raises(CheckpointError, match="vision_feature_layer=9"):
        family.build_encoder(torch.device("cpu"), torch.float32)
