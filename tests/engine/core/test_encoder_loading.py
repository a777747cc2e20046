"""The tower of a model: where it is loaded, for which models there is none, and what it takes at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from noted_device import PEAK_BYTES, noted_device

from seesay.config import EngineConfig
from seesay.engine.core.loading.encoder_loading import build_encoder, load_encoder, try_encoder

CPU, META = torch.device("cpu"), torch.device("meta")


class Tower:
    """Notes what it encodes."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.has_graphs = True
        self.encoded: list[Any] = []

    def disable_graphs(self) -> None:
        self.has_graphs = False

    def encode(self, batch: list[Any]) -> None:
        self.encoded += batch


class Model:
    """Its own family."""

    def __init__(self, *modalities: str) -> None:
        self.family, self.modalities, self.resizes_on_device = self, modalities, False
        self.built: list[tuple[Any, Any]] = []
        self.largest: Any = {"size": 9}

    def build_encoder(self, device: Any, dtype: Any) -> Tower:
        self.built.append((device, dtype))
        return Tower(device)

    def largest_input(self) -> Any:
        return self.largest

    def small_inputs(self) -> list[Any]:
        return [{"size": 1}, {"size": 2}]


def load(model: Any, *, is_remote: bool = False, **options: Any) -> tuple[Any, Any]:
    def open_remote(model: Any, config: EngineConfig, *, device: Any, dtype: Any) -> Any:
        return "remote", config, device, dtype

    config = EngineConfig(**options)
    return load_encoder(model, config, open_remote if is_remote else None, device=CPU, dtype=torch.float32)


def test_a_tower_is_in_this_process_or_in_another_one() -> None:
    model = Model("image")
    encoder, tower = load(model)
    assert encoder is tower and model.built == [(CPU, torch.float32)]
    assert load(model, is_remote=True) == (("remote", EngineConfig(), CPU, torch.float32), None)
    assert len(model.built) == 1


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(("modalities", "options"), [((), {}), (("image",), {"disable_vision_encoder": True})])
def test_a_model_that_takes_no_media_has_none(
    modalities: tuple[str, ...], options: dict[str, Any], is_remote: bool
) -> None:
    model = Model(*modalities)
    assert load(model, is_remote=is_remote, **options) == (None, None) and not model.built


def test_pictures_are_resized_where_there_are_kernels() -> None:
    for device, expected in ((CPU, False), (META, True)):
        model: Any = Model("image")
        build_encoder(model, EngineConfig(), device=device, dtype=torch.float16)
        assert model.resizes_on_device == expected


@pytest.mark.parametrize(
    ("options", "has_graphs"),
    [({}, True), ({"eager_mode": True}, False), ({"deterministic": True, "device_type": "cpu"}, False)],
)
def test_graphs_are_recorded_unless_an_option_turns_them_off(options: dict[str, Any], has_graphs: bool) -> None:
    assert load(Model("image"), **options)[0].has_graphs == has_graphs


def test_the_largest_picture_is_tried_and_then_smaller_ones(tmp_path: Path) -> None:
    with noted_device(tmp_path) as (device, calls):
        model: Any = Model("image")
        tower: Any = Tower(device)
        assert try_encoder(tower, model) == PEAK_BYTES
        assert calls == ["measure peak"] and tower.encoded == [{"size": 9}, {"size": 1}, {"size": 2}]
        model.largest = None
        assert try_encoder(tower, model) == 0 and len(tower.encoded) == 3
