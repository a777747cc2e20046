"""Decode steps as CUDA graphs: the host starts a whole step with one call.

One graph per number of rows in a ladder; a step takes the next larger one and fills it up with padding. Where there are
adapters, there is one more of each size, for steps in which rows have some. A graph gathers
its rows' tokens, lengths and block tables by slot from the device's part of the row table, and advances the lengths
there, so that a step that goes on like the one before takes nothing from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.ops import DecodeRows
from seesay.llm.plans.traits import DecoderTraits
from seesay.llm.running.device_rows import STATE, DecodeInput, DeviceRows, begin_decode
from seesay.llm.running.graph_adapters import GraphAdapters
from seesay.llm.running.greatest import find_best
from seesay.llm.running.row_table import RowState
from seesay.llm.running.step_input import StepRows
from seesay.llm.running.step_sizes import fill_up, row_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutput:
    """What is kept of hidden states [n, size], logits [n, vocab], and the largest one of each row [n] with its token id
    int64 [n]; faults [n] (see `ModelInput`), which are in `best`, too. Overwritten by the next step that a graph
    computes."""

    states: torch.Tensor
    logits: torch.Tensor
    best: torch.Tensor
    token_ids: torch.Tensor
    faults: torch.Tensor


Record = Callable[[Callable[[], DecodeOutput]], tuple[Callable[[], None], DecodeOutput]]
"""Record a computation, as `GraphRecorder.record` does; returns what replays it, and its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    replay: Callable[[], None]
    output: DecodeOutput


def make_decode_input(given: DecodeInput, traits: DecoderTraits) -> ModelInput:
    """Return the input of tokens that are rows of their own."""
    return ModelInput(
        input_ids=given.input_ids,
        positions=given.positions if traits.num_position_axes > 1 else given.positions[0],
        slot_mapping=given.slot_mapping,
        layout=DecodeRows(kv_lens=given.kv_lens, block_table=given.block_table),
        faults=given.faults,
        stretches=None if traits.length_scaling is None else given.stretches,
        is_valid=given.is_valid,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """Computes a step of `rows`. A device's graph may keep it, so it does not refer to graphs, whose memory is freed
    with the last reference to them."""

    decoder: Decoder
    caches: Sequence[LayerCache]
    rows: DeviceRows
    tables: torch.Tensor
    block_size: int
    adapters: GraphAdapters | None
    make_states: Callable[[torch.Tensor], torch.Tensor] | None

    def compute(self, size: int, is_adapted: bool) -> DecodeOutput:
        traits = self.decoder.traits
        given = begin_decode(
            self.rows,
            self.rows.slots[:size],
            self.tables,
            block_size=self.block_size,
            num_axes=traits.num_position_axes,
        )
        inputs = replace(
            make_decode_input(given, traits),
            state_slots=self.rows.state[self.rows.slots[:size], STATE] if traits.has_states else None,
            adapters=self.adapters.rows(size) if self.adapters is not None and is_adapted else None,
        )
        hidden = self.decoder.forward(inputs, self.caches)
        logits = self.decoder.logits(hidden)
        best, token_ids = find_best(logits, given.faults)  # so that what is collected anyway tells of faults
        states = hidden if self.make_states is None else self.make_states(hidden)
        return DecodeOutput(states=states, logits=logits, best=best, token_ids=token_ids, faults=given.faults)


class DecodeGraphs:
    """Graphs for steps of the sequences in `rows`, over the KV cache `caches` (one per layer). Recording them by
    `record` takes a second or two. num_adapter_slots: of the decoder's adapters; 0: it takes none. make_states: see
    `KeptStates`; None where nothing is kept."""

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[LayerCache],
        rows: DeviceRows,
        *,
        record: Record,
        block_size: int,
        num_adapter_slots: int = 0,
        make_states: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._rows, self._has_states = rows, decoder.traits.has_states
        self._sizes = row_sizes(rows.num_rows)
        self._adapters: GraphAdapters | None = None
        if num_adapter_slots:
            self._adapters = GraphAdapters(
                num_rows=rows.num_rows, num_slots=num_adapter_slots, device=rows.numbers.device
            )
        self._step = _Step(  # kept: the graphs write to its tables
            decoder=decoder,
            caches=caches,
            rows=rows,
            tables=rows.block_table[:1].repeat(rows.num_rows, 1),
            block_size=block_size,
            adapters=self._adapters,
            make_states=make_states,
        )
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        for size in reversed(self._sizes):
            for is_adapted in (False, True)[: 1 + (num_adapter_slots > 0)]:
                replay, output = record(partial(self._step.compute, size, is_adapted))
                self._graphs[size, is_adapted] = _Graph(replay=replay, output=output)

    def takes(self, step: StepRows) -> bool:
        """Whether a graph can compute these rows: none attends to media, and none has a state that several tokens of it
        change."""
        if step.has_drafts and self._has_states:
            return False
        if step.seen or not step.is_decode or not 0 < step.num_tokens <= self._sizes[-1]:
            return False
        return not step.has_drafts or (step.num_tokens <= self._rows.num_lent and not len(step.pending))

    def run(self, step: StepRows) -> DecodeOutput:
        """Compute the rows of a step: each token as a row of its own, which sees those before it in the KV cache."""
        slots, places = step.slots, step.starts
        members: Sequence[RowState] = step.members
        if step.has_drafts:
            counts = 1 + step.num_drafts
            slots = self._rows.lend(slots, counts)
            places = np.repeat(places, counts) + np.concatenate([np.arange(count) for count in counts.tolist()])
            members = [member for member, count in zip(members, counts.tolist(), strict=True) for _ in [0] * count]
        count = len(slots)
        size = self.find_size(count)
        if step.adapter_slots is not None:
            assert self._adapters is not None, "a plan has adapters, and the decoder takes none"
            self._adapters.send(np.repeat(step.adapter_slots, 1 + step.num_drafts), size=size)
        self._rows.begin_decode(slots, places, members, size=size)
        output = self.replay(count, is_adapted=step.adapter_slots is not None)
        self._rows.end_decode(slots, places)
        return output

    @property
    def most_tokens(self) -> int:
        """Most tokens of a step."""
        return self._sizes[-1]

    def find_size(self, count: int) -> int:
        """Return the tokens of the graph that computes `count` of them."""
        return fill_up(count, self._sizes)

    def replay(self, count: int, *, is_adapted: bool = False) -> DecodeOutput:
        """Compute the first `count` slots of the rows on the device, behind which there is padding."""
        graph = self._graphs[self.find_size(count), is_adapted]
        graph.replay()
        output = graph.output
        return DecodeOutput(
            states=output.states[:count],
            logits=output.logits[:count],
            best=output.best[:count],
            token_ids=output.token_ids[:count],
            faults=output.faults[:count],
        )
