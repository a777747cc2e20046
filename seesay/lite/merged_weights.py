"""The stored weights of a checkpoint with an adapter merged: sums with products of low rank, and whole weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.tensors import is_finite
from seesay.errors import CheckpointError
from seesay.lite.methods.requantizing import check_parts, list_parts, requantize

TABLE, HEAD = "embed_tokens", "lm_head"
_OF_EXPERT = re.compile(r"(?P<parent>.+\.experts)\.(?P<expert>\d+)\.(?P<weight>gate_up_proj|up_proj|down_proj)")
_EXPERT_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    ".mlp.": {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)},
    ".block_sparse_moe.": {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
}
"""What checkpoints have in place of `.mlp.`, and the modules of an expert there whose weights, one below the other, are
one parameter in Transformers."""


@dataclass(frozen=True, slots=True)
class ChangedMatrix:
    """The weight of a module. whole: what takes its place. low_rank: what is added to that; None: nothing. parts: the
    names of the tensors that stand for the weight of a quantized module, behind that of the module; none for a plain
    one. source: the stored module that the weight comes from, where there is none of its own."""

    module: str
    low_rank: LowRank | None = None
    whole: Tensor | None = None
    parts: tuple[str, ...] = ()
    source: str | None = None

    @property
    def shape(self) -> tuple[int, int]:
        if self.whole is not None:
            return len(self.whole), self.whole.shape[1]
        assert self.low_rank is not None, "a copy has the size of its source"
        return self.low_rank.shape

    @property
    def is_copy(self) -> bool:
        """Whether it is what is stored, under another name."""
        return self.low_rank is None and self.whole is None

    @property
    def names(self) -> list[str]:
        return [f"{self.module}.{part}" for part in self.parts or ("weight",)]

    @property
    def is_end(self) -> bool:
        """Whether it is a table of embeddings or a head, of which an adapter may change the number of tokens."""
        return self.module.rpartition(".")[2] in (TABLE, HEAD) and not self.parts

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise `ValueError`, which says what there is, where the sizes of the weight are others."""
        if self.is_copy:
            return
        module = self.source or self.module
        shapes = {part: checkpoint.stored[f"{module}.{part}"].shape for part in self.parts or ("weight",)}
        if self.low_rank is not None and self.low_rank.shape != self.shape:
            raise ValueError(f"factors of {list(self.low_rank.shape)} beside a whole weight {list(self.shape)}")
        if self.parts and checkpoint.quantization is not None:
            check_parts(shapes, checkpoint.quantization, self.shape)
        elif not self._fits(shapes["weight"]):
            raise ValueError(f"weight {list(shapes['weight'])}")

    def _fits(self, stored: tuple[int, ...]) -> bool:
        may_grow = self.is_end and self.whole is not None
        return stored[1:] == self.shape[1:] if may_grow else stored == self.shape

    def change(self, weight: Tensor) -> Tensor:
        """Return the new weight, float32 [out, in]."""
        total = weight.float() if self.whole is None else self.whole.float()
        low_rank = self.low_rank
        if low_rank is not None:
            total = total.addmm(low_rank.b.float(), low_rank.a.float(), alpha=low_rank.scale)
            if low_rank.magnitude is not None:
                total.mul_((low_rank.magnitude.float() / torch.linalg.vector_norm(total, dim=1))[:, None])
        return total

    def read(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        module, parts = self.source or self.module, self.parts or ("weight",)
        stored = dict(zip(parts, read_stored(checkpoint, [f"{module}.{part}" for part in parts]).values(), strict=True))
        if checkpoint.quantization is None or not self.parts:
            weight = self.change(stored["weight"]).to(stored["weight"].dtype)
            return {self.names[0]: check_finite(weight, self.module)}
        try:
            changed = requantize(
                stored,
                checkpoint.quantization,
                self.shape,
                lambda weight: check_finite(self.change(weight), self.module),
            )
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.path}: {self.module!r} has {error}") from None
        return {f"{self.module}.{part}": tensor for part, tensor in (stored | changed).items()}


