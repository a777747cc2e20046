"""Attention of Transformers' modules over our paged KV cache.

Transformers' models ask a registry for the function that attends. Ours writes the keys and values of a layer to its
cache and attends over it, for the packed rows of the step that `StepHolder` holds. A *probe* runs a model first
(`module_probe.py`): it finds the shapes, scales and windows of all layers, and whether there is anything that a causal
attention over blocks does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from seesay.errors import CheckpointError
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import Ops

ATTENTION, PROBE = "seesay_blocks", "seesay_probe"
"""The names of our functions in Transformers' registry."""
_HOLDER = "seesay_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The attention of one layer: heads of queries and of keys, components of a key and of a value, and what scores
    are multiplied by and limited to. window: tokens that each sees; None for all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    soft_cap: float | None


Angles = tuple[torch.Tensor, torch.Tensor]
"""cos and sin [T, 1, R], as `Ops.rotate_and_write` takes them."""


@dataclass(slots=True)
class ModuleStep:
    """The values of a step that `Ops` takes. plan: of layers that see all before them. windowed_plan: of layers with a
    window, in which tokens of a picture may see each other. still: angles that turn nothing, for queries and keys that
    the modules have turned."""

    caches: Sequence[LayerCache]
    plan: Any
    windowed_plan: Any
    slots: torch.Tensor
    faults: torch.Tensor
    still: Angles
    _left: tuple[torch.Tensor, torch.Tensor, Angles] | None = None
    _angles: dict[int, tuple[torch.Tensor, Angles]] = field(default_factory=dict)
    """By the id of a module's cos, which is kept with them so that no other one gets its id."""

    def turn_later(self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Note that the layer that attends next takes these very tensors, turned by cos and sin [1, T, R], whose halves
        are equal."""
        if id(cos) not in self._angles:
            first, second = sin[0, :, None].to(query.dtype).chunk(2, dim=-1)
            angles = cos[0, :, None].to(query.dtype).contiguous(), torch.cat((-first, second), dim=-1)
            self._angles[id(cos)] = cos, angles
        self._left = query, key, self._angles[id(cos)][1]

    def take_angles(self, query: torch.Tensor, key: torch.Tensor) -> Angles:
        """Return by what to turn these queries and keys. Raises `CheckpointError` if they are others than noted."""
        left, self._left = self._left, None
        if left is None:
            return self.still
        if left[0] is not query or left[1] is not key:
            raise CheckpointError("its layers change queries or keys that are turned")
        return left[2]


@dataclass(slots=True)
class StepHolder:
    """Holds the step that is being computed. Used by one thread."""

    ops: Ops
    step: ModuleStep | None = None

    @contextmanager
    def during(
        self,
        caches: Sequence[LayerCache],
        plans: tuple[object, object],
        slots: torch.Tensor,
        faults: torch.Tensor,
        dtype: torch.dtype,
    ) -> Iterator[None]:
        """Hold a step while its modules run. plans: of layers without a window, and of those with one."""
        ones = torch.ones((len(slots), 1, 2), dtype=dtype, device=slots.device)
        self.step = ModuleStep(caches, *plans, slots, faults, (ones, torch.zeros_like(ones)))
        try:
            yield
        finally:
            self.step = None


@dataclass(slots=True)
class LayerAttention:
    """Attends for one layer's module: number `index`, in this shape, in the step that `holder` holds."""

    holder: StepHolder
    index: int
    shape: AttentionShape

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the attended values [1, T, H, Dv], dense, as modules make views of them, of queries [1, H, T, D], keys
        [1, G, T, D] and values [1, G, T, Dv], which are written to the cache."""
        ops, step, shape = self.holder.ops, self.holder.step, self.shape
        assert step is not None
        angles = step.take_angles(query, key)
        parts = [part[0].transpose(0, 1) for part in (query, key, value)]
        if shape.value_dim != shape.head_dim:
            parts[2] = torch.nn.functional.pad(parts[2], (0, shape.head_dim - shape.value_dim))
        qkv = _pack(parts)
        cache = step.caches[self.index]
        ops.rotate_and_write(qkv, *angles, cache, step.slots, None, step.faults)
        output = ops.attend(
            qkv[:, : shape.num_heads],
            cache,
            step.plan if shape.window is None else step.windowed_plan,
            scale=shape.scale,
            window=shape.window,
            soft_cap=shape.soft_cap,
            sinks=sinks,
        )
        return output[None, ..., : shape.value_dim].contiguous()


def _pack(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return queries, keys and values [T, heads, D] in one dense tensor: a copy, unless they are parts of one product
    that lie one after another."""
    first = parts[0]
    num_heads, head_dim = sum(part.shape[1] for part in parts), first.shape[2]
    strides = (num_heads * head_dim, head_dim, 1)
    place = first.data_ptr()
    for part in parts:
        if part.stride() != strides or part.data_ptr() != place:
            return torch.cat(list(parts), dim=1)
        place += part.shape[1] * head_dim * part.itemsize
    return first.as_strided((len(first), num_heads, head_dim), strides)


def bind(modules: Sequence[torch.nn.Module], shapes: Sequence[AttentionShape], holder: StepHolder) -> None:
    """Give each attention module, in the order of the layers, what `ATTENTION` needs."""
    for index, (module, shape) in enumerate(zip(modules, shapes, strict=True)):
        object.__setattr__(module, _HOLDER, LayerAttention(holder, index, shape))


def register() -> None:
    """Make our functions known to Transformers. `ATTENTION` has no mask, so none is built in a step."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
    ALL_ATTENTION_FUNCTIONS.register(PROBE, _probe)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _note_mask)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    **options: Any,
) -> tuple[torch.Tensor, None]:
    attention: LayerAttention = getattr(module, _HOLDER)
    return attention(query, key, value, options.get("s_aux")), None


# --- the probe --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Probe:
    """Collects the attention that a model asks for. modules, shapes: of its layers, in their order. masks: functions,
    each of which says which token sees which."""

    modules: list[torch.nn.Module]
    shapes: list[AttentionShape]
    masks: list[Callable[..., Any]]


_probes: list[Probe] = []


@contextmanager
def probing() -> Iterator[Probe]:
    """Collect what models ask of `PROBE` inside of the block. Raises `CheckpointError` for what blocks cannot do."""
    probe = Probe([], [], [])
    _probes.append(probe)
    try:
        yield probe
    finally:
        _probes.pop()


def _probe(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    probe = _probes[-1]
    name = type(module).__name__
    if query.shape[2] != key.shape[2]:
        raise CheckpointError(f"{name} attends to something other than the text (cross-attention)")
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise CheckpointError(f"{name} lets tokens see later ones")
    for option in ("head_mask", "position_bias", "block_mask", "attention_bias"):
        if options.get(option) is not None:
            raise CheckpointError(f"{name} takes {option}, which blocks of keys and values have no place for")
    window = options.get("sliding_window") if "sliding_window" in options else getattr(module, "sliding_window", None)
    head_dim, value_dim = query.shape[-1], value.shape[-1]
    if value_dim > head_dim:
        raise CheckpointError(f"{name} has values of {value_dim} components and keys of {head_dim}")
    probe.modules.append(module)
    probe.shapes.append(
        AttentionShape(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=head_dim,
            value_dim=value_dim,
            scale=float(head_dim**-0.5 if scaling is None else scaling),
            window=int(window) if window else None,
            soft_cap=options.get("softcap"),
        )
    )
    return query.new_zeros((query.shape[0], query.shape[2], query.shape[1], value_dim)), None


def _note_mask(*_: object, mask_function: Callable[..., object], **__: object) -> None:
    _probes[-1].masks.append(mask_function)


def check_masks(masks: Sequence[Callable[..., Any]], windows: frozenset[int | None]) -> frozenset[int | None]:
    """Return the windows of the masks. Raise `CheckpointError` unless each mask lets tokens see those before them, all
    or those in one of `windows`."""
    found: set[int | None] = set()
    for mask in masks:
        window = next((each for each in windows if _is_causal(mask, each, windows)), -1)
        if window == -1:
            raise CheckpointError("a token sees others than those before it, or those in a sliding window")
        found.add(window)
    return frozenset(found)


def take_window(shape: AttentionShape, masked: frozenset[int | None]) -> AttentionShape:
    """Return the shape of a layer with the window of its model's masks, which some models do not repeat when they ask
    for attention. `masked`: the windows of all masks. Raise `CheckpointError` where it may be one of several."""
    if shape.window is not None or None in masked or not masked:
        return shape
    if len(masked) > 1:
        raise CheckpointError(
            f"its masks have windows of {sorted(masked, key=str)} tokens, and a layer does not name its own"
        )
    [window] = masked
    return replace(shape, window=window)


def _is_causal(mask: Callable[..., Any], window: int | None, windows: frozenset[int | None]) -> bool:
    """Compare around the diagonal, around the edges of all windows, and far away."""
    edges = sorted(
        {0, 1, 7, 1000, 1 << 24, *(w + d for w in windows if w is not None for d in (-1, 0, 1, 50) if w + d >= 0)}
    )
    offsets = torch.tensor([edge + d for edge in edges for d in (0, 1)] + [-1, -2])
    keys = torch.tensor([0, 1, 5])[:, None]
    queries = keys + offsets
    keys = keys.expand_as(queries)
    valid = queries >= 0
    zero = torch.tensor(0)
    seen = torch.as_tensor(mask(zero, zero, queries.clamp(min=0), keys))
    expected = keys <= queries
    if window is not None:
        expected = expected & (queries - keys < window)
    return bool((seen.expand_as(expected) == expected)[valid].all())
