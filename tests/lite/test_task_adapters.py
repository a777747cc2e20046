"""The adapters that InternLM-XComposer2.5 has in its checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import read_weights
from asking import make_picture
from safetensors.torch import save_file

from seesay import EngineConfig, GenerationConfig, cli, lite, pipeline
from seesay.errors import CheckpointError

PRODUCTS = {"web": (8, ("web",)), "write": (10, ("sft", "dpo"))}
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, do_sample=False)
PROMPTS: list[Any] = ["what is it?", ("the thing of the other", make_picture(60, 50, 1))]


@pytest.fixture(scope="module")
def plain(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("xcomposer2d5")


@pytest.fixture(scope="module")
def checkpoint(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The products lie beside the weights of all linear layers, as published."""
    folder = shutil.copytree(plain, tmp_path_factory.mktemp("xcomposer") / "model")
    weights, generator = read_weights(plain), torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(".Plora_A.weight")]:
        module = name.removesuffix(".Plora_A.weight")
        num_outputs, num_inputs = weights[f"{module}.weight"].shape
        for product, rank in (("web", 8), ("sft", 4), ("dpo", 6)):
            for factor, shape in (("A", (rank, num_inputs)), ("B", (num_outputs, rank))):
                values = 0.2 * torch.randn(shape, generator=generator)
                weights[f"{module}.lora_{product}_{factor}.weight"] = values.to(weights[name].dtype)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def tasks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "tasks"
    assert cli.main(["lite", "extract_tasks", str(checkpoint), "--work-dir", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["web", "write"]
    return folder


@pytest.fixture(scope="module")
def merged(checkpoint: Path, tasks: Path) -> dict[str, Path]:
    return {task: lite.merge(checkpoint, tasks / task, tasks.with_name(f"merged {task}")) for task in PRODUCTS}


def ask(path: Path, names: list[str | None], **options: Any) -> list[list[int]]:
    with pipeline(str(path), EngineConfig(device_type="cpu", session_len=512, **options)) as pipe:
        prompts = [prompt for _ in names for prompt in PROMPTS]
        answers = pipe(prompts, OPTIONS, adapter_name=[name for name in names for _ in PROMPTS])
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("task", PRODUCTS)
def test_merged_weights_are_the_published_sums(task: str, checkpoint: Path, merged: dict[str, Path]) -> None:
    before, found = read_weights(checkpoint), read_weights(merged[task])
    num_changed = 0
    for name, weight in before.items():
        module = name.removesuffix(".weight")
        total = weight.float()
        for product in PRODUCTS[task][1] if f"{module}.Plora_A.weight" in before else ():
            a, b = (before[f"{module}.lora_{product}_{factor}.weight"].float() for factor in "AB")
            total = total + b @ a
            num_changed += 1
        torch.testing.assert_close(
            found[name].float(), total, atol=2e-6, rtol=1e-2 if weight.dtype.itemsize < 4 else 1e-5
        )
    assert num_changed > 0


def test_they_are_served_beside_the_base(plain: Path, checkpoint: Path, tasks: Path, merged: dict[str, Path]) -> None:
    """All in one batch, also for pictures, whose rows have an addition of their own."""
    adapters = {task: str(tasks / task) for task in PRODUCTS}
    found = ask(checkpoint, [None, *PRODUCTS], adapters=adapters)
    expected = [ask(path, [None]) for path in (plain, *merged.values())]
    assert found == [tokens for answers in expected for tokens in answers]
    assert len({str(answers) for answers in expected}) == 3


def test_another_checkpoint_has_none(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has no whole adapter lora_web: give a checkpoint of InternLM-XComp"):
        lite.extract_tasks(plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()