@dataclass(frozen=True, slots=True)
class ChangedStack:
    """The weights of all experts, one tensor [experts, out, in], or [experts, in, out] where it `is_turned`.

    scale_name: of the tensor of their scales, whose axes are in the same order; None for plain ones. products: what is
    added to those of experts.
    """

    name: str
    is_turned: bool
    scale_name: str | None = None
    products: dict[int, LowRank] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [self.name, *([self.scale_name] if self.scale_name else [])]

    def read(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        tensors = read_stored(checkpoint, self.names)
        for expert, low_rank in self.products.items():
            stored = [self._turn(tensor[expert]) for tensor in tensors.values()]
            for place, changed in zip(stored, self._change(checkpoint, stored, low_rank), strict=True):
                place.copy_(changed)
        return tensors

    def _change(self, checkpoint: Checkpoint, stored: list[Tensor], low_rank: LowRank) -> list[Tensor]:
        """Return what takes the place of the weight [out, in] of an expert, and of its scales."""

        def change(weight: Tensor) -> Tensor:
            return check_finite(
                weight.float().addmm(low_rank.b.float(), low_rank.a.float(), alpha=low_rank.scale), self.name
            )

        if (quantization := checkpoint.quantization) is None or self.scale_name is None:
            return [check_finite(change(stored[0]).to(stored[0].dtype), self.name)]
        parts = dict(zip(("weight", quantization.scale_name), stored, strict=True))
        try:
            check_parts({name: tensor.shape for name, tensor in parts.items()}, quantization, low_rank.shape)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.path}: {self.name!r} has {error}") from None
        changed = requantize(parts, quantization, low_rank.shape, change)
        return [changed[name] for name in parts]

    def _turn(self, tensor: Tensor) -> Tensor:
        return tensor.t() if self.is_turned else tensor


class Changes:
    """All changes of a checkpoint by an adapter. Raises `CheckpointError` for an adapter that does not fit.

    found: the changes by the stored names of modules or tensors. own_head: the head, which was the
    table of embeddings and is to be stored beside it; None: nothing changes there. parts_ends: whether table and head
    are no longer equal, if they were.
    num_tokens: the rows of the table and of the head before and now, where they change; else None.
    """

    def __init__(self, checkpoint: Checkpoint, folder: AdapterFolder) -> None:
        self._checkpoint, self._folder = checkpoint, folder
        self.found: dict[str, ChangedMatrix | ChangedStack] = {}
        self.own_head: ChangedMatrix | None = None
        self._table, self._head = (_find_end(checkpoint, name) for name in (TABLE, HEAD))
        for module in sorted(folder.names):
            self._find(module)
        self.parts_ends = self._head in self.found or (self._table in self.found and not folder.is_tied)
        if self._is_tied and self.parts_ends and self.own_head is None:
            self._untie(HEAD)
        self.num_tokens = self._find_num_tokens()

    @property
    def _is_tied(self) -> bool:
        return bool(self._table) and not self._head

    def _find(self, module: str) -> None:
        low_rank, whole = self._folder.modules.get(module), self._folder.saved.get(module)
        for name in self._spell(module):
            if (parts := _find_parts(self._checkpoint, name)) is not None:
                self._add(module, ChangedMatrix(name, low_rank, whole, parts))
                return
        if module.rpartition(".")[2] == HEAD and self._is_tied:
            self._untie(module)
            return
        match = _OF_EXPERT.fullmatch(module)
        if match is not None and low_rank is not None and self._find_of_expert(module, match, low_rank):
            return
        raise CheckpointError(f"{self._folder.path}: {self._checkpoint.path} has no weight of {module!r}")

    def _untie(self, module: str) -> None:
        """Let the head, `module` of the adapter, be one of its own."""
        front = "language_model." if self._table.startswith("language_model.model.") else ""
        low_rank, whole = self._folder.modules.get(module), self._folder.saved.get(module)
        self.own_head = ChangedMatrix(f"{front}{HEAD}", low_rank, whole, source=self._table)
        self._add(module, self.own_head)

    def _find_num_tokens(self) -> tuple[int, int] | None:
        sizes = self._size_ends()
        before, now = {old for old, _ in sizes.values()}, {new for _, new in sizes.values()}
        if len(before) == 1 < len(now):
            found = {name: new for name, (_, new) in sizes.items()}
            raise CheckpointError(
                f"{self._folder.path}: table and head would have different numbers of tokens: {found}"
            )
        return next(((old, new) for old, new in sizes.values() if old != new), None)

    def _size_ends(self) -> dict[str, tuple[int, int]]:
        """Return the rows of table and head, before and now."""
        stored, sizes = self._checkpoint.stored, dict[str, tuple[int, int]]()
        for name in filter(None, (self._table, self._head)):
            rows = stored[f"{name}.weight"].shape[0]
            sizes[name] = rows, rows
        for name, change in self.found.items():
            if isinstance(change, ChangedMatrix) and change.is_end and not change.is_copy:
                sizes[name] = stored[f"{change.source or name}.weight"].shape[0], change.shape[0]
        return sizes

    def _spell(self, module: str) -> Iterator[str]:
        for name in self._folder.spell(module):
            for other in _EXPERT_NAMES:
                yield name.replace(".mlp.", other)

    def _add(self, module: str, change: ChangedMatrix) -> None:
        try:
            change.check(self._checkpoint)
        except ValueError as error:
            raise CheckpointError(
                f"{self._folder.path}: the adapter of {module!r} is for a weight {list(change.shape)}, "
                f"{change.source or change.module!r} of {self._checkpoint.path} has {error}"
            ) from None
        if change.module in self.found:
            raise CheckpointError(f"{self._folder.path}: two of its adapters are for {change.module!r}")
        self.found[change.module] = change

    def _find_of_expert(self, module: str, match: re.Match[str], low_rank: LowRank) -> bool:
        """Find the weights that part of an adapter of a parameter of all experts is for. Returns whether they are
        there."""
        parent, expert, weight = match["parent"], int(match["expert"]), match["weight"]
        for name in self._folder.spell(f"{parent}.{weight}"):
            if name in self._checkpoint.stored:
                self._add_to_stack(module, name, expert, low_rank)
                return True
            if f"{name}_blocks" in self._checkpoint.stored:
                raise CheckpointError(
                    f"{self._folder.path}: {name!r} of {self._checkpoint.path} is stored in MXFP4, into which nothing "
                    "is merged: merge into the model with plain experts"
                )
        for other, weights in _EXPERT_NAMES.items():
            own = weights.get(weight, ())
            for name in self._folder.spell(f"{parent}.{expert}".replace(".mlp.", other)):
                if self._add_each(module, [f"{name}.{each}" for each in own], low_rank):
                    return True
        return False

    def _add_each(self, module: str, names: Sequence[str], low_rank: LowRank) -> bool:
        """Add what is for the weights of these modules, one below the other. Returns whether they are there."""
        parts = [part for name in names if (part := _find_parts(self._checkpoint, name)) is not None]
        if not names or len(parts) < len(names):
            return False
        for name, part, piece in zip(names, parts, _cut(low_rank, len(names)), strict=True):
            self._add(module, ChangedMatrix(name, piece, parts=part))
        return True

    def _add_to_stack(self, module: str, name: str, expert: int, low_rank: LowRank) -> None:
        shape = self._checkpoint.stored[name].shape
        is_turned = _is_turned(self._checkpoint, name)
        expected = shape[:0:-1] if is_turned else shape[1:]
        if low_rank.shape != expected and low_rank.shape == expected[::-1]:
            low_rank = low_rank.turn()  # PEFT took it for [experts, out, in], or for [experts, in, out]
        if len(shape) != 3 or low_rank.shape != expected or expert >= shape[0]:
            raise CheckpointError(
                f"{self._folder.path}: the adapter of {module!r} is for a weight {list(low_rank.shape)}, {name!r} of "
                f"{self._checkpoint.path} has {list(shape)}"
            )
        stack = self.found.setdefault(name, ChangedStack(name, is_turned, self._find_scales(name)))
        assert isinstance(stack, ChangedStack)
        stack.products[expert] = low_rank

    def _find_scales(self, name: str) -> str | None:
        """Return the name of the scales beside a tensor of all experts; None where it is plain."""
        if (quantization := self._checkpoint.quantization) is None:
            return None
        scale_name = f"{name}{quantization.scale_name.removeprefix('weight')}"
        return scale_name if scale_name in self._checkpoint.stored else None


