"""Probe of a Transformers model: a few tokens go through its modules before any weight is read.

All weights are zeros of one element each, so a model of any size needs no memory; and values are there for code that
looks at them, as experts do to find their tokens. Products are not computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seesay.errors import CheckpointError
from seesay.llm.models.modules.module_attention import PROBE, AttentionShape, check_masks, probing, take_window
from seesay.llm.models.modules.module_linear import noting_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE_TOKENS = 3
_REFUSED_ROTARY = ("dynamic", "longrope")
_LAYER_TYPES = frozenset(["full_attention", "sliding_attention"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The findings of a probe. shapes: the attention of each layer. modules: the names of its modules. joined: names of
    linear layers that take the same input, in groups. hidden_size: components of a hidden state. num_parameters: those
    by which tokens are multiplied."""

    shapes: tuple[AttentionShape, ...]
    modules: tuple[str, ...]
    joined: tuple[tuple[str, ...], ...]
    hidden_size: int
    num_parameters: int


def check_config(config: object) -> None:
    """Raise `CheckpointError` for what the probe cannot see."""
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointError("it has an encoder of text, which reads the whole prompt before the first token")
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if kinds:
        raise CheckpointError(f"its layers are of type {', '.join(sorted(map(str, kinds)))}, which have other states")
    parameters = getattr(config, "rope_parameters", None) or {}
    parts = [parameters, *(part for part in parameters.values() if isinstance(part, Mapping))]
    for part in parts:
        if (kind := part.get("rope_type", part.get("type"))) in _REFUSED_ROTARY and not _is_static(config, part):
            raise CheckpointError(f"rope_type={kind!r} turns a text by the length of the longest one of a step")


def _is_static(config: Any, rotary: Mapping[str, Any]) -> bool:
    """Return whether a rotary embedding that is called dynamic is the same for all texts: HunYuan's modules multiply
    the base by a fixed power of `alpha` then."""
    return str(config.model_type).startswith("hunyuan") and bool(rotary.get("alpha"))


def _has_plain_layers(config: Any) -> bool:
    """Return whether the types of all layers are known, and of attention: some hybrid models come without others."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return bool(kinds) and kinds <= _LAYER_TYPES


def probe(model: PreTrainedModel) -> Probed:
    """Run a few tokens through modules on the meta device, whose weights become zeros, and describe their attention."""
    if getattr(model, "_is_stateful", False) and not _has_plain_layers(model.config.get_text_config(decoder=True)):
        raise CheckpointError(f"{type(model).__name__} keeps a state for each text that is no list of keys and values")
    decoder = model.get_decoder()
    if hasattr(decoder, "set_experts_implementation"):
        decoder.set_experts_implementation("eager")  # other implementations copy the weights of each token's experts
    give_zeros(model)
    ids = torch.zeros(_PROBE_TOKENS, dtype=torch.int64)
    no_products = _WithoutProducts()  # type: ignore[no-untyped-call]
    with torch.no_grad(), probing() as found, attending(model, PROBE), noting_inputs(model) as joined, no_products:
        hidden = run_decoder(decoder, torch.arange(_PROBE_TOKENS), input_ids=ids)
    num_layers = decoder.config.num_hidden_layers
    if len(found.shapes) != num_layers:
        raise CheckpointError(
            f"{type(model).__name__}: {len(found.shapes)} of {num_layers} layers attend through Transformers' "
            "interface for attention"
        )
    windows = {shape.window for shape in found.shapes} | {None, getattr(decoder.config, "sliding_window", None)}
    masked = check_masks(found.masks, frozenset(windows))
    names = {id(module): name for name, module in model.named_modules()}
    return Probed(
        shapes=tuple(take_window(shape, masked) for shape in found.shapes),
        modules=tuple(names[id(module)] for module in found.modules),
        joined=tuple(joined),
        hidden_size=hidden.shape[-1],
        num_parameters=sum(parameter.numel() for parameter in _factors(model)),
    )


def give_zeros(model: torch.nn.Module) -> None:
    """Replace all tensors of modules on the meta device by zeros on the CPU, which share one element each."""
    made: dict[int, torch.Tensor] = {}  # weights that are tied stay tied
    for module in model.modules():
        holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for holder in holders:
            for name, tensor in list(holder.items()):
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    if id(tensor) not in made:
                        zeros = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
                        is_weight = isinstance(tensor, torch.nn.Parameter)
                        made[id(tensor)] = torch.nn.Parameter(zeros, requires_grad=False) if is_weight else zeros
                    holder[name] = made[id(tensor)]


class _WithoutProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes zeros in place of products of matrices: they take all the time, and those of zeros are zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func.overloadpacket in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
            left, right = args[-2:]
            return left.new_zeros((*left.shape[:-1], right.shape[-1]))
        return func(*args, **(kwargs or {}))


def _factors(model: PreTrainedModel) -> Iterator[torch.nn.Parameter]:
    """Yield the matrices of the decoder by which tokens are multiplied: all but embeddings, and the head if tied."""
    decoder = model.get_decoder()
    tables = [module for module in decoder.modules() if isinstance(module, torch.nn.Embedding)]
    outside = {
        id(part) for module in (*tables, model.get_output_embeddings()) if module for part in module.parameters()
    }
    return (part for part in decoder.parameters() if part.ndim > 1 and id(part) not in outside)


def run_decoder(
    decoder: torch.nn.Module,
    positions: torch.Tensor,
    *,
    input_ids: torch.Tensor | None = None,
    embeds: torch.Tensor | None = None,
    **options: object,
) -> torch.Tensor:
    """Return hidden states [T, hidden] of packed tokens at positions int64 [T] or [axes, T]: of their ids int64 [T], or
    of their embeddings [T, hidden]. Some models look up more by an id than the embedding, which is among the `options`
    then."""
    tokens = {"input_ids": input_ids, "inputs_embeds": embeds}
    output = decoder(
        **{name: tensor[None] for name, tensor in tokens.items() if tensor is not None},
        position_ids=positions.unsqueeze(-2),
        use_cache=False,
        return_dict=True,
        **options,
    )
    hidden: torch.Tensor = output.last_hidden_state
    return hidden[0]


@contextlib.contextmanager
def attending(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let the decoder of `model` attend with the function registered as `name`, inside of the block."""
    before = set_attention(model, name)
    try:
        yield
    finally:
        set_attention(model, before)


def set_attention(model: PreTrainedModel, name: str) -> str:
    """Let the decoder of `model` attend with the function registered as `name`. Returns the name before."""
    decoder = model.get_decoder()
    found: list[object] = [getattr(module, "config", None) for module in decoder.modules()]
    configs = {id(config): config for config in found if hasattr(config, "_attn_implementation")}
    before: str = decoder.config._attn_implementation
    for config in configs.values():
        config._attn_implementation = name
    return before
