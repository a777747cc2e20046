"""The weights of a whole model, decoder and tower: where they may come from, and what is done with those of both.

tests/engine/test_weights.py and test_sleep.py have whole engines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Axis, Part
from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.config import EngineConfig
from seesay.engine.core import model_weights
from seesay.engine.core.model_weights import ModelWeights, _find_difference
from seesay.errors import CheckpointError
from seesay.vl.weight_map import WeightMap

CPU, GPU, OTHER_GPU = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
WEIGHTS = WeightMap(decoder={"model.": "", "lm_head.": "lm_head."}, tower={"visual.": ""})


class Layers:
    """Weights of a part whose tensors begin with `prefix`, or 'model.both.': 'w', and 'v' as long as the prefix. Notes
    what is done."""

    def __init__(self, prefix: str, noted: list[str], device: torch.device = CPU) -> None:
        self.prefix, self.device, self.noted = prefix, device, noted
        self.fails: set[str] = set()
        self.own: list[Any] = [SimpleNamespace(is_cpu=device is CPU, data_ptr=lambda: len(prefix), of=prefix)]

    def name_of(self, name: str) -> str | None:
        prefixes = (prefix for prefix in ("model.both.", self.prefix) if name.startswith(prefix))
        return next((name.removeprefix(prefix) for prefix in prefixes), None)

    def is_unread(self, name: str) -> bool:
        return name == "unread"

    def parts(self) -> dict[str, Part]:
        sizes = {"w": 3, "v": len(self.prefix)}
        return {name: Part(tensor=name, axes=(Axis(dim=0, size=size),)) for name, size in sizes.items()}

    def tensors(self) -> list[Any]:
        return self.own

    def check(self, source: Any, *, is_partial: bool) -> None:
        self.note("check", is_partial)

    def replace(self, source: Any, *, is_partial: bool) -> None:
        self.note("replace", is_partial)

    def drop(self) -> None:
        self.note("drop")

    def note(self, what: str, is_partial: bool = False) -> None:
        self.noted.append(f"{what} {self.prefix}{' partly' * is_partial}")


class Whole:
    """The weights of a decoder and a tower."""

    def __init__(self, checkpoint: Any, *devices: torch.device, **options: Any) -> None:
        self.noted: list[str] = []
        devices = devices or (CPU, CPU)
        self.decoder = Layers("model.", self.noted, devices[0])
        self.tower = Layers("visual.", self.noted, devices[-1])
        encoder: Any = SimpleNamespace(weights=self.tower, forget_graphs=lambda: self.noted.append("forget graphs"))
        model: Any = SimpleNamespace(checkpoint=checkpoint, family=SimpleNamespace(weights=WEIGHTS))
        decoder: Any = self.decoder
        config = EngineConfig(device_type="cpu", **options)
        self.weights = ModelWeights(model, config, decoder, encoder if len(devices) > 1 else None)


@pytest.fixture
def folder(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture
def whole(folder: Path) -> Whole:
    return Whole(Checkpoint.load(folder))


def copy_folder(source: Path, target: Path, added: dict[str, torch.Tensor] | None = None, **changes: Any) -> str:
    """Copy a model folder with other values in its config.json, and more tensors."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    if added:
        save_file(load_file(target / "model.safetensors") | added, target / "model.safetensors")
    return str(target)


def give(name: str, *shape: int, dtype: Any = np.float32) -> GivenTensor:
    return GivenTensor.of(name, np.zeros(shape, dtype))


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_the_same_model_is_opened(whole: Whole, folder: Path, tmp_path: Path) -> None:
    other = copy_folder(folder, tmp_path / "other", use_cache=False, transformers_version="0.1", torch_dtype="float16")
    opened = whole.weights.open_folder(other)
    assert opened.path == Path(other) and "partial=True" in opened.remedy and whole.weights.folder == str(folder)
    assert opened.code is None


