"""A step whose input is on the device, from its forward pass to what that gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from seesay.llm.running.launched_step import LaunchedStep
from seesay.llm.running.row_outputs import collect_outputs, has_outputs, make_logits

if TYPE_CHECKING:
    import torch

    from seesay.llm.models.decoder import Decoder, ModelInput
    from seesay.llm.running.step_input import StepInput, StepRows


def is_plain(step: StepRows) -> bool:
    """Return whether no row of a step gives anything beside tokens."""
    return not (any(member.output_end for member in step.members) and has_outputs(step))


class BegunForward(NamedTuple):
    """A step and its input: `inputs`, the tokens whose logits are `sampled`, and the slots of their rows. wanted: the
    tokens whose hidden states are needed; None for all."""

    step: StepRows
    inputs: ModelInput
    sampled: torch.Tensor
    slots: torch.Tensor
    wanted: torch.Tensor | None

    @classmethod
    def make(cls, step: StepRows, step_input: StepInput, *, keeps_all: bool = False) -> BegunForward:
        """`keeps_all`: the hidden states of all tokens are needed."""
        inputs, sampled, slots = step_input
        wanted = sampled if is_plain(step) and not (step.samples_all or keeps_all) else None
        return cls(step, inputs, sampled, slots, wanted)

    @property
    def num_hidden(self) -> int:
        """The number of hidden states that are needed."""
        return len(self.inputs.input_ids if self.wanted is None else self.wanted)

    def launched(self, dtype: torch.dtype) -> LaunchedStep:
        """Return the step as it is before there are hidden states."""
        return LaunchedStep(step=self.step, dtype=dtype, slots=self.slots, faults=self.inputs.faults)

    def finish(self, launched: LaunchedStep, decoder: Decoder, hidden: torch.Tensor) -> None:
        """Add to the step what is made of its hidden states [num_hidden, hidden]."""
        step = self.step
        if num_sampled := step.num_sampled:
            is_whole = self.wanted is None and not step.samples_all
            picked = hidden.index_select(0, self.sampled) if is_whole else hidden
            launched.logits = make_logits(decoder, picked, step.sampled_slots)[:num_sampled]
        if not is_plain(step):
            launched.outputs = collect_outputs(decoder, step, hidden, launched.logits)
