"""What a decoder of Transformers' modules is given for the tokens of a step: ids, or embeddings with rows of media."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from seesay.llm.models.decoder import ModelInput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from seesay.llm.ops import Ops


class ModuleEmbedding:
    """Makes the decoder's arguments. In Gemma 3n, the ids around media have tables of their own, whose rows go through
    the projector of media: all ids are embedded here then, as the modules around the decoder do it."""

    def __init__(self, model: PreTrainedModel, ops: Ops, *, num_deep_layers: int) -> None:
        """`num_deep_layers`: see `ModuleDecoder`."""
        self._table = model.get_input_embeddings()
        self._decoder = model.get_decoder()
        self._further_tables: list[Any] = [module for module in model.modules() if _is_table(module)]
        self._ops = ops
        self._num_deep_layers = num_deep_layers

    @torch.no_grad()
    def give(self, inputs: ModelInput) -> dict[str, Any]:
        """Return the arguments by name: `input_ids` [T], or `embeds` [T, hidden] and what goes with it."""
        ids, places, media = inputs.input_ids, inputs.splice_rows, inputs.splice_embeddings
        if places is None and not self._further_tables:
            return {"input_ids": ids}
        given: dict[str, Any] = {"embeds": self._embed(ids), **self._look_up(ids, places)}
        if places is not None and media is not None:
            first, *deep = media.chunk(1 + self._num_deep_layers, dim=1)
            self._ops.splice(given["embeds"], places, first)
            if deep:
                is_media = torch.zeros_like(ids, dtype=torch.bool).index_fill_(0, places, True)
                given |= {"visual_pos_masks": is_media[None], "deepstack_visual_embeds": deep}
        return given

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows [T, hidden]. Every table embeds all ids, so that none is chosen by a look at the device."""
        embeds: torch.Tensor = self._table(ids)
        for table in self._further_tables:
            last = table.vocab_offset + table.vocab_size - 1
            is_here = (ids >= table.vocab_offset) & (ids <= last)
            found = table(input_ids=torch.where(is_here, ids, last))
            embeds = torch.where(is_here[:, None], found.to(embeds.dtype), embeds)
        return embeds

    def _look_up(self, ids: torch.Tensor, places: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what the decoder looks up by ids beside embeddings, where it does: Gemma 3n and 4, for each layer. In
        the places of media, Gemma 4 looks up the padding, and Gemma 3n their own ids."""
        config = self._decoder.config
        if not getattr(config, "hidden_size_per_layer_input", None):
            return {}
        if places is not None and not self._further_tables:
            ids = ids.index_fill(0, places, config.pad_token_id or 0)
        look_up = self._decoder.get_per_layer_inputs
        options = {"inputs_embeds": None} if "inputs_embeds" in inspect.signature(look_up).parameters else {}
        return {"per_layer_inputs": look_up(ids[None], **options)}  # older releases of Transformers ask for it


def _is_table(module: Any) -> bool:
    """Return whether a module embeds the ids of a range by itself."""
    sizes = (getattr(module, "vocab_offset", None), getattr(module, "vocab_size", None))
    return all(isinstance(size, int) and size > 0 for size in sizes) and hasattr(module, "embedding_projection")
