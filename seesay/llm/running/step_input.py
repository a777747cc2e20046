"""From a plan to the decoder's input: all index arrays of a step, made on the host, and the rows to splice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import upload
from seesay.llm.models.decoder import ModelInput, RowSplit
from seesay.llm.ops import RowLayout, SlotRows
from seesay.llm.ops.low_rank import SlotTiles, sort_by_slot
from seesay.llm.plans.step_plan import Row, StepPlan
from seesay.llm.plans.traits import DecoderTraits, MediaTokens
from seesay.llm.running.device_rows import DeviceRows
from seesay.llm.running.row_table import RowState, RowTable
from seesay.llm.running.seen_media import Seen, attend_media, find_seeing
from seesay.llm.running.splices import Splices
from seesay.llm.running.step_sizes import fill_up

_START, _NUM_TOKENS, _SAMPLES, _DRAFTS = map(attrgetter, ("start", "num_tokens", "samples", "drafts"))
_SLOT, _NUM_KNOWN, _NUM_PROMPT = map(attrgetter, ("slot", "num_known", "num_prompt_tokens"))
_NEXT_POSITION, _RUNS_STOP, _ADAPTER_SLOT = map(attrgetter, ("next_position", "runs_stop", "adapter_slot"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of a plan; `members[i]` is the sequence of `rows[i]`, in slot `slots[i]`. The first `num_single` have
    one token each, which lies behind all runs (`TokenRuns`) of its sequence.

    starts, stops int64 [R]: each row's first place and the one after its last. pending int64: rows whose one token was
    sampled, but is not known to the host. num_drafts int64 [R]: proposed tokens of each row. sampling int64: the rows
    that give a token, or several behind drafts. samples_all: whether each token gives the next one. follows_prompt:
    whether no row has a token of a prompt. adapter_slots int64 [R]: see `BegunSequence`; None where no row has an
    adapter. seen: what tokens attend to, by the index of their row.
    fresh_blocks get their first tokens in this step and are not filled by it: see `KVCache.clear`.
    """

    rows: tuple[Row, ...]
    members: tuple[RowState, ...]
    num_single: int
    slots: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    pending: npt.NDArray[np.int64]
    num_drafts: npt.NDArray[np.int64]
    sampling: npt.NDArray[np.int64]
    samples_all: bool
    follows_prompt: bool
    splices: Mapping[int, Splices]
    adapter_slots: npt.NDArray[np.int64] | None = None
    seen: Mapping[int, tuple[Seen, ...]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return int((self.stops - self.starts).sum())

    @property
    def has_drafts(self) -> bool:
        """Whether any row has proposed tokens."""
        return bool(self.num_drafts.any())

    @property
    def is_decode(self) -> bool:
        """Whether each row has one known token, which was generated, and all tokens give the next one."""
        return self.samples_all and self.follows_prompt

    @property
    def num_sampled(self) -> int:
        """Places behind which a token is chosen."""
        return len(self.sampling) + int(self.num_drafts[self.sampling].sum())

    @property
    def sampled_slots(self) -> npt.NDArray[np.int64] | None:
        """The slots of the adapters of the places behind which a token is chosen; None where no row has one."""
        if self.adapter_slots is None:
            return None
        return np.repeat(self.adapter_slots[self.sampling], 1 + self.num_drafts[self.sampling])

    def find_sampled(self, cu_seqlens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the tokens behind which one is chosen, row by row, where row b ends before `cu_seqlens[b + 1]`."""
        lasts: npt.NDArray[np.int64] = cu_seqlens[1:][self.sampling] - 1
        if not self.has_drafts:
            return lasts
        num_drafts = self.num_drafts[self.sampling]
        return np.concatenate(
            [np.arange(last - count, last + 1) for last, count in zip(lasts, num_drafts, strict=True)]
        )

    @property
    def fresh_states(self) -> list[int]:
        """The slots of sequences that begin with nothing; none where no layer has a state."""
        pairs = zip(self.rows, self.members, strict=True)
        return [member.state_slot for row, member in pairs if not row.start and member.state_slot >= 0]

    def fresh_blocks(self, block_size: int) -> list[int]:
        pairs = zip(self.rows, self.members, strict=True)
        return [block for row, member in pairs if (block := _fresh_block(row, member, block_size)) is not None]


def arrange_rows(plan: StepPlan, table: RowTable, splices: Mapping[int, Splices], *, block_size: int) -> StepRows:
    """Put the rows of a plan in their order. `splices` of `find_splices`, which found no errors. Written for many rows
    of one token: their numbers are handled as arrays."""
    rows = plan.rows
    members = tuple([table[row.seq_id] for row in rows])
    starts, counts = (np.fromiter(map(get, rows), np.int64, count=len(rows)) for get in (_START, _NUM_TOKENS))
    is_single = (counts == 1) & (starts >= np.fromiter(map(_RUNS_STOP, members), np.int64, count=len(rows)))
    if not is_single.all():
        order = np.argsort(~is_single, kind="stable")
        starts, counts = starts[order], counts[order]
        rows, members = tuple([rows[i] for i in order.tolist()]), tuple([members[i] for i in order.tolist()])
    slots, num_known, num_prompt, num_blocks = (
        np.fromiter(map(get, members), np.int64, count=len(rows))
        for get in (_SLOT, _NUM_KNOWN, _NUM_PROMPT, _num_blocks)
    )
    stops = starts + counts
    assert (stops > starts).all() and (num_blocks * block_size >= stops).all(), plan
    num_drafts = np.fromiter(map(len, map(_DRAFTS, rows)), np.int64, count=len(rows))
    sampling = np.flatnonzero(np.fromiter(map(_SAMPLES, rows), np.bool_, count=len(rows)))
    pending = np.flatnonzero(stops > num_known)
    assert (starts[pending] == num_known[pending]).all(), plan
    in_prompt = np.flatnonzero(starts < num_prompt)
    spliced = {}
    for index in range(len(rows)) if splices else ():
        if rows[index].start < members[index].media_end and (found := splices[rows[index].seq_id]).offsets:
            spliced[index] = found
    return StepRows(
        rows=rows,
        members=members,
        num_single=int(is_single.sum()),
        slots=slots,
        starts=starts,
        stops=stops,
        pending=pending,
        num_drafts=num_drafts,
        sampling=sampling,
        samples_all=len(sampling) == len(rows) and bool((counts == 1 + num_drafts).all()),
        follows_prompt=not len(in_prompt),
        splices=spliced,
        seen={i: own.seen for i, row in enumerate(rows) if (own := splices.get(row.seq_id)) and own.seen}
        if splices
        else {},
        adapter_slots=_find_adapter_slots(members) if table.has_adapters else None,
    )


def _find_adapter_slots(members: Seq[RowState]) -> npt.NDArray[np.int64] | None:
    slots = np.fromiter(map(_ADAPTER_SLOT, members), np.int64, count=len(members))
    return slots if (slots >= 0).any() else None


def _num_blocks(member: RowState) -> int:
    return len(member.block_ids)


def _fresh_block(row: Row, member: RowState, block_size: int) -> int | None:
    """The row's last block when the row begins but does not fill it."""
    stop = row.start + row.num_tokens
    last = (stop - 1) // block_size
    return member.block_ids[last] if last * block_size >= row.start and stop % block_size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPadding:
    """The padding of steps: tokens of a block that no sequence owns, with a state that is nobody's, to one of a few
    sizes (see `step_sizes`)."""

    scratch_block: int
    scratch_state: int = 0
    token_sizes: Seq[int]
    row_sizes: Seq[int]


class StepInput(NamedTuple):
    """The decoder's input, and int64 on the device: the tokens behind which one is chosen, row by row, and the slots of
    the rows that sample. With padding more tokens follow, which mean nothing."""

    model: ModelInput
    sampled: torch.Tensor
    slots: torch.Tensor


def make_step_input(
    step: StepRows,
    device_rows: DeviceRows,
    *,
    traits: DecoderTraits,
    block_size: int,
    device: torch.device,
    embeddings: torch.Tensor | None,
    padding: StepPadding | None = None,
) -> StepInput:
    """Make the input of a step. Tokens that the host does not know are in `device_rows`. embeddings: the rows of
    `join_embeddings`. With `padding` the input may have another row."""
    rows, tables = list(step.rows), [member.block_ids for member in step.members]
    if padding is not None:
        num_known = sum(row.num_tokens for row in rows)
        num_more = fill_up(num_known, padding.token_sizes) - num_known
        if num_more:
            rows.append(Row(seq_id=-1, start=0, num_tokens=num_more, samples=False))
            tables.append((padding.scratch_block,) * -(-num_more // block_size))
    layout = _make_layout(rows, tables, block_size, num_decode=step.num_single)
    num_tokens = int(layout.cu_seqlens_q[-1])
    input_ids = np.empty(num_tokens, dtype=np.int64)
    axes = () if traits.num_position_axes == 1 else (traits.num_position_axes,)
    positions = np.empty((*axes, num_tokens), dtype=np.int64)
    slots = np.empty(num_tokens, dtype=np.int64)
    first = num_decode = _count_decode(step)
    _write_decode(step, num_decode, input_ids, positions, slots, block_size=block_size)
    for index, row, member in zip(
        range(num_decode, len(step.rows)), step.rows[num_decode:], step.members[num_decode:], strict=True
    ):
        stop = row.start + row.num_tokens
        own = slice(first, first + row.num_tokens)
        first += row.num_tokens
        input_ids[own] = member.token_ids[row.start : stop] if stop <= member.num_known else 0
        positions[..., own] = member.positions(row.start, stop)
        places = np.arange(row.start, stop)
        slots[own] = layout.block_table[index, places // block_size] * block_size + places % block_size
    if first < num_tokens:
        assert padding is not None
        input_ids[first:] = 0
        positions[..., first:] = 0
        slots[first:] = padding.scratch_block * block_size + np.arange(num_tokens - first) % block_size
    if traits.has_runs:
        layout = replace(layout, runs=_find_runs(step, num_tokens))
    sampled = step.find_sampled(layout.cu_seqlens_q)
    if padding is not None and len(sampled):
        sampled = np.pad(sampled, (0, fill_up(len(sampled), padding.row_sizes) - len(sampled)))
    arrays: dict[str, npt.NDArray[Any]] = {
        "input_ids": input_ids,
        "positions": positions,
        "slots": slots,
        "sampled": sampled,
        "sampling_slots": step.slots[step.sampling],
        "faults": np.zeros(num_tokens, dtype=np.float32),
    }
    if padding is not None:
        arrays["is_valid"] = np.arange(num_tokens) < first
    if step.seen:
        arrays["seeing"] = find_seeing(step.seen, layout.cu_seqlens_q)
    adapted = _find_adapted(step, num_tokens)
    if adapted is not None:
        arrays |= {"adapted_tokens": adapted.tokens, "adapter_tiles": adapted.tiles}
    if traits.length_scaling is not None:
        stretches = [member.stretch for member in step.members] + [0.0] * (len(rows) - len(step.rows))
        arrays["stretches"] = np.repeat(np.array(stretches), np.diff(layout.cu_seqlens_q))
    if traits.has_states:
        slots_of_rows = [member.state_slot for member in step.members]
        slots_of_rows += [0 if padding is None else padding.scratch_state] * (len(rows) - len(step.rows))
        arrays["state_slots"] = np.array(slots_of_rows, dtype=np.int64)
    if len(step.pending):  # each is the only token of its row, and such rows come first
        arrays["pending"] = late = step.pending
        arrays["sources"] = device_rows.find_tokens(step.slots[late], step.starts[late])
    if step.splices:
        targets = [layout.cu_seqlens_q[index] + offsets for index, s in step.splices.items() for offsets in s.offsets]
        arrays["splice_rows"] = np.concatenate(targets)
    if traits.media_rows is not None:
        arrays |= _split_rows(step, layout, traits.media_rows)
    there = dict(zip(arrays, upload(list(arrays.values()), device), strict=True))
    if len(step.pending):
        tokens = device_rows.words.index_select(0, there["sources"])
        there["input_ids"].index_copy_(0, there["pending"], tokens)
    model = ModelInput(
        input_ids=there["input_ids"],
        positions=there["positions"],
        slot_mapping=there["slots"],
        layout=layout,
        faults=there["faults"],
        stretches=there.get("stretches"),
        splice_rows=there.get("splice_rows"),
        splice_embeddings=embeddings,
        media_rows=RowSplit(there["media_rows"], there["text_rows"]) if "media_rows" in there else None,
        media_attention=attend_media(step.seen, there["seeing"]) if step.seen else None,
        is_valid=there.get("is_valid"),
        adapters=None
        if adapted is None
        else SlotRows(
            tokens=there["adapted_tokens"],
            tiles=there["adapter_tiles"],
            tile_rows=adapted.tile_rows,
            runs=adapted.runs,
        ),
        state_slots=there.get("state_slots"),
    )
    return StepInput(model, there["sampled"], there["sampling_slots"])


def _find_adapted(step: StepRows, num_tokens: int) -> SlotTiles | None:
    """Return the tokens that adapters change, by the slots of these, and behind them all others."""
    if step.adapter_slots is None:
        return None
    slots = np.full(num_tokens, -1)
    slots[: step.num_tokens] = np.repeat(step.adapter_slots, step.stops - step.starts)
    return sort_by_slot(slots)


def _split_rows(step: StepRows, layout: RowLayout, tokens: MediaTokens) -> dict[str, npt.NDArray[np.int64]]:
    """Return the two arrays of a `RowSplit`, `media_rows` and `text_rows`; nothing where there are no rows of media."""
    found = _list_spans(step) if tokens == "span" else _list_spliced(step, has_last=tokens == "all")
    is_media = np.zeros(int(layout.cu_seqlens_q[-1]), dtype=np.bool_)
    for index, offsets in found:
        is_media[layout.cu_seqlens_q[index] + offsets] = True
    if not is_media.any():
        return {}
    return {"media_rows": np.flatnonzero(is_media), "text_rows": np.flatnonzero(~is_media)}


def _list_spliced(step: StepRows, *, has_last: bool) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield (the number of a row, offsets in it) of tokens that take embeddings. has_last: also of the last ones of
    their items."""
    for index, found in step.splices.items():
        for offsets, is_end in zip(found.offsets, found.are_ends, strict=True):
            yield index, offsets[:-1] if is_end and not has_last else offsets


def _list_spans(step: StepRows) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield (the number of a row, offsets in it) of all tokens of items, those around their embeddings included."""
    if step.follows_prompt:
        return
    for index, (member, first, stop) in enumerate(zip(step.members, step.starts, step.stops, strict=True)):
        for item in member.items if first < member.num_prompt_tokens else ():
            start, end = max(item.span[0], int(first)), min(item.span[1], int(stop))
            if start < end:
                yield index, np.arange(start, end) - first


def _find_runs(step: StepRows, num_tokens: int) -> npt.NDArray[np.int64]:
    """Return the first and the last place of each token's run, int64 [2, num_tokens]. Padding comes last, outside of
    all runs."""
    pairs = zip(step.rows, step.members, strict=True)
    own = [member.runs.find(row.start, row.start + row.num_tokens) for row, member in pairs]
    padding = np.arange(num_tokens - sum(each.shape[1] for each in own), dtype=np.int64)
    return np.concatenate([*own, np.stack((padding, padding))], axis=1)


def _count_decode(step: StepRows) -> int:
    """How many rows at the beginning have one generated token each."""
    num_prompt = np.fromiter(map(_NUM_PROMPT, step.members), np.int64, count=len(step.rows))
    others = np.flatnonzero((step.stops - step.starts > 1) | (step.starts < num_prompt))
    return int(others[0]) if len(others) else len(step.rows)


def _write_decode(
    step: StepRows,
    num_decode: int,
    input_ids: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    *,
    block_size: int,
) -> None:
    """Write what the first `num_decode` rows have, for each of which a line of Python would be too many."""
    members, starts = step.members[:num_decode], step.starts[:num_decode]
    offsets, num_prompt = (
        np.fromiter(map(get, members), np.int64, count=num_decode) for get in (_NEXT_POSITION, _NUM_PROMPT)
    )
    positions[..., :num_decode] = offsets + starts - num_prompt
    places, within = np.divmod(starts, block_size)
    blocks = [member.block_ids[place] for member, place in zip(members, places.tolist(), strict=True)]
    slots[:num_decode] = np.array(blocks, dtype=np.int64) * block_size + within
    input_ids[:num_decode] = 0  # of those that only the device knows
    known = np.ones(num_decode, dtype=np.bool_)
    known[step.pending[step.pending < num_decode]] = False
    for index in np.flatnonzero(known).tolist():
        input_ids[index] = members[index].token_ids[step.rows[index].start]


def _make_layout(rows: Seq[Row], tables: Seq[tuple[int, ...]], block_size: int, *, num_decode: int) -> RowLayout:
    """`tables` are the block tables of the rows; they may be longer than needed."""
    starts, counts = (np.fromiter(map(get, rows), np.int64, count=len(rows)) for get in (_START, _NUM_TOKENS))
    kv_lens = starts + counts
    num_blocks = -(-kv_lens // block_size)
    used = [table[:count] for table, count in zip(tables, num_blocks.tolist(), strict=True)]
    flat = np.fromiter(chain.from_iterable(used), np.int64, count=int(num_blocks.sum()))
    ends = np.cumsum(num_blocks)
    # Each row's blocks, then its last one again.
    width = np.arange(num_blocks.max(initial=0))
    places = (ends - num_blocks)[:, None] + np.minimum(width, num_blocks[:, None] - 1)
    block_table = flat[places]
    cu_seqlens_q = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=cu_seqlens_q[1:])
    return RowLayout(
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        block_table=block_table,
        block_size=block_size,
        num_decode=num_decode,
    )
