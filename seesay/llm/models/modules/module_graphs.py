"""Whether decode steps of a Transformers model's modules can be captured as graphs: tried at start.

Modules may wait for the device, or choose by numbers of the host what they compute. So a step is captured and replayed
on other tokens, and its logits are compared with those of the modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from seesay.device.backends import has_graphs
from seesay.device.query import synchronize
from seesay.device.streams import GraphRecorder, can_capture, make_stream, on_stream
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.ops import DecodeRows

_BLOCK_SIZE = 64
_NUM_ROWS = 2
_LENGTHS = ((1, 1), (2, 2), (9, 3), (10, 4))
"""Known tokens of both rows in steps that follow one another; lengths that are left out have blocks of zeros. The third
one is captured, and replayed as the fourth."""
_MOST_ERROR = 1e-2


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A decode step whose tensors keep their addresses."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    kv_lens: torch.Tensor
    faults: torch.Tensor
    layout: DecodeRows

    @classmethod
    def make(cls, decoder: Decoder) -> _Tokens:
        num_axes = decoder.traits.num_position_axes
        zeros = torch.zeros(_NUM_ROWS, dtype=torch.int64, device=decoder.device)
        kv_lens = torch.ones(_NUM_ROWS, dtype=torch.int32, device=decoder.device)
        table = torch.arange(_NUM_ROWS, dtype=torch.int32, device=decoder.device)[:, None]
        return cls(
            ids=zeros.clone(),
            positions=zeros.repeat(num_axes, 1) if num_axes > 1 else zeros.clone(),
            slots=zeros.clone(),
            kv_lens=kv_lens,
            faults=torch.zeros(_NUM_ROWS, device=decoder.device),
            layout=DecodeRows(kv_lens=kv_lens, block_table=table),
        )

    def set(self, ids: Sequence[int], lengths: Sequence[int]) -> None:
        """Take the last tokens of rows of these lengths."""
        places = [length - 1 for length in lengths]
        self.ids.copy_(torch.tensor(ids))
        self.positions.copy_(torch.tensor(places).expand_as(self.positions))
        self.slots.copy_(torch.tensor([row * _BLOCK_SIZE + place for row, place in enumerate(places)]))
        self.kv_lens.copy_(torch.tensor(lengths))

    def as_input(self) -> ModelInput:
        return ModelInput(
            input_ids=self.ids,
            positions=self.positions,
            slot_mapping=self.slots,
            layout=self.layout,
            faults=self.faults,
        )


def why_not_captured(decoder: Decoder) -> str | None:
    """Return why a graph does not compute what a decode step of `decoder` computes; None if it does."""
    device = decoder.device
    if not has_graphs(device):
        return f"{device.type} has none"
    stream = make_stream(device, is_urgent=False)
    if not can_capture(stream):
        return "there is no stream to capture"
    synchronize(device)
    try:
        with torch.inference_mode(), on_stream(stream):
            error = _compare_replay(decoder, GraphRecorder(stream))
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:  # what its modules do is unknown, and so is what they raise
        synchronize(device)
        return f"{type(failure).__name__}: {(str(failure).strip().splitlines() or [''])[0]}"
    return (
        None if error <= _MOST_ERROR else f"a captured step has other logits (they differ by {error:.2g} of their size)"
    )


def _compare_replay(decoder: Decoder, recorder: GraphRecorder) -> float:
    """Return the size of the difference between the logits of a replayed step and of the modules' own, relative to
    that of the latter."""
    layouts = make_layouts(decoder.traits.kv_shapes, block_size=_BLOCK_SIZE, dtype=decoder.dtype)
    caches = KVCache(layouts, num_blocks=_NUM_ROWS, device=decoder.device).layers
    tokens = _Tokens.make(decoder)
    drawn = torch.randint(
        decoder.traits.vocab_size, (len(_LENGTHS), _NUM_ROWS), generator=torch.Generator().manual_seed(0)
    )

    def compute() -> torch.Tensor:
        return decoder.logits(decoder.forward(tokens.as_input(), caches))

    *first, captured, last = zip(drawn.tolist(), _LENGTHS, strict=True)
    for ids, lengths in first:
        tokens.set(ids, lengths)
        compute()
    tokens.set(*captured)
    replay, logits = recorder.record(compute)
    tokens.set(*last)
    expected = compute().float()
    logits.zero_()
    replay()
    decoder.forget_blocks()
    return float((logits.float() - expected).norm() / expected.norm().clamp(min=1e-9))
