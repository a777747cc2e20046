"""Reads what an adapter makes of a decoder's table of embeddings and of its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.device.linear.linear import Linear
from seesay.errors import CheckpointError
from seesay.llm.models.adapters.adapted_ends import TABLE, AdaptedMatrix, HostEnds
from seesay.llm.models.division import Division
from seesay.llm.models.embedding import EmbeddingTable
from seesay.llm.models.spec import DecoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReader:
    """Reads the ends of adapters of a decoder with `num_tokens` tokens. tokens: those whose logits this rank computes.
    list_tensors(name): those of the base model, of the table or the head, one of which may be the stored matrix.
    refusal: why this decoder's ends cannot have adapters."""

    num_tokens: int
    hidden_size: int
    tokens: range
    dtype: torch.dtype
    is_tied: bool
    list_tensors: Callable[[str], Sequence[torch.Tensor]]
    refusal: str | None = None

    def read(self, folder: AdapterFolder, table: str | None, head: str | None) -> HostEnds | None:
        """Return what an adapter makes of its modules `table` and `head`; None where it has neither. Raises
        `CheckpointError` for what does not fit."""
        if table is None and head is None:
            return None
        if self.refusal is not None:
            raise CheckpointError(f"{folder.path}: {table or head!r} cannot have an adapter here: {self.refusal}")
        source = table if head is None and folder.is_tied and self.is_tied else head
        return HostEnds(
            None if table is None else self._read(folder, table, range(self.num_tokens)),
            None if source is None else self._read(folder, source, self.tokens),
        )

    def _read(self, folder: AdapterFolder, module: str, tokens: range) -> AdaptedMatrix:
        whole, low_rank = folder.saved.get(module), folder.modules.get(module)
        num_tokens = self._check_sizes(folder, module)
        pair = None
        if low_rank is not None:
            b = low_rank.b[tokens.start : tokens.stop].float().mul(low_rank.scale)
            pair = low_rank.a.to(self.dtype).contiguous(), b.to(self.dtype)
        if whole is not None:
            whole = whole[tokens.start : tokens.stop].to(self.dtype)
        return AdaptedMatrix(num_tokens=num_tokens, whole=whole, low_rank=pair)

    def _check_sizes(self, folder: AdapterFolder, module: str) -> int:
        """Return the tokens that an adapter has in a matrix. Raises `CheckpointError` for one that does not fit."""
        whole, low_rank = folder.saved.get(module), folder.modules.get(module)
        sizes = {(len(whole), whole.shape[1])} if whole is not None else set()
        if low_rank is not None:
            sizes.add((len(low_rank.b), low_rank.a.shape[1]))
            if low_rank.magnitude is not None:
                raise CheckpointError(f"{folder.path}: {module!r} has a magnitude (DoRA), which is not supported here")
        num_tokens, width = max(sizes)
        if len(sizes) > 1 or width != self.hidden_size:
            raise CheckpointError(
                f"{folder.path}: the matrices of {module!r} are {sorted(map(list, sizes))}, those of the base model "
                f"have {self.hidden_size} columns: it was made for another base model"
            )
        if num_tokens > self.num_tokens:
            raise CheckpointError(
                f"{folder.path}: {module!r} has {num_tokens} tokens, the base model has room for {self.num_tokens}: "
                "tokens cannot be added here"
            )
        return num_tokens

    def is_base(self, name: str, whole: torch.Tensor) -> bool:
        """Return whether a matrix on the device is the base model's own, which PEFT writes beside factors. Called
        between steps."""
        if len(whole) != self.num_tokens or len(self.tokens) != self.num_tokens:  # a rank does not have all
            return False
        for tensor in self.list_tensors(TABLE if self.is_tied else name):
            plain = tensor if tensor.layout is torch.strided else tensor.to_dense()  # oneDNN's own on the CPU
            is_there = plain.untyped_storage().nbytes() > 0  # not in a model that sleeps
            if is_there and plain.dim() == 2 and len(plain) >= len(whole) and plain.dtype == whole.dtype:
                return torch.equal(plain[: len(whole)], whole)
        return False


def make_end_reader(
    config: DecoderConfig, division: Division, table: EmbeddingTable, head: Linear, dtype: torch.dtype
) -> EndReader:
    """Return the reader of a decoder with this table and head, or of a rank's share of it."""

    def list_tensors(name: str) -> Sequence[torch.Tensor]:
        if name == TABLE:
            return (table.weight.data,) if hasattr(table.weight, "data") else ()
        return head.tensors

    has_own_form = config.num_added_tokens or config.has_unit_head or config.has_embedding_norm
    return EndReader(
        num_tokens=config.vocab_size,
        hidden_size=config.hidden_size,
        tokens=division.tokens(config.vocab_size),
        dtype=dtype,
        is_tied=config.tied_embeddings,
        list_tensors=list_tensors,
        refusal="this model stores its table or its head in a form of its own" if has_own_form else None,
    )
