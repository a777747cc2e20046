"""One decoder layer in float32, as a quantization method changes it: matrices, biases and norms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import WeightGroup, find_names, load_weights
from seesay.checkpoint.parts import OUTPUTS, Weight
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import LinearMethod
from seesay.lite.calibration.batches import Batch
from seesay.llm.memory.kv_cache import KVCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.spec import DecoderConfig

QKV, OUT, GATE_UP, DOWN = "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"
UP = "mlp.up_proj"
"""Of a feed-forward without a gate."""
INPUT_NORM = "input_layernorm"
Names = Callable[[str], str | None]


class Source:
    """The unquantized model: its checkpoint, and how its decoder is computed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        decoder_name: Names,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.checkpoint, self.config, self.decoder_name = checkpoint, config, decoder_name
        self.device, self.dtype = device, dtype
        self.stored_as = find_names(checkpoint, decoder_name)

    @property
    def renamed_head(self) -> list[str]:
        """The checkpoint's name of the head's module where it is not `lm_head`."""
        module = self.stored_as.get("lm_head.weight", "").removesuffix(".weight")
        return [module] if module and module.rpartition(".")[2] != "lm_head" else []

    def stored_type(self, tensor: str) -> torch.dtype:
        """Return the type in which the checkpoint has a tensor of the decoder."""
        return torch_type(self.checkpoint, self.stored_as[tensor])

    def make_decoder(self) -> ComposedDecoder:
        """Return a decoder without weights."""
        return ComposedDecoder(self.config, device=self.device, dtype=self.dtype)

    def load_ends(self, *, embeds: bool) -> ComposedDecoder:
        """Return a decoder that can embed tokens, or else one that can make logits of the last hidden states."""
        decoder = self.make_decoder()
        named = {weight.parts[0].tensor: weight for weight in decoder.plain_weights}
        embedding = named["embed_tokens.weight"]
        norm = [weight for tensor, weight in named.items() if tensor.startswith("norm.")]
        head = decoder.linears["lm_head"]
        is_tied = self.config.tied_embeddings
        plain = [embedding] if embeds else [*norm, embedding] if is_tied else norm
        linears = {} if embeds or is_tied else {"lm_head": head}
        wanted = {weight.parts[0].tensor for weight in plain} | {f"{path}.weight" for path in linears}
        self._load(linears, plain, self.checkpoint, wanted.__contains__)
        if not embeds and is_tied:
            head.use(embedding.data)
        return decoder

    def load_quantized(self, index: int, checkpoint: Checkpoint) -> ComposedDecoder:
        """Return a decoder with layer `index` as `checkpoint` has it."""
        decoder = self.make_decoder()
        prefix = f"layers.{index}."
        linears = {path: linear for path, linear in decoder.linears.items() if path.startswith(prefix)}
        self._load(linears, _norms(decoder, prefix), checkpoint, lambda name: name.startswith(prefix))
        return decoder

    def run(self, decoder: ComposedDecoder, index: int, batch: Batch, hidden: Tensor, cache: KVCache) -> Tensor:
        """Return the hidden states of a batch behind layer `index` of `decoder`, on the device."""
        with torch.inference_mode():
            inputs = batch.make_input(self.device)
            return decoder.forward_layer(index, hidden.to(self.device, copy=True), inputs, cache.layers[0])

    def _load(
        self,
        linears: Mapping[str, Linear],
        plain: Sequence[Weight],
        checkpoint: Checkpoint,
        is_wanted: Callable[[str], bool],
    ) -> None:
        names = only(self.decoder_name, is_wanted)
        LoadedLayers(linears, plain, name_of=names, device=self.device, dtype=self.dtype).load(checkpoint)


