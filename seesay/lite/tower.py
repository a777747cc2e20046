"""The vision tower, quantized on request: each linear layer by itself, on the pictures of the calibration set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seesay.checkpoint.loading import WeightGroup, find_names, load_weights
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.encoders.encoder import LoadedEncoder
from seesay.errors import ConfigError
from seesay.lite.calibration.batches import Prompt
from seesay.lite.methods.method import Method, PlainMatrix, make_loader, relative_error
from seesay.lite.methods.plain_layer import only, torch_type
from seesay.lite.methods.statistics import InputObserver, InputStatistics
from seesay.lite.methods.stored_layer import split_tensors
from seesay.lite.opened import Opened
from seesay.lite.progress import Progress


class Tower:
    """The tower of an opened model, loaded. Raises `ConfigError` for a model without one.

    replaced: the checkpoint's names of the weights that are quantized. Linear layers stay plain which the
    method's format cannot have, or which the checkpoint stores as a convolution.
    """

    def __init__(self, opened: Opened, method: Method) -> None:
        encoder = opened.build_encoder()
        if encoder is None:
            raise ConfigError(f"vision=True: {opened.folder} has no vision tower")
        self._encoder: LoadedEncoder = encoder
        self._opened, self._method = opened, method
        self._loader = make_loader(method, opened.model.checkpoint, torch.float32)
        weights = encoder.weights
        if not isinstance(weights, LoadedLayers):
            raise ConfigError(
                f"vision=True: the tower of {opened.folder} is Transformers' own, and is not quantized here"
            )
        self._stored_as = find_names(opened.model.checkpoint, weights.name_of)
        self._linears = {path: linear for path, linear in weights.linears.items() if self._fits(path, linear)}
        self.replaced = [
            self._stored_as[part.tensor]
            for path, linear in self._linears.items()
            for part in linear.list_weights(path)[0]["weight"].parts
        ]

    @property
    def plain_modules(self) -> list[str]:
        """The modules with a matrix that stay plain, also of layers that are not computed here, as checkpoints spell
        them without 'model.' before."""
        checkpoint, replaced = self._opened.model.checkpoint, frozenset(self.replaced)
        is_tower = self._opened.model.family.weights.tower_name
        modules = [
            name.removesuffix(".weight").removeprefix("model.")
            for name, stored in checkpoint.stored.items()
            if is_tower(name) is not None and name.endswith(".weight") and len(stored.shape) > 1
            if name not in replaced
        ]
        return sorted(modules)

    def quantize(self, prompts: Sequence[Prompt]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the tensors of quantized layers by the checkpoint's names, and the relative errors of their matrices.
        Raises `ConfigError` where pictures are needed and the prompts have none."""
        statistics = self._observe(prompts)
        tensors: dict[str, Tensor] = {}
        errors: dict[str, float] = {}
        with Progress("vision tower", len(self._linears), "matrices") as progress:
            for path, linear in self._linears.items():
                plain = self._read(path, linear, statistics.get(path))
                quantized = self._method.quantize(plain)
                tensors |= split_tensors(linear, path, self._loader, quantized.tensors, self._stored_module)
                errors[path] = relative_error(quantized, plain)
                progress.advance()
        return {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, errors

    def _observe(self, prompts: Sequence[Prompt]) -> Mapping[str, InputStatistics]:
        if not self._method.needs_inputs or self._method.gram_size(1) is None:
            return {}
        items = [item for prompt in prompts for item in prompt.input.items]
        if not items:
            raise ConfigError("vision=True: the calibration set has no pictures for the tower")
        observers: dict[str, InputObserver] = {}
        for path, linear in self._linears.items():
            observers[path] = InputObserver(linear.in_features, self._method.gram_size(linear.in_features))
            linear.extend(observe=observers[path])
        for item in items:
            self._encoder.encode([item.features])
        for linear in self._linears.values():
            linear.extend()
        return {path: observer.finish(path) for path, observer in observers.items()}

    def _fits(self, path: str, linear: Linear) -> bool:
        for part in linear.list_weights(path)[0]["weight"].parts:
            shape = self._opened.model.checkpoint.find(self._stored_as[part.tensor]).shape
            if len(shape) != 2:
                return False
            try:
                self._method.check_sizes(path, *shape)
            except ConfigError:
                return False
        return True

    def _stored_module(self, module: str) -> str:
        return self._stored_as[f"{module}.weight"].removesuffix(".weight")

    def _read(self, path: str, linear: Linear, inputs: InputStatistics | None) -> PlainMatrix:
        weight = linear.list_weights(path)[0]["weight"]
        wanted = {part.tensor for part in weight.parts}
        checkpoint = self._opened.model.checkpoint
        load_weights(
            [WeightGroup(weights=(weight,))],
            checkpoint,
            name_of=only(self._encoder.weights.name_of, wanted.__contains__),
            device=self._opened.device,
            dtype=torch.float32,
            checks_finite=True,
        )
        stored_type = torch_type(checkpoint, self._stored_as[weight.parts[0].tensor])
        return PlainMatrix(name=path, data=weight.data, stored_type=stored_type, inputs=inputs)
