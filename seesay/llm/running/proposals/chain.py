"""Proposes tokens of sequences in one go: a layer that predicts from hidden states computes what it lacks of them, and
then token after token, each from what it made of the one before. The host waits once, for all of them, or not at all
(`ProposalRounds`); on a GPU one CUDA graph computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.streams import GraphRecorder, on_stream
from seesay.device.transfers import HostCopy, upload
from seesay.llm.ops import RowLayout
from seesay.llm.running.decode_graphs import make_decode_input
from seesay.llm.running.device_rows import DecodeInput, begin_decode, lend_blocks
from seesay.llm.running.proposals.round_state import choose, put_missing
from seesay.llm.running.step_sizes import fill_up, row_sizes

if TYPE_CHECKING:
    from seesay.llm.memory.kv_layout import LayerCache
    from seesay.llm.models.state_decoder import StateDecoder
    from seesay.llm.running.device_rows import DeviceRows
    from seesay.llm.running.proposals.round_state import VerifiedTokens
    from seesay.llm.running.row_table import RowState
    from seesay.llm.running.runner import ModelRunner


class ChainSize(NamedTuple):
    """Sequences, tokens that the layer lacks of all of them, and tokens that are proposed for each."""

    num_rows: int
    num_tokens: int
    num_proposed: int


class MissingTokens(NamedTuple):
    """What a layer lacks of R `members`: their last `counts` int64 [R] known tokens. states [sum of counts, hidden]:
    those of the model that these take."""

    members: Sequence[RowState]
    counts: npt.NDArray[np.int64]
    states: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chain:
    """Computes chains for the sequences in the slots `owners`, of each of which `lasts` is the last known token of the
    step. A device's graph may keep it, so it does not refer to graphs (see `decode_graphs`)."""

    decoder: StateDecoder
    caches: Sequence[LayerCache]
    rows: DeviceRows
    tables: torch.Tensor
    owners: torch.Tensor
    lasts: torch.Tensor
    block_size: int
    is_recorded: bool

    def compute(self, size: ChainSize) -> torch.Tensor:
        """Return the tokens int64 [num_proposed, num_rows]."""
        decoder, owners, lasts = self.decoder, self.owners[: size.num_rows], self.lasts[: size.num_rows]
        hidden = self._step(self.rows.slots[: size.num_tokens]).index_select(0, lasts)
        decoder.carry(decoder.carried(size.num_tokens).index_select(0, lasts))
        tokens = torch.empty(size.num_proposed, size.num_rows, dtype=torch.int64, device=owners.device)
        for number, found in enumerate(tokens):
            if number:
                hidden = self._step(owners)
            choose(decoder.known_logits(hidden), decoder.known_ids, owners, self.rows.state, found)
        return tokens

    def _step(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of the tokens in `slots`, each of which sees those before it in the KV cache."""
        traits = self.decoder.traits
        given = begin_decode(
            self.rows, slots, self.tables, block_size=self.block_size, num_axes=traits.num_position_axes
        )
        inputs = make_decode_input(given, traits)
        if not self.is_recorded:
            inputs = replace(inputs, layout=_bring_layout(given, self.block_size))
        return self.decoder.forward(inputs, self.caches)


class ProposalChain:
    """Chains of greedy tokens for the sequences of `runner`, which has `decoder`; as graphs, if its decode steps are.

    most: tokens that are proposed for a sequence. All of them, and those before, are at most most_tokens.
    """

    def __init__(self, runner: ModelRunner, decoder: StateDecoder, *, most: int, most_tokens: int) -> None:
        self._rows = rows = runner.device_rows
        assert min(rows.num_rows, rows.num_lent) >= most_tokens
        self._most, self._most_tokens = most, most_tokens
        self._sizes = row_sizes(min(rows.num_slots, most_tokens // 2))
        owners = torch.full((most_tokens,), rows.scratch_slot, device=rows.numbers.device)
        self._chain = _Chain(
            decoder=decoder,
            caches=runner.cache.layers,
            rows=rows,
            tables=rows.block_table[:1].repeat(most_tokens, 1),
            owners=owners,
            lasts=torch.zeros_like(owners),
            block_size=runner.block_size,
            is_recorded=runner.has_graphs,
        )
        self._graphs: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}
        if runner.has_graphs:
            recorder = GraphRecorder(runner.stream)
            with torch.inference_mode(), on_stream(runner.stream):
                for num_rows in reversed(self._sizes):
                    size = self._make_size(num_rows)
                    self._graphs[num_rows] = recorder.record(partial(self._chain.compute, size))

    def find_size(self, num_rows: int) -> ChainSize:
        """Return the size of a chain for so many sequences: how many tokens it takes and proposes at most."""
        return self._make_size(fill_up(num_rows, self._sizes) if self._graphs else num_rows)

    def _make_size(self, num_rows: int) -> ChainSize:
        num_proposed = min(self._most, self._most_tokens // num_rows - 1)
        return ChainSize(num_rows, num_rows * (num_proposed + 1), num_proposed)

    def run(self, missing: MissingTokens) -> npt.NDArray[np.int64]:
        """Return what is proposed, int64 [num_proposed, R], behind the known tokens of R sequences."""
        self.begin(missing)
        [proposed] = HostCopy(self.compute(len(missing.members), len(missing.states))).wait()
        chosen: npt.NDArray[np.int64] = proposed.numpy()
        return chosen

    def compute(self, num_rows: int, num_tokens: int) -> torch.Tensor:
        """Return what is proposed for `num_rows` sequences, of which the first `num_tokens` slots are missing tokens:
        int64 [num_proposed, num_rows] on the device, until the next ones are."""
        size = self.find_size(num_rows)
        if not self._graphs:
            return self._chain.compute(size._replace(num_tokens=num_tokens))
        replay, found = self._graphs[size.num_rows]
        replay()
        return found[:, :num_rows]

    def begin(self, missing: MissingTokens) -> None:
        """Bring what is missing to the device. Afterwards the host does not know what the device has of these
        sequences."""
        members, counts, states = missing
        size, rows = self.find_size(len(members)), self._rows
        assert len(states) <= size.num_tokens, (size, counts)
        num_tokens = size.num_tokens if self._graphs else len(states)
        firsts = np.cumsum(counts) - counts
        # The last token is computed in the sequence's own slot, where the chain goes on; those before it in lent ones.
        order = np.concatenate([first + np.roll(np.arange(n), 1) for first, n in zip(firsts, counts, strict=True)])
        stops = np.fromiter((member.num_known for member in members), np.int64, count=len(members))
        places = (np.repeat(stops - counts - firsts, counts) + np.arange(len(states)))[order]
        owners = np.fromiter((member.slot for member in members), np.int64, count=len(members))
        slots = rows.lend(owners, counts)
        each = [member for member, n in zip(members, counts.tolist(), strict=True) for _ in range(n)]
        rows.begin_decode(slots, places, each, size=num_tokens)
        num_more = size.num_rows - len(members)
        own, lasts, there = upload(
            [np.pad(owners, (0, num_more), constant_values=rows.scratch_slot), np.pad(firsts, (0, num_more)), order],
            states.device,
        )
        chain = self._chain
        chain.owners[: len(own)].copy_(own)
        chain.lasts[: len(lasts)].copy_(lasts)
        chain.decoder.carry(states.index_select(0, there))
        rows.token_places[slots] = -1

    def lend(self, owners: npt.NDArray[np.int64], num_lent: int) -> npt.NDArray[np.int64]:
        """Lend so many slots to each of `owners` int64 [R], and return them, int64 [R, num_lent]. `go_on` follows."""
        slots: npt.NDArray[np.int64] = self._rows.lend(owners, np.full(len(owners), 1 + num_lent))
        return slots.reshape(-1, 1 + num_lent)[:, 1:]

    def lend_blocks(self, owners: torch.Tensor, lent: torch.Tensor) -> None:
        """Let the slots that were lent to `owners` int64 [R], int64 [R, num_lent], have all blocks of these."""
        lend_blocks(self._rows, owners.repeat_interleave(lent.shape[1]), lent.reshape(-1))

    def forget(self, owners: npt.NDArray[np.int64]) -> None:
        """The device has gone on with the sequences in `owners`: the host does not know how far."""
        self._rows.forget(owners)

    def go_on(self, owners: torch.Tensor, lent: torch.Tensor, verified: VerifiedTokens) -> None:
        """Let the tokens that the model chose behind the proposed ones be those that are missing, and as many as were
        right. owners int64 [R] and lent int64 [R, num_proposed]: slots. The host does not wait."""
        rows, chain = self._rows, self._chain
        num_tokens = self.find_size(len(owners)).num_tokens
        put_missing(rows.state, rows.slots[:num_tokens], chain.lasts, owners, lent, verified)
        chain.decoder.carry(verified.states)


def _bring_layout(given: DecodeInput, block_size: int) -> RowLayout:
    """Bring the lengths and blocks of rows to the host."""
    kv_lens, table = (tensor.to("cpu").numpy().astype(np.int64) for tensor in (given.kv_lens, given.block_table))
    num_blocks = -(-kv_lens // block_size)
    places = np.minimum(np.arange(num_blocks.max()), num_blocks[:, None] - 1)
    return RowLayout(
        cu_seqlens_q=np.arange(len(kv_lens) + 1),
        kv_lens=kv_lens,
        block_table=np.take_along_axis(table, places, axis=1),
        block_size=block_size,
        num_decode=len(kv_lens),
    )
