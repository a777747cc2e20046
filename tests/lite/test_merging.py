"""An adapter that is merged into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapter_folders import read_weights, write_adapter, write_folder
from safetensors.torch import load_file

from seesay import EngineConfig, cli, lite, pipeline
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


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_magnitudes_are_the_lengths_of_the_rows(
    suffix: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As PEFT has them in its files, or names them itself. An engine refuses them, and says what to do."""
    path = tiny_checkpoint("llama")
    write_adapter(path, tmp_path / "adapter", MODULES, merged=tmp_path / "sums")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    sums, lengths = read_weights(tmp_path / "sums"), dict[str, torch.Tensor]()
    for name in [name for name in tensors if name.endswith("lora_B.weight")]:
        module = name.removesuffix(".lora_B.weight")
        lengths[module.removeprefix("base_model.model.")] = magnitude = torch.rand(len(tensors[name])) + 0.5
        tensors[f"{module}.lora_magnitude_vector{suffix}"] = magnitude
    write_folder(tmp_path / "dora", tensors, use_dora=True)
    found = read_weights(lite.merge(path, tmp_path / "dora", tmp_path / "out"))
    for module, magnitude in lengths.items():
        total = sums[f"{module}.weight"].float()
        expected = magnitude[:, None] * total / total.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found[f"{module}.weight"].float(), expected, atol=2e-3, rtol=1e-2)
    with pytest.raises(CheckpointError, match=r"DoRA.* are not served beside their base: merge it by `seesay lite"):
        pipeline(str(path), EngineConfig(device_type="cpu", adapters={"own": str(tmp_path / "dora")}))
    some = {name: tensor for name, tensor in tensors.items() if "layers.0" in name or "magnitude" not in name}
    write_folder(tmp_path / "some", some, use_dora=True)
    with pytest.raises(CheckpointError, match=r"lora_magnitude_vector of '.*' is missing, and adapter_config.json has"):
        lite.merge(path, tmp_path / "some", tmp_path / "none")
    write_folder(tmp_path / "plain", tensors)
    with pytest.raises(CheckpointError, match=r"is there, and adapter_config.json has use_dora: false"):
        lite.merge(path, tmp_path / "plain", tmp_path / "none")


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
