"""Weights declared as data: which elements of which checkpoint tensor fill which place of a model's tensor.

Fused layers, slices of tensor parallelism, permuted rows and packed formats are values made here. Nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import TYPE_CHECKING, Protocol

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

OUTPUTS, INPUTS, NEITHER = 0, 1, -1
"""The two axes of a linear layer's matrix [outputs, inputs]; an `Axis` runs along one of them, or has one element that
stands for all."""
FLOATS = ("BF16", "F16", "F32", "F64")


class TensorError(CheckpointError):
    """A tensor cannot be used. `tensor` is the model's name of it; what loads it tells the checkpoint's."""

    def __init__(self, tensor: str, problem: str) -> None:
        super().__init__(f"tensor {tensor!r} {problem}")
        self.tensor, self.problem = tensor, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a stored tensor, counted in elements of the model's matrix.

    dim: the axis of the matrix that it runs along. size: elements of the matrix along it, as the checkpoint has them.
    per: elements of the matrix that one stored element stands for: 8 where int4 weights are packed into int32, the
        group size in a tensor of scales, 1 in a plain weight.
    picks: the elements that are taken, in this order; all by default.
    is_reordered_later: stored elements that stand for several are taken in their own order; what unpacks them brings
        the elements into the order of `picks`, by `order`.
    """

    dim: int
    size: int
    per: int = 1
    picks: tuple[range, ...] = ()
    is_reordered_later: bool = False

    def __post_init__(self) -> None:
        if not self.picks:
            object.__setattr__(self, "picks", (range(self.size),))

    @property
    def num_picked(self) -> int:
        """Elements of the matrix that are taken."""
        return sum(map(len, self.picks))

    @property
    def stored_size(self) -> int:
        return -(-self.size // self.per)

    def stored_picks(self) -> tuple[range, ...]:
        """Return the stored elements that are taken. Raises ValueError where a pick cuts a stored element apart."""
        if self.per == 1:
            return self.picks
        found = []
        for pick in self._spans() if self.is_reordered_later else self.picks:
            is_whole = pick.start % self.per == 0 and (pick.stop % self.per == 0 or pick.stop == self.size)
            if pick.step != 1 or not is_whole:
                raise ValueError(f"elements {pick.start} to {pick.stop} cut groups of {self.per} apart")
            found.append(range(pick.start // self.per, -(-pick.stop // self.per)))
        return tuple(found)

    def order(self) -> tuple[range, ...] | None:
        """Return what is picked, counted in the elements that the stored ones which are taken stand for; None where
        that is all of these in their order."""
        return self.places() if self.is_reordered_later and self.per > 1 else None

    def places(self) -> tuple[range, ...] | None:
        """Return what is picked, counted in the elements that are picked; None where they are in their order."""
        found, spans = [], self._spans()
        for pick in self.picks:
            first = 0
            for span in spans:
                if pick.start in span:
                    break
                first += len(span)
            start = first + pick.start - span.start
            found.append(range(start, start + len(pick) * pick.step, pick.step))
        stops = [0, *(place.stop for place in found)]
        is_in_order = all(place.step == 1 and place.start == stop for place, stop in zip(found, stops, strict=False))
        return None if is_in_order else tuple(found)

    def _spans(self) -> tuple[range, ...]:
        """Return the elements that are picked, in their order in the matrix. Raises ValueError where picks leave some
        between them out."""
        spans: list[range] = []
        for pick in sorted(self.picks, key=lambda pick: pick.start):
            if spans and pick.start <= spans[-1].stop:
                spans[-1] = range(spans[-1].start, max(spans[-1].stop, pick[-1] + 1))
            else:
                spans.append(range(pick.start, pick[-1] + 1))
        if sum(map(len, spans)) != self.num_picked:
            raise ValueError(f"of elements {spans[0].start} to {spans[-1].stop} only some are taken")
        return tuple(spans)


@dataclass(frozen=True, slots=True)
class Stack:
    """The place of a matrix among the `count` that a stored tensor has along its first axis."""

    index: int
    count: int


class StoredElements(Protocol):
    """An open tensor of a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, picks: tuple[range, ...]) -> torch.Tensor:
        """Return the elements `picks` along each axis."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A region of the tensor that the model names `tensor`: what one tensor of a checkpoint gives to a weight.

    `axes` are those of the stored tensor; none for a single number. `dtypes` are the stored types that are accepted,
    as safetensors names them. A stored tensor with more axes than a matrix is flattened behind its first axis: a
    convolution whose stride is its size is a linear layer.
    stack: see `Stack`. is_transposed: the checkpoint has the axes in the opposite order; None where that is the only
    one which its shape fits.
    """

    tensor: str
    axes: tuple[Axis, ...]
    dtypes: tuple[str, ...] = FLOATS
    stack: Stack | None = None
    is_transposed: bool | None = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that the whole tensor must have; or where it may be transposed, that of one which is not."""
        return self._find_stored_shape(is_transposed=bool(self.is_transposed))

    def _find_stored_shape(self, *, is_transposed: bool) -> tuple[int, ...]:
        shape = tuple(axis.stored_size for axis in self.axes)
        shape = shape[::-1] if is_transposed else shape
        return shape if self.stack is None else (self.stack.count, *shape)

    def may_have(self, shape: tuple[int, ...]) -> bool:
        """Return whether the whole tensor may have this shape."""
        found = self.is_transposed is None and shape == self._find_stored_shape(is_transposed=True)
        return found or shape == self.stored_shape

    def read(self, tensor: StoredElements, picks: tuple[range, ...]) -> torch.Tensor:
        """Return stored elements, those `picks` along each of `axes`, in their place in the model."""
        is_transposed = tensor.shape != self.stored_shape if self.is_transposed is None else self.is_transposed
        stored = picks[::-1] if is_transposed else picks
        if self.stack is None:
            found = tensor.read(stored)
        else:
            found = tensor.read((range(self.stack.index, self.stack.index + 1), *stored))[0]
        return found.t() if is_transposed else found

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is taken. Raises `CheckpointError` where elements that are stored together are cut."""
        return tuple(sum(map(len, picks)) for picks in self._stored_picks())

    def output_order(self) -> tuple[range, ...] | None:
        """Return the order of the outputs once they are unpacked: see `Axis.order`."""
        return next((axis.order() for axis in self.axes if axis.dim == OUTPUTS), None)

    def regions(self) -> Iterator[tuple[tuple[range, ...], tuple[slice, ...]]]:
        """Yield (stored elements along each axis, their place in what is taken), which together are the part."""
        pairs = []
        for picks in self._stored_picks():
            stops = [sum(map(len, picks[: i + 1])) for i in range(len(picks))]
            pairs.append([(pick, slice(stop - len(pick), stop)) for pick, stop in zip(picks, stops, strict=True)])
        for chosen in product(*pairs):
            yield tuple(pick for pick, _ in chosen), tuple(place for _, place in chosen)

    def _stored_picks(self) -> list[tuple[range, ...]]:
        try:
            return [axis.stored_picks() for axis in self.axes]
        except ValueError as error:
            raise self._error(error) from None

    def _error(self, error: ValueError) -> TensorError:
        return TensorError(self.tensor, f"cannot be divided among ranks: {error}; use tp=1 or pp=2")


@dataclass(eq=False, slots=True, kw_only=True)
class Weight:
    """One tensor of a model: parts of equal layout, joined along the axis of the matrix's outputs, or stacked along a
    new first axis where they have none. `data` is set by `load_weights`.

    dtype: None for the model's own. offset: added to the stored numbers. has_unit_rows: the rows of the stored matrix
    are divided by their lengths.
    """

    parts: tuple[Part, ...]
    dtype: torch.dtype | None = None
    offset: float = 0.0
    has_unit_rows: bool = False
    data: torch.Tensor = field(init=False, repr=False)
    _starts: tuple[int, ...] = field(default=(), init=False, repr=False)

    @property
    def joined_axis(self) -> int | None:
        """The axis along which parts are joined; None if they are stacked."""
        return next((i for i, axis in enumerate(self.parts[0].axes) if axis.dim == OUTPUTS), None)

    @property
    def shape(self) -> tuple[int, ...]:
        axis, shape = self.joined_axis, self.parts[0].shape
        if axis is None:
            return (len(self.parts), *shape)
        return (*shape[:axis], sum(part.shape[axis] for part in self.parts), *shape[axis + 1 :])

    def places(self) -> list[tuple[Part, torch.Tensor]]:
        """Return every part with its place in `data`."""
        axis = self.joined_axis
        if axis is None:
            return list(zip(self.parts, self.data, strict=True))
        import torch

        pieces = torch.split(self.data, [part.shape[axis] for part in self.parts], dim=axis)
        return list(zip(self.parts, pieces, strict=True))

    def place(self, number: int) -> torch.Tensor:
        """Return the place of one part in `data`."""
        axis = self.joined_axis
        if axis is None:
            return self.data[number]
        if not self._starts:
            self._starts = tuple(accumulate((part.shape[axis] for part in self.parts), initial=0))
        start, stop = self._starts[number : number + 2]
        return self.data.narrow(axis, start, stop - start)

    def split(self, count: int) -> list[Weight]:
        """Return `count` weights that share this one's data, each with as many of its parts."""
        import torch

        size, axis = len(self.parts) // count, self.joined_axis
        assert size * count == len(self.parts)
        lengths = [1 if axis is None else part.shape[axis] for part in self.parts]
        own_lengths = [sum(lengths[i : i + size]) for i in range(0, len(lengths), size)]
        pieces = torch.split(self.data, own_lengths, dim=axis or 0)
        found = []
        for index, piece in enumerate(pieces):
            own = Weight(parts=self.parts[index * size : (index + 1) * size], dtype=self.dtype, offset=self.offset)
            own.data = piece
            found.append(own)
        return found

    def without_data(self) -> Weight:
        """Return the same weight, not loaded."""
        return Weight(parts=self.parts, dtype=self.dtype, offset=self.offset, has_unit_rows=self.has_unit_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Outputs of a linear layer that the checkpoint stores as (part of) the module `module`.

    num_outputs: how many outputs the stored module has. picks: those taken, in this order; all by default. stack: of
    a module whose tensors are those of several layers: see `Stack`.
    """

    module: str
    num_outputs: int
    picks: tuple[range, ...] = ()
    stack: Stack | None = None

    @property
    def num_picked(self) -> int:
        return sum(map(len, self.picks)) if self.picks else self.num_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """How a format stores one of the tensors of every linear layer: `name` behind the module's name, (dim, per) of each
    stored axis (see `Axis`), the accepted types, and the type in the model (None for the model's own). own_shape: the
    shape of a tensor that has no axis of the matrix, in place of `axes`, or what it has behind these. is_transposed:
    see `Part`. is_reordered_later: see `Axis`."""

    name: str
    axes: tuple[tuple[int, int], ...] = ()
    own_shape: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = FLOATS
    dtype: torch.dtype | None = None
    is_transposed: bool | None = False
    is_reordered_later: bool = False

    @property
    def is_of_weight(self) -> bool:
        """Whether these are the numbers of the matrix itself, one by one, or scales of blocks that it is cut into: the
        checkpoint may have them turned."""
        is_matrix = tuple(dim for dim, _ in self.axes) == (OUTPUTS, INPUTS)
        return self.name.startswith("weight") and is_matrix and self.dtypes != ("I32",)

    def weight(self, sources: Sequence[Source], num_inputs: int, inputs: range | None = None) -> Weight:
        """Return the weight that is this tensor of all `sources`, which the checkpoint stores with `num_inputs` inputs.
        inputs: those that are taken; None for all. Tensors without that axis stay whole."""
        return Weight(parts=tuple(self._part(source, num_inputs, inputs) for source in sources), dtype=self.dtype)

    def _part(self, source: Source, num_inputs: int, inputs: range | None) -> Part:
        sizes: Mapping[int, tuple[int, tuple[range, ...]]] = {
            OUTPUTS: (source.num_outputs, source.picks),
            INPUTS: (num_inputs, () if inputs is None else (inputs,)),
            NEITHER: (1, ()),
        }
        axes = tuple(
            Axis(dim=dim, size=sizes[dim][0], per=per, picks=sizes[dim][1], is_reordered_later=self.is_reordered_later)
            for dim, per in self.axes
        )
        axes += tuple(Axis(dim=NEITHER, size=size) for size in self.own_shape)
        return Part(
            tensor=f"{source.module}.{self.name}",
            axes=axes,
            dtypes=self.dtypes,
            stack=source.stack,
            is_transposed=self.is_transposed,
        )


def plain_weight(tensor: str, *shape: int, dtype: torch.dtype | None = None, offset: float = 0.0) -> Weight:
    """Return the weight that is one whole tensor."""
    part = Part(tensor=tensor, axes=tuple(Axis(dim=dim, size=n) for dim, n in enumerate(shape)))
    return Weight(parts=(part,), dtype=dtype, offset=offset)