def test_options_of_the_engine_hold_for_the_new_folder_too(folder: Path, tmp_path: Path) -> None:
    overrides = {"rms_norm_eps": 0.5}
    whole = Whole(Checkpoint.load(folder, overrides), hf_overrides=overrides)
    whole.weights.open_folder(copy_folder(folder, tmp_path / "other"))
    with pytest.raises(CheckpointError, match="load it anew"):
        Whole(Checkpoint.load(folder), hf_overrides=overrides).weights.open_folder(str(tmp_path / "other"))


def test_another_model_is_named_by_its_first_difference(whole: Whole, folder: Path, tmp_path: Path) -> None:
    other = copy_folder(folder, tmp_path / "other", rms_norm_eps=0.25)
    with pytest.raises(CheckpointError, match=r"config.json: rms_norm_eps is 0.25, the loaded model has 1e-06: load"):
        whole.weights.open_folder(other)


def test_a_tensor_that_the_model_has_no_use_for_is_named(whole: Whole, folder: Path, tmp_path: Path) -> None:
    known = {"model.new.weight": torch.zeros(1)}
    more = known | {f"other.{letter}": torch.zeros(1) for letter in "tsrqponmlkjihgfedcba"}
    other = copy_folder(folder, tmp_path / "other", more)
    with pytest.raises(CheckpointError, match=r"other: unexpected tensor 'other.a': the model has none of this name"):
        whole.weights.open_folder(other)
    whole.weights.open_folder(copy_folder(folder, tmp_path / "known", known))
    Whole(Checkpoint.load(tmp_path / "other")).weights.open_folder(other)


def test_another_format_is_refused(whole: Whole, folder: Path, tmp_path: Path) -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
    packed = copy_folder(folder, tmp_path / "packed", quantization_config=awq)
    with pytest.raises(CheckpointError, match=r"config.json: its quantization_config is not that of the loaded model"):
        whole.weights.open_folder(packed)
    plain = Checkpoint.load(folder, quantization="fp8")
    quantizing = Whole(plain, quantization="fp8").weights
    with pytest.raises(CheckpointError, match=r"packed is quantized already \(awq.*quantization='fp8' quantizes plain"):
        quantizing.open_folder(packed)
    opened = quantizing.open_folder(str(folder))
    assert opened.quantization is not None and opened.quantization == plain.quantization


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, None),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, ("a", 1, 2)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", None, 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, None)),
        ({"use_cache": 1, "dtype": 1, "torch_dtype": 1, "transformers_version": 1, "quantization_config": 1}, {}, None),
        ({"t": {"x": 1}}, {"t": {"x": 2}}, ("t.x", 1, 2)),
        ({"t": {"x": {"y": 1}}}, {"t": {"x": {"y": 2}}}, ("t.x.y", 1, 2)),
        ({"t": {"dtype": 1}, "u": 1}, {"t": {"dtype": 2}, "u": 2}, ("u", 1, 2)),
        ({"t": {"x": 1}}, {"t": 5}, ("t", {"x": 1}, 5)),
        ({"t": 5}, {"t": {"x": 1}}, ("t", 5, {"x": 1})),
    ],
)
def test_the_first_difference_of_two_configurations(mine: Any, theirs: Any, found: Any) -> None:
    assert _find_difference(mine, theirs) == found


# --- tensors that are handed over -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (give("model.w", 3), None),
        (give("visual.w", 3), None),
        (give("model.unread", 9), None),
        (give("model.rotary_emb.inv_freq", 9), None),
        (give("model.w", 4), r"'model.w' has shape \[4\], the config says \[3\]"),
        (give("visual.w", 4), r"'visual.w' has shape \[4\]"),
        (give("model.w", 3, dtype=np.int64), "'model.w' is stored as I64, it must be"),
        (give("model.both.w", 3), None),
        (give("model.both.v", 6), r"'model.both.v' has shape \[6\], the config says \[7\]"),
        (give("visual.odd", 3), "^update_weights: unexpected tensor 'visual.odd'"),
        (give("odd.w", 3), "^update_weights: unexpected tensor 'odd.w': the model has none of this name"),
    ],
    ids=lambda each: each.name if isinstance(each, GivenTensor) else "",
)
def test_a_tensor_must_fit_the_part_that_has_it(whole: Whole, tensor: GivenTensor, error: str | None) -> None:
    if error is None:
        whole.weights.check_given(tensor)
        return
    with pytest.raises(CheckpointError, match=error):
        whole.weights.check_given(tensor)