def _find_end(checkpoint: Checkpoint, name: str) -> str:
    ending = f".{name}.weight"
    return next((each.removesuffix(".weight") for each in checkpoint.stored if f".{each}".endswith(ending)), "")


def _find_parts(checkpoint: Checkpoint, name: str) -> tuple[str, ...] | None:
    """Return the tensors that stand for the weight of a quantized module, none for a plain one; None where the
    checkpoint has no such module."""
    stored, quantization = checkpoint.stored, checkpoint.quantization
    if quantization is not None:
        names = list_parts(quantization)
        if f"{name}.{names[0]}" in stored:
            return tuple(part for part in names if f"{name}.{part}" in stored)
    return () if f"{name}.weight" in stored else None


def _is_turned(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether weights of experts are stored as [experts, in, out]: those of gate and up have more outputs
    than those of down, and each as many inputs as the other's."""
    parent = name.rpartition(".")[0]
    stored = checkpoint.stored
    shapes = [
        stored[f"{parent}.{each}"].shape for each in ("gate_up_proj", "down_proj") if f"{parent}.{each}" in stored
    ]
    if len(shapes) < 2 or any(len(shape) != 3 for shape in shapes):
        return False
    (_, _, first_last), (_, second_first, _) = shapes
    return first_last == 2 * second_first


def _cut(low_rank: LowRank, count: int) -> list[LowRank]:
    """Return the products of parts of equal size that the outputs of one have."""
    if count == 1:
        return [low_rank]
    return [replace(low_rank, b=b) for b in low_rank.b.chunk(count)]


def check_finite(weight: Tensor, module: str) -> Tensor:
    if not is_finite(weight):
        raise CheckpointError(f"the adapter of {module!r} makes numbers that {weight.dtype} does not have")
    return weight


def read_stored(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Tensor]:
    """Return stored tensors by their names, in this order."""
    found = {
        name: slices.read(tuple(map(range, checkpoint.stored[name].shape))).clone()
        for name, slices in checkpoint.slices(names, torch.device("cpu"))
    }
    return {name: found[name] for name in names}
