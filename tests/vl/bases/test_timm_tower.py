"""Towers that a configuration names as models of timm: which of them are made, by whom, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import edit_json, load_family
from safetensors.torch import load_file, save_file

from seesay.encoders.towers.timm_tower import TimmTower as TimmModule
from seesay.encoders.towers.vit import Vit
from seesay.errors import CheckpointError
from seesay.install_command import install_command
from seesay.vl.bases.timm_tower import PERCEPTION_ENCODERS

CPU = torch.device("cpu")


def with_vision(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of the checkpoint with another `architecture` or other `model_args`; None takes an argument away."""

    def edit(config: dict[str, Any]) -> None:
        vision = config["vision_config"]
        vision["architecture"] = changes.pop("architecture", vision["architecture"])
        vision["model_args"] = {**vision["model_args"], **changes}

    return edit_json(source, target, "config.json", edit)


@pytest.mark.parametrize(
    ("name", "tower"), [("perception_lm", Vit), ("perception_lm_timm", TimmModule), ("fast_vlm", TimmModule)]
)
def test_who_computes_a_tower(name: str, tower: type, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint(name))
    encoder: Any = family.build_encoder(CPU, torch.float32)
    assert isinstance(encoder.model.tower, tower)


@pytest.mark.parametrize("architecture", PERCEPTION_ENCODERS)
def test_own_sizes_are_timms(architecture: str) -> None:
    """Each has timm's tensors, with timm's shapes."""
    timm = pytest.importorskip("timm", reason="sizes are compared with those of timm")
    from seesay.vl.bases.timm_tower import TimmTower

    args = {"global_pool": "", "use_fc_norm": False}
    own = TimmTower(architecture=architecture, args=args, where="").own_config()
    with torch.device("meta"):
        theirs = timm.create_model(architecture, pretrained=False, num_classes=0, **args)
        ours = Vit(own)
    names = {name.replace("patch_embed.proj.", "patch_embed."): p.numel() for name, p in theirs.named_parameters()}
    assert names == {name: p.numel() for name, p in ours.named_parameters()}
    angles = ours._angles
    assert angles is not None
    rope = timm.create_model(architecture, pretrained=False, num_classes=0, depth=1, **args).rope
    sines = rope.get_embed().chunk(2, dim=-1)[0][:, ::2]
    torch.testing.assert_close(angles[1][int(own.has_class_token) :], sines, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "hf-hub:someone/model"}, "architecture must be the name of a timm model, got 'hf-hub:"),
        ({"architecture": "local-dir:/etc"}, "architecture must be the name"),
        ({"architecture": "../../model"}, "architecture must be the name"),
        ({"architecture": 3}, "Field 'architecture' expected str"),
        ({"pretrained": True}, "model_args.pretrained is not supported"),
        ({"checkpoint_path": "/etc/passwd"}, "model_args.checkpoint_path is not supported"),
        ({"pretrained_cfg": {"url": "http://localhost/x"}}, "model_args.pretrained_cfg is not supported"),
        ({"pretrained_cfg_overlay": {"hf_hub_id": "a/b"}}, "model_args.pretrained_cfg_overlay is not supported"),
        ({"cache_dir": "/tmp"}, "model_args.cache_dir is not supported"),
        ({"features_only": True}, "model_args.features_only is not supported"),
        ({"scriptable": True}, "model_args.scriptable is not supported"),
        ({"norm_layer": "torch.load"}, "model_args.norm_layer is not supported"),
        ({"depth": 10**9}, "model_args.depth must be an integer from 1 to 1024"),
        ({"depth": True}, "model_args.depth must be an integer from 1 to 1024, got True"),
        ({"embed_dim": -32}, "model_args.embed_dim must be an integer from 1"),
        ({"img_size": [20, 20, 20]}, "model_args.img_size must be a length or two"),
        ({"attn_pool_num_heads": 10**9}, "model_args.attn_pool_num_heads must be an integer from 1 to"),
        ({"layers": [10**9]}, "model_args.layers must be up to 16 numbers from 1 to 32768"),
        ({"img_size": [24, 24]}, "makes pictures of (20, 20), the tower takes (24, 24)"),
        ({"mlp_ratio": 1e9}, "model_args.mlp_ratio must be a number above 0"),
        ({"global_pool": "attention"}, "model_args.global_pool must be '', 'avg', 'token' or 'map'"),
        ({"qkv_bias": "yes"}, "model_args.qkv_bias must be true or false"),
    ],
    ids=str,
)
def test_a_hostile_tower_is_refused(
    changes: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """By name, before timm is asked for anything."""
    import re

    path = with_vision(tiny_checkpoint("perception_lm"), tmp_path / "hostile", **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_family(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "vit_of_nobody"}, "has no model 'vit_of_nobody'"),
        ({"architecture": "resnet18"}, "timm cannot make 'resnet18'"),
        ({"architecture": "vit_base_patch16_224", "num_heads": 5}, "timm cannot make 'vit_base_patch16_224'"),
        ({"architecture": "vit_base_patch16_224", "depth": 3}, "blocks.2.*is missing"),
        ({"architecture": "vit_base_patch16_224", "depth": 1}, "unexpected tensor.*blocks.1"),
        ({"architecture": "vit_base_patch16_224", "embed_dim": 64}, "has shape .*, the config says"),
        ({"architecture": "vit_base_patch16_224", "class_token": False}, "unexpected tensor.*cls_token"),
    ],
    ids=str,
)
def test_a_tower_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = with_vision(tiny_checkpoint("perception_lm_timm"), tmp_path / "other", **changes)
    family, _ = load_family(path)
    with pytest.raises(CheckpointError, match=message):
        family.build_encoder(CPU, torch.float32)


