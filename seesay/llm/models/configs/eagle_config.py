"""The folders of EAGLE-3 heads: their configurations, and what their tensors are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from seesay.errors import CheckpointError
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.spec import DecoderConfig

if TYPE_CHECKING:
    from seesay.checkpoint import Checkpoint

LAYER = "layers.0"
"""The name of a head's layer."""
_TABLE, _TOKENS, _IDS = "embed_tokens.weight", "d2t", "eagle_aux_hidden_state_layer_ids"
_SPECULATORS = "transformer_layer_config"
_UNREAD = (_TOKENS, "t2d")
_NUM_TOKENS = ("draft_vocab_size", "truncated_vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Options of a head. decoder: those of its layer. places: see `LayerStates`. target_size: of the model's states.
    num_tokens: those that it knows. norms_joined, norms_each: the states go through a norm before they are joined, all
    or each. norms_residual: the layer adds to the norm of its state, and not to that itself. passes_normed: the next
    token takes what is behind the last norm. has_table: it has embeddings of its own."""

    decoder: DecoderConfig
    places: tuple[int, ...]
    target_size: int
    num_tokens: int
    norms_joined: bool
    norms_each: bool
    norms_residual: bool
    passes_normed: bool
    has_table: bool


def open_head(checkpoint: Checkpoint) -> Checkpoint:
    """Return the folder of a head with the configuration of its layer as that of a Llama: some have it in a part, and
    some call positions of several axes a scaling. Raises `CheckpointError` for what is no head of this kind."""
    config = dict(checkpoint.config)
    if isinstance(part := config.pop(_SPECULATORS, None), Mapping):
        if (kind := config.get("speculators_model_type")) != "eagle3":
            raise CheckpointError(f"{checkpoint.path}: a head of kind {kind!r}, and not 'eagle3'")
        config = {**part, "norm_before_residual": True, **config, "model_type": part.get("model_type", "llama")}
    if "fc.weight" not in _list_names(checkpoint):
        raise CheckpointError(f"{checkpoint.path}: not an EAGLE-3 head: it has no tensor 'fc.weight'")
    config.setdefault("model_type", "llama")
    for key in ("rope_scaling", "rope_parameters"):
        if key in config:
            config[key] = _without_axes(config[key])
    return replace(checkpoint, config=config)


def _without_axes(rotary: object) -> object:
    """Return rotary parameters whose type does not say that positions have several axes."""
    if not isinstance(rotary, Mapping) or "mrope" not in (rotary.get("type"), rotary.get("rope_type")):
        return rotary
    return {**{name: value for name, value in rotary.items() if name != "type"}, "rope_type": "default"}


def read_head_config(checkpoint: Checkpoint, main: DecoderConfig, *, session_len: int) -> HeadConfig:
    """Return the options of a head in `checkpoint`, which `open_head` has opened. `main`: the model that it is asked
    for. Raises `CheckpointError` naming what does not fit."""
    config, names = checkpoint.config, _list_names(checkpoint)
    nested = config.get("eagle_config")
    nested = nested if isinstance(nested, Mapping) else {}
    options = {**config, **nested}
    decoder = read_decoder_config(checkpoint.text_config, tied_embeddings=False, session_len=session_len)
    found = HeadConfig(
        decoder=replace(decoder, attended_size=2 * decoder.hidden_size),
        places=_read_places(options, _IDS in nested, main.num_layers, f"{checkpoint.path / 'config.json'}"),
        target_size=config.get("target_hidden_size") or decoder.hidden_size,
        num_tokens=next((config[name] for name in _NUM_TOKENS if config.get(name)), decoder.vocab_size),
        norms_joined=bool(options.get("norm_before_fc")),
        norms_each=bool(options.get("fc_norm")),
        norms_residual=bool(options.get("norm_before_residual")),
        passes_normed=bool(options.get("norm_output")),
        has_table=_TABLE in names,
    )
    _refuse_other(checkpoint, found, main)
    if not found.has_table and decoder.hidden_size != main.hidden_size:
        raise CheckpointError(f"{checkpoint.path}: no {_TABLE!r}, and the model's have {main.hidden_size} components")
    if found.num_tokens != decoder.vocab_size and _TOKENS not in names:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {_TOKENS!r} is missing, with draft_vocab_size={found.num_tokens}"
        )
    return found


def _refuse_other(checkpoint: Checkpoint, head: HeadConfig, main: DecoderConfig) -> None:
    """Raise `CheckpointError` where a head is one of another model."""
    where, decoder = checkpoint.path / "config.json", head.decoder
    if decoder.num_layers != 1:
        raise CheckpointError(f"{where}: num_hidden_layers={decoder.num_layers}: only heads of one layer are supported")
    if decoder.layers[0].feed_forward.experts is not None:
        kind = checkpoint.config.get("model_type")
        raise CheckpointError(f"{where}: model_type={kind!r}: heads with experts are not supported")
    size_name = "target_hidden_size" if checkpoint.config.get("target_hidden_size") else "hidden_size"
    for name, own, others in (
        ("vocab_size", decoder.vocab_size, main.vocab_size),
        (size_name, head.target_size, main.hidden_size),
    ):
        if own != others:
            raise CheckpointError(f"{where}: {name}={own} is not the model's {others}: it is another model's head")


def _read_places(options: Mapping[str, object], counts_outputs: bool, num_layers: int, where: str) -> tuple[int, ...]:
    """Return the layers before which states are taken. counts_outputs: those behind the layers with the ids."""
    ids = options.get(_IDS)
    if ids is not None and not (ids and isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise CheckpointError(f"{where}: {_IDS} must be a list of numbers, got {ids!r:.60}")
    places = (2, num_layers // 2, num_layers - 3) if ids is None else tuple(each + counts_outputs for each in ids)
    if min(places) < 0 or max(places) > num_layers:
        raise CheckpointError(f"{where}: the head takes states before layers {places}, the model has {num_layers}")
    return places


def _list_names(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the names of the tensors of a head, without the prefix that some have."""
    return frozenset(name.removeprefix("model.") for name in checkpoint.tensor_names())


def find_name(name: str) -> str | None:
    """Return what `EagleHead` calls a tensor of a head's folder."""
    name = name.removeprefix("model.")
    return None if name in _UNREAD else re.sub(r"^midlayer\.", f"{LAYER}.", name)


def read_known_ids(checkpoint: Checkpoint, config: HeadConfig) -> npt.NDArray[np.int64] | None:
    """Return the model's ids of the tokens that a head knows; None where they are its own. Raises `CheckpointError`."""
    stored = next((name for name in checkpoint.tensor_names() if name.removeprefix("model.") == _TOKENS), None)
    if stored is None:
        return None
    for _, tensor in checkpoint.slices([stored], "cpu"):
        if tensor.shape != (config.num_tokens,):
            break
        found = tensor.read((range(config.num_tokens),))
        if found.dtype not in (torch.int64, torch.int32):
            break
        ids: npt.NDArray[np.int64] = found.numpy().astype(np.int64) + np.arange(config.num_tokens)
        if ids.min() >= 0 and ids.max() < config.decoder.vocab_size and len(np.unique(ids)) == len(ids):
            return ids
    raise CheckpointError(
        f"{checkpoint.path}: tensor {stored!r} must have {config.num_tokens} whole numbers that make each token of the "
        f"head one of the {config.decoder.vocab_size} of the model"
    )
