"""Parts of a Transformers model that run alone: its head without the decoder, its tower without decoder and head.

Code of the model that lies between its parts, such as factors of logits or learned rows between those of a picture,
runs as it is: a part that has been taken out is replaced in a copy of the modules around it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Given(torch.nn.Module):
    """Stands for a decoder that has computed `inputs_embeds` already. It has its embeddings and configuration, which
    modules around it ask for. inputs: those of its last call."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.config = decoder.config
        self.embed_tokens = decoder.get_input_embeddings()
        self.inputs: Mapping[str, Any] = {}

    def get_input_embeddings(self) -> torch.nn.Module:
        embeddings: torch.nn.Module = self.embed_tokens
        return embeddings

    def get_per_layer_inputs(self, *_: object) -> None:
        """Return nothing for what models (Gemma 4) look up by the ids of tokens, for each layer: none is computed."""

    def forward(self, *_: object, inputs_embeds: torch.Tensor | None = None, **options: object) -> _Output:
        if inputs_embeds is None:
            raise CheckpointError("rows of media are made inside its decoder, which cannot be run without them")
        self.inputs = {"inputs_embeds": inputs_embeds, **options}
        return _Output(inputs_embeds)


class _Output:
    """A decoder's output with nothing but hidden states. The modules around it take it as a tuple, as a mapping or by
    attributes, depending on the release of Transformers."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def keys(self) -> tuple[str, ...]:
        return ("last_hidden_state",)

    def __getitem__(self, key: str | int) -> torch.Tensor:
        return self.last_hidden_state if isinstance(key, str) else (self.last_hidden_state,)[key]

    def __getattr__(self, name: str) -> None:
        """No caches, router logits or other outputs."""


class Tower(torch.nn.Module):
    """Everything in front of the decoder. Used by one thread."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        decoder = model.get_decoder()
        self._decoder = Given(decoder)
        self._model = replace_parts(without_head(model), {path_of(model, decoder): self._decoder})

    def forward(self, **inputs: torch.Tensor) -> Mapping[str, Any]:
        """Return the decoder's inputs, by name, for the processor's `inputs`: among it `inputs_embeds`
        [1, T, hidden], with the rows of pictures in it."""
        self._model(**inputs, use_cache=False, return_dict=True)
        found, self._decoder.inputs = self._decoder.inputs, {}
        return found


def without_decoder(model: PreTrainedModel) -> torch.nn.Module:
    """Return the model's head: logits are made of `inputs_embeds`, which are hidden states."""
    decoder = model.get_decoder()
    return replace_parts(model, {path_of(model, decoder): Given(decoder)})


def without_head(model: PreTrainedModel) -> torch.nn.Module:
    """Return the model without the matrix that makes logits of hidden states."""
    head = model.get_output_embeddings()
    return model if head is None else replace_parts(model, {path_of(model, head): torch.nn.Identity()})


def path_of(model: torch.nn.Module, part: object) -> str:
    """Return the name of a module in `model`."""
    [path] = [str(name) for name, module in model.named_modules() if module is part]
    return path


def replace_parts(model: torch.nn.Module, parts: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    """Return a copy of `model` with others in place of the modules at these paths. All weights are shared."""
    for path, replacement in parts.items():
        whole = part = _copy_of(model)
        *outer, last = path.split(".")
        for name in outer:
            inner = _copy_of(part.get_submodule(name))
            part._modules[name] = inner
            part = inner
        part._modules[last] = replacement
        model = whole
    return model


def _copy_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module with the same children, which may be replaced in it."""
    found = copy.copy(module)
    found._modules = dict(module._modules)
    return found
