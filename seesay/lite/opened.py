"""The model to quantize: opened, checked, not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from seesay.checkpoint import Checkpoint, resolve_checkpoint, resolve_config
from seesay.config import EngineConfig
from seesay.device.query import pick_device
from seesay.encoders.encoder import LoadedEncoder
from seesay.engine.core.loading.encoder_loading import build_encoder
from seesay.engine.core.loading.resolved_config import ResolvedConfig, resolve
from seesay.engine.opened_model import OpenedModel, open_model, read_config
from seesay.errors import CheckpointError, ConfigError
from seesay.lite.methods.plain_layer import Source
from seesay.lite.run_options import LiteSettings

_MAX_TOKENS = 2048
"""Tokens of a calibration prompt unless `calib_seqlen` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An unquantized model, its settled options, and its decoder. max_tokens: of a calibration prompt."""

    folder: Path
    model: OpenedModel
    config: EngineConfig
    resolved: ResolvedConfig
    source: Source
    max_tokens: int

    @property
    def device(self) -> torch.device:
        return self.resolved.device

    @property
    def tower_names(self) -> list[str]:
        """The names of the modules that are the vision tower, as checkpoints spell them without 'model.' before."""
        prefixes = {prefix.removeprefix("model.").removesuffix(".") for prefix in self.model.family.weights.tower}
        return sorted(prefixes)

    def build_encoder(self) -> LoadedEncoder | None:
        """Return the vision tower with its weights; None for a model without one."""
        with self.model.checkpoint.blamed():
            return build_encoder(self.model, self.config, device=self.device, dtype=self.resolved.dtype)


def _check_experts(source: Source, folder: Path) -> None:
    """Raise `ConfigError` for experts that no tool stores quantized, one by one."""
    for layer in source.config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and experts.has_bias:
            raise ConfigError(f"{folder}: experts with biases cannot be quantized here")
    stacks = [stored for own, stored in source.stored_as.items() if own.endswith(".experts.gate_up_proj.weight")]
    if not all(".experts." in stored for stored in stacks):
        raise ConfigError(f"{folder}: experts that are stored as {stacks[0]!r} cannot be quantized here")


def check_model(settings: LiteSettings) -> None:
    """Raise `CheckpointError` for a model that is not there, cannot run or is quantized already, as far as its
    config.json says so alone. Of a model of the hub only that is downloaded."""
    folder = resolve_config(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    _check_plain(read_config(folder, EngineConfig(plugins=settings.plugins)))


def _check_plain(checkpoint: Checkpoint) -> None:
    quantization = checkpoint.quantization
    if quantization is not None:
        raise CheckpointError(f"{checkpoint.path} is quantized already ({quantization.format}): give the plain model")


def open_source(settings: LiteSettings) -> Opened:
    """Open the model that `settings` name. Raises `CheckpointError` for one that is quantized already, and
    `ConfigError`. The device is looked for before a model is downloaded."""
    pick_device(settings.device)
    folder = resolve_checkpoint(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    if Path(settings.work_dir).expanduser().resolve() == folder.resolve():
        raise ConfigError(f"work_dir={str(settings.work_dir)!r} is the folder of the model: give another one")
    config = EngineConfig(device_type=settings.device, dtype=settings.dtype, eager_mode=True, plugins=settings.plugins)
    model = open_model(folder, config)
    checkpoint = model.checkpoint
    _check_plain(checkpoint)
    with checkpoint.blamed():
        resolved = resolve(config, checkpoint, model.backbone)
        max_tokens = settings.calib_seqlen or min(_MAX_TOKENS, resolved.session_len)
        if max_tokens > resolved.session_len:
            raise ConfigError(
                f"calib_seqlen must be at most {resolved.session_len}, the model's longest text, "
                f"got {settings.calib_seqlen}"
            )
        source = Source(
            checkpoint,
            model.backbone.decoder_config(session_len=max_tokens),
            model.backbone.decoder_name,
            device=resolved.device,
            dtype=resolved.dtype,
        )
    if source.config.media_rows is not None:
        raise ConfigError(f"{folder}: models whose pictures have linear layers of their own cannot be quantized here")
    if any(layer.other is not None for layer in source.config.layers):
        raise ConfigError(f"{folder}: layers with a state or latent rows cannot be quantized here")
    _check_experts(source, folder)
    if source.config.traits.attends_media:
        raise ConfigError(f"{folder}: a decoder that attends to pictures beside the text cannot be quantized here")
    return Opened(folder=folder, model=model, config=config, resolved=resolved, source=source, max_tokens=max_tokens)
