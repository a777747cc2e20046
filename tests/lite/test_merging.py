"""An adapter that is merged into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapter_folders import read_weights, write_adapter, write_folder

from seesay import cli, lite
from seesay.errors import CheckpointError, ConfigError

MODULES = r".*(q_proj|down_proj|fc1|mlp\.up_proj)"


@pytest.mark.parametrize("name", ["llama", "qwen2_5_vl"])
def test_weights_are_the_sums(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Also those of a vision tower."""
    path = tiny_checkpoint(name)
    write_adapter(path, tmp_path / "adapter", MODULES, merged=tmp_path / "expected")
    assert cli.main(["lite", "merge", str(path), str(tmp_path / "adapter"), "--work-dir", str(tmp_path / "out")]) == 0
    found, expected, plain = map(read_weights, (tmp_path / "out", tmp_path / "expected", path))
    assert found.keys() == expected.keys()
    changed = {name for name in plain if not torch.equal(plain[name], found[name])}
    assert changed == {name for name in plain if not torch.equal(plain[name], expected[name])} and changed
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor)
    assert {file.name for file in path.iterdir()} == {file.name for file in (tmp_path / "out").iterdir()}


def test_what_cannot_be_merged(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("llama")
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    write_folder(
        tmp_path / "a", {f"{name}.lora_A.weight": torch.ones(4, 3), f"{name}.lora_B.weight": torch.ones(64, 4)}
    )
    with pytest.raises(CheckpointError, match=r"is for a weight \[64, 3\], 'model.layers.0.self_attn.q_proj.weight'"):
        lite.merge(path, tmp_path / "a", tmp_path / "out")
    other = name.replace("layers.0", "layers.7")
    write_folder(
        tmp_path / "a", {f"{other}.lora_A.weight": torch.ones(4, 3), f"{other}.lora_B.weight": torch.ones(4, 4)}
    )
    with pytest.raises(CheckpointError, match=r"has no weight of 'model.layers.7.self_attn.q_proj'"):
        lite.merge(path, tmp_path / "a", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="work_dir must be a new or an empty folder"):
        lite.merge(path, tmp_path / "a", tmp_path / "a")
