"""What of a Transformers model's decoder our kernels compute: as much as gives the numbers that its modules give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from seesay.llm.models.modules.module_attention import StepHolder
from seesay.llm.models.modules.module_linear import join_layers, part_layers
from seesay.llm.models.modules.module_norm import fuse_norms, part_norms
from seesay.llm.models.modules.module_rotary import fuse_rotary, part_rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("seesay")


@dataclass(frozen=True, slots=True)
class Fusion:
    """The loaded `model`, groups of names of its layers that take one input, and the modules that attend through
    `holder`."""

    model: PreTrainedModel
    joined: Sequence[Sequence[str]]
    attention: Sequence[torch.nn.Module]
    holder: StepHolder

    def make(self, *, joins: bool, turns: bool) -> None:
        """Let our kernels compute linear layers, and more: layers of one input together and norms, if `joins`, and
        rotary embeddings, if `turns`."""
        join_layers(self.model, self.joined if joins else ())
        if joins:
            fuse_norms(self.model.get_decoder(), self.holder.ops)
        if turns:
            fuse_rotary(self.attention, self.holder)

    def undo(self) -> None:
        decoder = self.model.get_decoder()
        part_layers(decoder)
        part_norms(decoder)
        part_rotary(self.attention)


def try_fusions(fusion: Fusion, check: Callable[[], None]) -> None:
    """Fuse as much as `check` takes, which raises what is wrong. Raises what it raises of the modules as they are."""
    for joins, turns in ((True, True), (True, False), (False, False)):
        fusion.make(joins=joins, turns=turns)
        try:
            check()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the modules' own code, which may raise anything
            if not joins:
                raise
            logger.info("fewer of its modules are computed by our kernels: %s", error)
            fusion.undo()
        else:
            return