class PlainLayer:
    """A layer of the unquantized model in float32.

    matrices [out, in] and biases [out] by the names of the layer's linear layers, norms by theirs. What a method
    changes there takes effect when `use` is called.
    """

    def __init__(self, source: Source, index: int) -> None:
        self.source, self.index = source, index
        self._decoder = source.make_decoder()
        self._prefix = prefix = f"layers.{index}."
        self.linears = {
            path.removeprefix(prefix): linear
            for path, linear in self._decoder.linears.items()
            if path.startswith(prefix)
        }
        self._norms = {weight.parts[0].tensor: weight for weight in _norms(self._decoder, prefix)}
        self._weights = {name: linear.list_weights(prefix + name) for name, linear in self.linears.items()}
        self._load()
        self.matrices = {name: weights["weight"].data for name, (weights, _) in self._weights.items()}
        self.biases = {name: bias.data for name, (_, bias) in self._weights.items() if bias is not None}
        self.norms = {
            tensor.removeprefix(prefix).removesuffix(".weight"): weight.data for tensor, weight in self._norms.items()
        }
        self.use()

    def run(self, batch: Batch, hidden: Tensor, cache: KVCache) -> Tensor:
        """Return the hidden states behind the layer, on the device."""
        return self.source.run(self._decoder, self.index, batch, hidden, cache)

    def use(self) -> None:
        """Compute with the matrices, biases and norms as they are now."""
        for name in self.linears:
            self.use_matrix(name, self.matrices[name])
        for tensor, weight in self._norms.items():
            norm = self.norms[tensor.removeprefix(self._prefix).removesuffix(".weight")]
            weight.data = norm.to(weight.dtype or self.source.dtype)

    def use_matrix(self, name: str, matrix: Tensor, method: LinearMethod = UNQUANTIZED) -> None:
        """Compute linear layer `name` with this matrix, and no other change."""
        linear, dtype = self.linears[name], self.source.dtype
        if name in self.biases:
            linear.bias = nn.Parameter(self.biases[name].to(dtype), requires_grad=False)
        linear.method = method
        linear.use(matrix.to(dtype, copy=True))

    def observe(self, observers: Mapping[str, Callable[[Tensor], None]]) -> None:
        """Set the observer of each linear layer's inputs; an empty mapping removes all."""
        for name, linear in self.linears.items():
            linear.extend(observe=observers.get(name))

    def export(self, quantized: Mapping[str, tuple[LinearMethod, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
        """Return all tensors of the layer by the checkpoint's names: of linear layers those of their method, biases and
        norms in the types in which the checkpoint has them."""
        found: dict[str, Tensor] = {}
        for name, (method, tensors) in quantized.items():
            linear, path = self.linears[name], self._prefix + name
            found |= split_tensors(linear, path, method, tensors, self.source.stored_as)
            _, bias = linear.list_weights(path)
            if bias is not None:
                bias.data = self.biases[name]
                found |= {
                    self.source.stored_as[own]: self._as_stored(own, data) for own, data in _join_parts(bias).items()
                }
        for tensor, weight in self._norms.items():
            stored = weight.without_data()
            stored.data = self.norms[tensor.removeprefix(self._prefix).removesuffix(".weight")] - weight.offset
            found |= {
                self.source.stored_as[own]: self._as_stored(own, data) for own, data in _join_parts(stored).items()
            }
        return {name: tensor.contiguous().cpu() for name, tensor in found.items()}

    def stored_rows(self, name: str) -> Tensor:
        """Return the matrix [out, in] of a linear layer with its rows in the order in which they are stored."""
        order = _find_row_order(self._weights[name][0]["weight"])
        matrix = self.matrices[name]
        return matrix if order is None else torch.empty_like(matrix).index_copy_(0, order.to(matrix.device), matrix)

    def stored_modules(self, name: str) -> list[str]:
        """Return the checkpoint's names of the modules that a linear layer is made of."""
        own = dict.fromkeys(part.tensor for part in self._weights[name][0]["weight"].parts)
        return [self.source.stored_as[tensor].removesuffix(".weight") for tensor in own]

    def weight_type(self, name: str) -> torch.dtype:
        """Return the type in which the checkpoint has the weight of a linear layer."""
        return self.source.stored_type(self._weights[name][0]["weight"].parts[0].tensor)

    def round_norm(self, name: str, norm: Tensor) -> Tensor:
        """Return what is left of norm `name`, of these values, once it is stored."""
        tensor = f"{self._prefix}{name}.weight"
        offset = self._norms[tensor].offset
        return self._as_stored(tensor, norm - offset).float() + offset

    def _load(self) -> None:
        weights = [weight for found, bias in self._weights.values() for weight in (*found.values(), bias)]
        names = only(self.source.decoder_name, lambda name: name.startswith(self._prefix))
        group = WeightGroup(weights=(*(weight for weight in weights if weight is not None), *self._norms.values()))
        source = self.source
        load_weights(
            [group], source.checkpoint, name_of=names, device=source.device, dtype=torch.float32, checks_finite=True
        )

    def _as_stored(self, tensor: str, data: Tensor) -> Tensor:
        return data.to(self.source.stored_type(tensor), copy=True)


def torch_type(checkpoint: Checkpoint, stored: str) -> torch.dtype:
    """Return the type of a tensor of floating-point numbers, by the checkpoint's name."""
    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
    return types[checkpoint.find(stored).dtype]


def split_tensors(
    linear: Linear, path: str, method: LinearMethod, tensors: Mapping[str, Tensor], stored_as: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the tensors of a linear layer for each module that it is made of, by the checkpoint's names. `tensors` are
    those of the whole layer with its outputs in the order in which they are stored, by the names of the method's
    layouts; the layer has this method from now on."""
    linear.method = method
    found = {}
    for key, weight in linear.list_weights(path)[0].items():
        if weight.joined_axis is None:  # each module has all of it
            weight.data = tensors[key].expand(weight.shape)
        else:
            order = _find_row_order(weight)
            weight.data = tensors[key] if order is None else tensors[key].index_select(weight.joined_axis, order)
        for own, data in _join_parts(weight).items():
            module, _, suffix = own.rpartition(".")
            found[f"{stored_as[f'{module}.weight'].removesuffix('weight')}{suffix}"] = data
    return found


def _find_row_order(weight: Weight) -> Tensor | None:
    """Return, for each output of a layer, its place among those that are stored, int64 [out]; None where they are in
    the same order, and where what unpacks a weight brings them into the layer's."""
    first, found, is_changed = 0, [], False
    for part in weight.parts:
        [axis] = [axis for axis in part.axes if axis.dim == OUTPUTS]
        places = None if axis.per > 1 else axis.places()
        is_changed |= places is not None
        for run in places or (range(axis.num_picked),):
            found.append(first + torch.arange(run.start, run.stop, run.step))
        first += axis.num_picked
    return torch.cat(found) if is_changed else None


def _join_parts(weight: Weight) -> dict[str, Tensor]:
    """Return the tensors that the parts of a weight were cut from, by the model's names."""
    found: dict[str, Tensor] = {}
    for part, place in weight.places():
        whole = found.setdefault(part.tensor, place.new_zeros(part.stored_shape))
        for picks, taken in part.regions():
            whole[tuple(slice(pick.start, pick.stop, pick.step) for pick in picks)] = place[taken]
    return found


def _norms(decoder: ComposedDecoder, prefix: str) -> list[Weight]:
    return [weight for weight in decoder.plain_weights if weight.parts[0].tensor.startswith(prefix)]


def only(name_of_all: Names, is_wanted: Callable[[str], bool]) -> Names:
    """Return a naming of the tensors that are wanted; None for others."""

    def name_of(stored: str) -> str | None:
        name = name_of_all(stored)
        return name if name is not None and is_wanted(name) else None

    return name_of