def test_rows_that_the_configuration_does_not_say(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["vision_use_cls_token"] = False

    for name, message in (
        ("perception_lm_timm", r"rows \[26, 32\] of a picture, .* \[25, 32\]"),
        ("perception_lm", ""),
    ):
        family, _ = load_family(edit_json(tiny_checkpoint(name), tmp_path / name, "config.json", edit))
        with pytest.raises(CheckpointError, match=message or "has_class_token=True"):
            family.build_encoder(CPU, torch.float32)


def test_buffers_of_a_checkpoint_are_loaded(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Means and variances of batch norms are weights: a checkpoint without one of them is refused."""
    path = edit_json(tiny_checkpoint("fast_vlm"), tmp_path / "whole", "config.json", lambda config: None)
    tensors = load_file(path / "model.safetensors")
    means = sorted(name for name in tensors if name.endswith("running_mean"))
    encoder: Any = load_family(path)[0].build_encoder(CPU, torch.float32)
    module = encoder.model.tower.module
    assert means and not any(tensor.is_meta for tensor in module.state_dict().values())
    tensors[means[0]] = tensors[means[0]] + 1
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    again: Any = load_family(path)[0].build_encoder(CPU, torch.float32)
    own = means[0].removeprefix("model.vision_tower.timm_model.")
    torch.testing.assert_close(again.model.tower.module.state_dict()[own], module.state_dict()[own] + 1)
    del tensors[means[0]]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="running_mean' is missing"):
        load_family(path)[0].build_encoder(CPU, torch.float32)


def test_without_timm(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The package's own tower needs no timm; without it another tower is an error that names the extra."""
    code = """
import sys, json
sys.modules["timm"] = None
from pathlib import Path
import torch
from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.vl.registry import find_family
for folder in map(Path, sys.argv[1:]):
    checkpoint = Checkpoint.load(folder)
    family = find_family(checkpoint.architecture, checkpoint.tower_type)(checkpoint, Tokenizer.load(folder))
    try:
        print(type(family.build_encoder(torch.device("cpu"), torch.float32)).__name__)
    except ImportError as error:
        print(error)
"""
    folders = [str(tiny_checkpoint(name)) for name in ("perception_lm", "fast_vlm")]
    done = subprocess.run(
        [sys.executable, "-c", code, *folders], check=True, capture_output=True, text=True, timeout=300
    )
    made, refused = done.stdout.splitlines()
    assert made == "TileEncoder"
    assert refused == f"the vision tower 'fastvit_mci3' requires the package 'timm': {install_command('timm')}"
