"""Decode steps as CUDA graphs: the host starts a whole step with one call.

One graph per number of rows in a ladder; a step takes the next larger one and fills it up with rows of a scratch block.
What a graph reads stays in place: a few numbers per row come with one copy, block tables only when they have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.streams import GraphRecorder
from seesay.device.transfers import upload, upload_into
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.ops import DecodeRows
from seesay.llm.row_table import RowTable
from seesay.llm.step_input import StepRows
from seesay.llm.step_sizes import fill_up, row_sizes

_PREVIOUS, _IDS, _PLACES, _SLOTS, _LENS, _IS_LONG, _FAULTS, _POSITIONS = range(8)
"""Lines of the table of numbers, each with one per row: what the step before sampled; the tokens that the host knows,
the places of the rows' own among both; KV slots; lengths (as int32); whether the long frequencies are used; faults,
which the graph writes (as float32, see `ModelInput`); positions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutput:
    """Logits [n, vocab], and the largest one of each row [n] with its token id int64 [n]; faults [n] (see
    `ModelInput`), which are in `best`, too. Overwritten by the next step that a graph computes."""

    logits: torch.Tensor
    best: torch.Tensor
    token_ids: torch.Tensor
    faults: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    replay: Callable[[], None]
    output: DecodeOutput


class DecodeGraphs:
    """Graphs for up to `max_batch_size` rows of up to `max_blocks` blocks each, over the KV cache `caches` (one tensor
    per layer), of which nobody else uses block `scratch_block`. Recording takes a second or two."""

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[torch.Tensor],
        *,
        stream: torch.cuda.Stream,
        max_batch_size: int,
        max_blocks: int,
        scratch_block: int,
        block_size: int,
    ) -> None:
        self._decoder = decoder
        self._caches = caches
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._scratch_block = scratch_block
        self._versions = np.zeros(max_batch_size, dtype=np.int64)  # of the tables on the device; 0: the scratch block
        self._host_table = np.full((max_batch_size, max_blocks), scratch_block, dtype=np.int32)
        device = decoder.device
        self._table = torch.from_numpy(self._host_table).to(device)
        num_lines = _POSITIONS + (3 if decoder.config.rotary.sections else 1)
        self._numbers = torch.zeros(num_lines, max_batch_size, dtype=torch.int64, device=device)
        self._numbers[1:].copy_(torch.from_numpy(self._make_scratch_numbers()))
        recorder = GraphRecorder(stream)
        self._sizes = row_sizes(max_batch_size)
        self._graphs = {size: self._record(recorder, size) for size in reversed(self._sizes)}

    def _record(self, recorder: GraphRecorder, size: int) -> _Graph:
        replay, output = recorder.record(lambda: self._compute(size))
        return _Graph(replay=replay, output=output)

    def _compute(self, size: int) -> DecodeOutput:
        rotary = self._decoder.config.rotary
        numbers = self._numbers[:, :size]
        faults = self._numbers[_FAULTS].view(torch.float32)[:size]
        inputs = ModelInput(
            input_ids=self._numbers.view(-1).index_select(0, numbers[_PLACES]),
            positions=numbers[_POSITIONS:] if rotary.sections else numbers[_POSITIONS],
            slot_mapping=numbers[_SLOTS],
            layout=DecodeRows(
                kv_lens=self._numbers[_LENS].view(torch.int32)[:size],
                block_table=self._table[:size],
            ),
            faults=faults,
            is_long=None if rotary.long_inv_freq is None else numbers[_IS_LONG] > 0,
        )
        logits = self._decoder.logits(self._decoder.forward(inputs, self._caches))
        best, token_ids = logits.max(dim=-1)
        best.add_(faults)  # so that what is collected anyway tells of them
        return DecodeOutput(logits=logits, best=best, token_ids=token_ids, faults=faults)

    def takes(self, step: StepRows) -> bool:
        """Whether a graph can compute these rows."""
        return step.is_decode and 0 < len(step.rows) <= self._sizes[-1]

    def run(self, step: StepRows, table: RowTable, previous: torch.Tensor | None) -> DecodeOutput:
        """Compute the rows, whose sequences are in `table`. `previous` int64: the ids that the step before sampled, to
        which `step.sources` refer."""
        count = len(step.rows)
        slots = np.fromiter((member.slot for member in step.members), dtype=np.int64, count=count)
        size = fill_up(count, self._sizes)
        graph = self._graphs[size]
        self._update_tables(slots, table, size)
        if previous is not None:
            self._numbers[_PREVIOUS, : len(previous)].copy_(previous)
        upload_into(self._numbers[1:], self._make_numbers(step, slots, table))
        graph.replay()
        output = graph.output
        return DecodeOutput(
            logits=output.logits[:count],
            best=output.best[:count],
            token_ids=output.token_ids[:count],
            faults=output.faults[:count],
        )

    def _make_scratch_numbers(self) -> npt.NDArray[np.int64]:
        """All lines but the first, int64 [lines - 1, max_batch_size], of rows that are padding."""
        num_lines, width = self._numbers.shape
        numbers = np.zeros((num_lines, width), dtype=np.int64)
        numbers[_PLACES] = width + np.arange(width)
        numbers[_SLOTS] = self._scratch_block * self._block_size
        numbers[_LENS].view(np.int32)[:] = 1
        return numbers[1:]

    def _make_numbers(self, step: StepRows, slots: npt.NDArray[np.int64], table: RowTable) -> npt.NDArray[np.int64]:
        """Make the numbers that change in every step: all lines but the first.

        slots: int64 [R], those of the rows in `table`."""
        block_size, count = self._block_size, len(slots)
        numbers = self._make_scratch_numbers()
        lines = dict(enumerate(numbers[:, :count], start=1))
        starts = np.fromiter((row.start for row in step.rows), dtype=np.int64, count=count)
        sources = np.array(step.sources)
        for index in np.flatnonzero(sources < 0):
            lines[_IDS][index] = step.members[index].token_ids[starts[index]]
        lines[_PLACES][:] = np.where(sources >= 0, sources, lines[_PLACES])
        blocks = table.block_table[slots, starts // block_size].astype(np.int64)
        lines[_SLOTS][:] = blocks * block_size + starts % block_size
        numbers[_LENS - 1].view(np.int32)[:count] = starts + 1
        positions = numbers[_POSITIONS - 1 :, :count]
        positions[:] = starts + table.offsets[slots]
        for index in np.flatnonzero(starts < table.num_prompt_tokens[slots]):
            start = int(starts[index])  # these alone may have a different position on each axis
            positions[:, index] = step.members[index].positions(start, start + 1)[..., 0]
        if self._decoder.config.rotary.long_inv_freq is not None:
            lines[_IS_LONG][:] = table.is_long[slots]
        return numbers

    def _update_tables(self, slots: npt.NDArray[np.int64], table: RowTable, size: int) -> None:
        """Bring the block tables of the first `size` rows to the device if any is new."""
        count = len(slots)
        versions = np.zeros(size, dtype=np.int64)
        versions[:count] = table.versions[slots]
        changed = np.flatnonzero(versions != self._versions[:size])
        if not len(changed):
            return
        num_blocks = table.num_blocks[slots]
        longest = int(num_blocks.max())
        for index in changed:
            if index < count:
                used = num_blocks[index]
                self._host_table[index, :used] = table.block_table[slots[index], :used]
            else:
                self._host_table[index, 0] = self._scratch_block
        [there] = upload([np.ascontiguousarray(self._host_table[:size, :longest])], self._decoder.device)
        self._table[:size, :longest].copy_(there)
        self._versions[changed] = versions[changed]  # not before: the upload may have failed
