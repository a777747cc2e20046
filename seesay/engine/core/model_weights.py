"""The weights of a whole model, decoder and tower: where they may come from, replaced, moved to the host, dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint, is_buffer
from seesay.checkpoint.loading import check_stored
from seesay.checkpoint.tensor_source import SOURCE, GivenTensor, HandedTensors
from seesay.device.offload import Offloaded
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from seesay.checkpoint.source import TensorSource
    from seesay.config import EngineConfig
    from seesay.device.linear.loaded_weights import LoadedWeights
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.engine.opened_model import OpenedModel

_TRAINERS_KEYS = frozenset(["use_cache", "dtype", "torch_dtype", "transformers_version", "quantization_config"])
"""Keys of config.json that trainers change and that no weight depends on, or that are compared otherwise."""


class ModelWeights:
    """The weights of `model`, which `decoder` and `encoder` compute with. folder: the model's."""

    def __init__(
        self, model: OpenedModel, config: EngineConfig, decoder: LoadedWeights, encoder: LoadedEncoder | None
    ) -> None:
        self._checkpoint, self._names = model.checkpoint, model.family.weights
        self.folder = str(model.checkpoint.path)
        self._config = config
        self._encoder = encoder
        self._layers: list[LoadedWeights] = [decoder] if encoder is None else [decoder, encoder.weights]
        self._parts = [layers.parts() for layers in self._layers]
        self._offloaded: list[Offloaded] = []  # by device

    def open_folder(self, folder: str) -> Checkpoint:
        """Return the checkpoint in a folder. Raises `CheckpointError` where it is another model's, or stored in another
        format, or quantized already where the model quantizes plain weights."""
        checkpoint = replace(
            Checkpoint.load(folder, self._config.hf_overrides, readers=self._checkpoint.readers),
            code=self._checkpoint.code,  # that of the new folder is not run
            remedy="download the checkpoint again; partial=True is for folders with some of the layers",
        )
        where = Path(folder) / "config.json"
        if (in_flight := self._config.quantization) is not None:
            if checkpoint.quantization is not None:
                raise CheckpointError(
                    f"{folder} is quantized already ({checkpoint.quantization.format}), and quantization={in_flight!r} "
                    "quantizes plain weights: give a folder with plain ones, or load the model without quantization="
                )
            checkpoint = replace(checkpoint, quantization=self._checkpoint.quantization)
        if checkpoint.quantization != self._checkpoint.quantization:
            raise CheckpointError(f"{where}: its quantization_config is not that of the loaded model: load it anew")
        if found := _find_difference(self._checkpoint.model_options, checkpoint.model_options):
            name, old, new = found
            raise CheckpointError(f"{where}: {name} is {new!r}, the loaded model has {old!r}: load it anew")
        for name in sorted(checkpoint.tensor_names() - self._checkpoint.tensor_names()):
            self._check_known(name, str(checkpoint.path))
        return checkpoint

    def check_given(self, tensor: GivenTensor) -> None:
        """Raise `CheckpointError` for a tensor that the model does not have, or has with another type or shape."""
        name = tensor.name
        if is_buffer(name):
            return
        self._check_known(name, str(SOURCE))
        for layers, parts in zip(self._layers, self._parts, strict=True):
            own = layers.name_of(name)
            if own is None:
                continue
            if own in parts:
                check_stored(HandedTensors({name: tensor}), parts[own], name)
            elif not layers.is_unread(own):
                raise CheckpointError(f"{SOURCE}: unexpected tensor {name!r}")

    def _check_known(self, name: str, where: str) -> None:
        if self._names.is_leftover(name) and name not in self._checkpoint.stored:
            raise CheckpointError(f"{where}: unexpected tensor {name!r}: the model has none of this name")

    def check(self, source: TensorSource, *, is_partial: bool) -> None:
        """Raise what `replace` would raise. The weights must be there, or dropped."""
        if not any(layers.name_of(name) is not None for name in source.tensor_names() for layers in self._layers):
            raise CheckpointError(f"{source.path}: it has no weights of this model")
        self.check_layers(source, is_partial=is_partial)

    def check_layers(self, source: TensorSource, *, is_partial: bool) -> None:
        """As `check`, for a source that may have no weights of these layers."""
        for layers in self._layers:
            layers.check(source, is_partial=is_partial)

    def replace(self, source: TensorSource, *, is_partial: bool) -> None:
        """Replace weights, or load dropped ones. No request is being computed."""
        for layers in self._layers:
            layers.replace(source, is_partial=is_partial)
        self._forget_graphs()

    def drop(self) -> None:
        """Free all weights, also those on the host."""
        self._offloaded = []
        for layers in self._layers:
            layers.drop()
        self._forget_graphs()

    def offload(self) -> None:
        """Move the weights to host memory. On the CPU they are there already."""
        try:
            for device in dict.fromkeys(layers.device for layers in self._layers if layers.device.type != "cpu"):
                own = [tensor for layers in self._layers if layers.device == device for tensor in layers.tensors()]
                self._offloaded.append(Offloaded(own, device))
        except BaseException:
            self.restore()
            raise
        self._forget_graphs()

    def restore(self) -> None:
        """Move the weights back. Raises `torch.OutOfMemoryError`; they are still on the host then."""
        for moved in self._offloaded:
            moved.restore()
        self._offloaded = []

    def addresses(self) -> list[int]:
        """Return the addresses that graphs may use."""
        tensors = (tensor for layers in self._layers for tensor in layers.tensors())
        return [tensor.data_ptr() for tensor in tensors if not tensor.is_cpu]

    def _forget_graphs(self) -> None:
        if self._encoder is not None:
            self._encoder.forget_graphs()


def _find_difference(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> tuple[str, object, object] | None:
    """Return the name of the first option in which two configurations of models differ, and its two values."""
    for key in sorted((mine.keys() | theirs.keys()) - _TRAINERS_KEYS):
        one, other = mine.get(key), theirs.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if found := _find_difference(one, other, f"{prefix}{key}."):
                return found
        elif one != other:
            return prefix + key, one, other
    return None