def test_a_source_must_have_weights_of_some_part(whole: Whole) -> None:
    for name in ("model.w", "visual.w"):
        whole.weights.check(HandedTensors({"odd": give("odd", 1), name: give(name, 3)}), is_partial=True)
        assert whole.noted == ["check model. partly", "check visual. partly"]
        whole.noted.clear()
    for source in (HandedTensors({"odd": give("odd", 1)}), HandedTensors({})):
        with pytest.raises(CheckpointError, match=r"^update_weights: it has no weights of this model"):
            whole.weights.check(source, is_partial=True)
        assert not whole.noted
        whole.weights.check_layers(source, is_partial=False)
        assert whole.noted == ["check model.", "check visual."]
        whole.noted.clear()


# --- where they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_partial", [False, True])
def test_decoder_and_tower_are_replaced_and_graphs_forgotten(whole: Whole, is_partial: bool) -> None:
    whole.weights.replace(HandedTensors({}), is_partial=is_partial)
    how = " partly" if is_partial else ""
    assert whole.noted == [f"replace model.{how}", f"replace visual.{how}", "forget graphs"]


def test_a_model_without_a_tower_has_one_part(folder: Path) -> None:
    whole = Whole(Checkpoint.load(folder), CPU)
    whole.weights.replace(HandedTensors({}), is_partial=False)
    whole.weights.drop()
    assert whole.noted == ["replace model.", "drop model."]


class Moved:
    """Tensors that were moved to the host."""

    made: list[Moved]
    fails_for: torch.device | None = None

    def __init__(self, tensors: Any, device: torch.device) -> None:
        if device == Moved.fails_for:
            raise MemoryError
        self.of, self.device, self.is_back = [each.of for each in tensors], device, False
        Moved.made.append(self)

    def restore(self) -> None:
        assert not self.is_back
        self.is_back = True


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> type[Moved]:
    Moved.made, Moved.fails_for = [], None
    monkeypatch.setattr(model_weights, "Offloaded", Moved)
    return Moved


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((CPU, CPU), []),
        ((GPU, CPU), [(["model."], GPU)]),
        ((CPU, GPU), [(["visual."], GPU)]),
        ((GPU, GPU), [(["model.", "visual."], GPU)]),
        ((GPU, OTHER_GPU), [(["model."], GPU), (["visual."], OTHER_GPU)]),
    ],
)
def test_weights_are_moved_by_their_devices(
    devices: tuple[torch.device, ...], expected: list[Any], folder: Path, moved: type[Moved]
) -> None:
    whole = Whole(Checkpoint.load(folder), *devices)
    whole.weights.offload()
    assert [(each.of, each.device) for each in moved.made] == expected and whole.noted == ["forget graphs"]
    for _ in range(2):
        whole.weights.restore()
    assert all(each.is_back for each in moved.made)


def test_what_was_moved_goes_back_where_the_host_is_full(folder: Path, moved: type[Moved]) -> None:
    whole = Whole(Checkpoint.load(folder), GPU, OTHER_GPU)
    moved.fails_for = OTHER_GPU
    with pytest.raises(MemoryError):
        whole.weights.offload()
    assert [each.is_back for each in moved.made] == [True] and not whole.noted


def test_dropped_weights_are_not_on_the_host_either(folder: Path, moved: type[Moved]) -> None:
    whole = Whole(Checkpoint.load(folder), GPU, GPU)
    whole.weights.offload()
    whole.noted.clear()
    whole.weights.drop()
    assert whole.noted == ["drop model.", "drop visual.", "forget graphs"]
    whole.weights.restore()
    assert [each.is_back for each in moved.made] == [False]


def test_addresses_are_those_on_devices(folder: Path) -> None:
    checkpoint = Checkpoint.load(folder)
    assert Whole(checkpoint).weights.addresses() == []
    assert Whole(checkpoint, GPU, GPU).weights.addresses() == [len("model."), len("visual.")]
    assert Whole(checkpoint, CPU, GPU).weights.addresses() == [len("visual.")]
