"""Loads the vision encoder of a model, in this process or in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.device.backends import has_kernels
from seesay.device.query import measure_peak
from seesay.device.streams import on_device

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig
    from seesay.encoders.encoder import Encoder, LoadedEncoder
    from seesay.engine.core.rank_parts import OpenRemote
    from seesay.engine.opened_model import OpenedModel
    from seesay.vl.family import Family


def load_encoder(
    model: OpenedModel,
    config: EngineConfig,
    open_remote: OpenRemote | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Encoder | None, LoadedEncoder | None]:
    """Return the encoder, and the tower that it is if that is in this process."""
    if open_remote is None:
        tower = build_encoder(model, config, device=device, dtype=dtype)
        return tower, tower
    if not _has_tower(model, config):
        return None, None
    return open_remote(model, config, device=device, dtype=dtype), None


def build_encoder(
    model: OpenedModel, config: EngineConfig, *, device: torch.device, dtype: torch.dtype
) -> LoadedEncoder | None:
    """Return the vision tower with its weights; None for a model without one, or where it is turned off."""
    family = model.family
    if not _has_tower(model, config):
        return None
    family.resizes_on_device = has_kernels(device)
    with on_device(device):
        encoder = family.build_encoder(device, dtype)
    if config.eager_mode or config.deterministic:  # graphs are recorded after some calls of a shape only
        encoder.disable_graphs()
    return encoder


def try_encoder(encoder: LoadedEncoder, family: Family) -> int:
    """Return the bytes that the largest encode takes, by trying it and some smaller ones."""
    largest = family.largest_input()
    if largest is None:
        return 0
    with on_device(encoder.device):
        peak = measure_peak(encoder.device, lambda: encoder.encode([largest]))
        for features in family.small_inputs():
            encoder.encode([features])
    return peak


def _has_tower(model: OpenedModel, config: EngineConfig) -> bool:
    return bool(model.family.modalities) and not config.disable_vision_encoder
