"""One decoder layer in float32, as a quantization method changes it: matrices, biases and norms by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import WeightGroup, find_names, load_weights
from seesay.checkpoint.parts import Weight
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import LinearMethod
from seesay.lite.calibration.batches import Batch
from seesay.llm.memory.kv_cache import KVCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.expert_kinds import restack_experts
from seesay.llm.models.spec import DecoderConfig

QKV, OUT, GATE_UP, DOWN = "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"
UP = "mlp.up_proj"
"""Of a feed-forward without a gate."""
ROUTER, SHARED_GATE = "mlp.gate", "mlp.shared_expert_gate"
EXPERTS, SHARED_GATE_UP = "mlp.experts.gate_up_proj", "mlp.shared_experts.gate_up_proj"
"""Of a mixture of experts: all that take the norm's output."""
INPUT_NORM = "input_layernorm"
_OF_EXPERT = re.compile(r"(?P<experts>.*\.experts)\.(?P<number>\d+)\.(?P<half>\w+)")
Names = Callable[[str], str | None]


class Source:
    """The unquantized model: its checkpoint, and how its decoder is computed.

    quantized_config: that of the quantized model, whose experts are stored one by one, as other tools read them.
    """

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
        layers = tuple(restack_experts(layer, is_stacked=False) for layer in config.layers)
        self.quantized_config = replace(config, layers=layers)
        self.device, self.dtype = device, dtype
        self.stored_as = find_names(checkpoint, decoder_name)

    @property
    def renamed_head(self) -> list[str]:
        """The checkpoint's name of the head's module where it is not `lm_head`."""
        module = self.stored_as.get("lm_head.weight", "").removesuffix(".weight")
        return [module] if module and module.rpartition(".")[2] != "lm_head" else []

    @property
    def plain_modules(self) -> list[str]:
        """The checkpoint's names of modules of layers that stay plain, such as routers."""
        linears = self.make_quantized_decoder().linears
        plain = [path for path, linear in linears.items() if not linear.is_quantizable]
        return [self.stored_module(path) for path in plain if path.startswith("layers.")]

    def stored_module(self, module: str) -> str:
        """Return the name that the quantized checkpoint has of a module of the decoder."""
        match = _OF_EXPERT.fullmatch(module)
        if f"{module}.weight" in self.stored_as or match is None:
            return self.stored_as.get(f"{module}.weight", module).removesuffix(".weight")
        stack = "down_proj" if match["half"] == "down_proj" else "gate_up_proj"
        stored = self.stored_as.get(f"{match['experts']}.{stack}.weight", f"{match['experts']}.{stack}")
        return f"{stored.removesuffix(stack)}{match['number']}.{match['half']}"

    def stored_type(self, tensor: str) -> torch.dtype:
        """Return the type in which the checkpoint has a tensor of the decoder."""
        return torch_type(self.checkpoint, self.stored_as[tensor])

    def as_stored(self, tensor: str, data: Tensor) -> Tensor:
        """Return a copy of the data of a tensor of the decoder in the type in which the checkpoint has that."""
        return data.to(self.stored_type(tensor), copy=True)

    def make_decoder(self) -> ComposedDecoder:
        """Return a decoder without weights."""
        return ComposedDecoder(self.config, device=self.device, dtype=self.dtype)

    def make_quantized_decoder(self) -> ComposedDecoder:
        """Return a decoder of the quantized model, without weights."""
        return ComposedDecoder(self.quantized_config, device=self.device, dtype=self.dtype)

    def load_ends(self, *, embeds: bool) -> ComposedDecoder:
        """Return a decoder that can embed tokens, or else one that can make logits of the last hidden states."""
        decoder = self.make_decoder()
        named = {weight.parts[0].tensor: weight for weight in decoder.plain_weights}
        embedding = named["embed_tokens.weight"]
        norm = [weight for tensor, weight in named.items() if tensor.startswith("norm.")]
        head = decoder.linears["lm_head"]
        makes_tied_logits = self.config.tied_embeddings and not embeds
        linears = {}
        if embeds:
            plain = [embedding]
        elif makes_tied_logits:
            plain = [*norm, embedding]
        else:
            plain, linears = norm, {"lm_head": head}
        wanted = {weight.parts[0].tensor for weight in plain} | {f"{path}.weight" for path in linears}
        self._load(linears, plain, self.checkpoint, wanted.__contains__)
        if makes_tied_logits:
            head.use(embedding.data)
        return decoder

    def load_quantized(self, index: int, checkpoint: Checkpoint) -> ComposedDecoder:
        """Return a decoder with layer `index` as `checkpoint` has it."""
        decoder = self.make_quantized_decoder()
        prefix = f"layers.{index}."
        self._load(_linears(decoder, prefix), _norms(decoder, prefix), checkpoint, lambda name: name.startswith(prefix))
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
    changes there takes effect when `use` is called. A linear layer of experts has one matrix, of the outputs of all
    experts; its *pieces* are those of each, and of other linear layers it is the whole matrix.

    prefix: of the layer's names. weights: those of linear layers and their biases, as they were loaded. norm_weights:
    the same of norms, by the names of their tensors.
    """

    def __init__(self, source: Source, index: int) -> None:
        self.source, self.index = source, index
        self._decoder = source.make_decoder()
        self.prefix = prefix = f"layers.{index}."
        found = _linears(self._decoder, prefix)
        self.linears = {path.removeprefix(prefix): linear for path, linear in found.items()}
        for linear in self.linears.values():
            if isinstance(linear, ExpertLinear):
                linear.is_apart = True
        self.norm_weights = {weight.parts[0].tensor: weight for weight in _norms(self._decoder, prefix)}
        self.weights = {name: linear.list_weights(prefix + name) for name, linear in self.linears.items()}
        self._load()
        self.matrices = {name: weights["weight"].data for name, (weights, _) in self.weights.items()}
        self.biases = {name: bias.data for name, (_, bias) in self.weights.items() if bias is not None}
        self.norms = {
            tensor.removeprefix(prefix).removesuffix(".weight"): weight.data
            for tensor, weight in self.norm_weights.items()
        }
        self.use()

    def run(self, batch: Batch, hidden: Tensor, cache: KVCache) -> Tensor:
        """Return the hidden states behind the layer, on the device."""
        return self.source.run(self._decoder, self.index, batch, hidden, cache)

    def use(self) -> None:
        """Compute with the matrices, biases and norms as they are now."""
        for name in self.linears:
            self.use_matrix(name, self.matrices[name])
        for tensor, weight in self.norm_weights.items():
            norm = self.norms[tensor.removeprefix(self.prefix).removesuffix(".weight")]
            weight.data = norm.to(weight.dtype or self.source.dtype)

    def use_matrix(self, name: str, matrix: Tensor, method: LinearMethod = UNQUANTIZED) -> None:
        """Compute linear layer `name` with this matrix, and no other change."""
        linear, dtype = self.linears[name], self.source.dtype
        if name in self.biases:
            linear.bias = nn.Parameter(self.biases[name].to(dtype), requires_grad=False)
        linear.method = method
        linear.use(matrix.to(dtype, copy=True))

    def observe(self, observers: Mapping[str, Callable[[Tensor], None]]) -> None:
        """Set the observer of the inputs of each piece of linear layers; an empty mapping removes all."""
        for name, linear in self.linears.items():
            if isinstance(linear, ExpertLinear):
                found = {number: observers.get(key) for number, key in enumerate(self.name_pieces(name))}
                linear.observe_experts({number: each for number, each in found.items() if each is not None})
            else:
                linear.extend(observe=observers.get(name))

    def name_pieces(self, name: str) -> list[str]:
        """Return the names of the pieces of a linear layer: its own, or those of its experts."""
        linear = self.linears[name]
        if not isinstance(linear, ExpertLinear):
            return [name]
        return [f"{name}.{number}" for number in range(linear.num_experts)]

    def round_norm(self, name: str, norm: Tensor) -> Tensor:
        """Return what is left of norm `name`, of these values, once it is stored."""
        tensor = f"{self.prefix}{name}.weight"
        offset = self.norm_weights[tensor].offset
        return self.source.as_stored(tensor, norm - offset).float() + offset

    def _load(self) -> None:
        weights = [weight for found, bias in self.weights.values() for weight in (*found.values(), bias)]
        names = only(self.source.decoder_name, lambda name: name.startswith(self.prefix))
        group = WeightGroup(
            weights=(*(weight for weight in weights if weight is not None), *self.norm_weights.values())
        )
        source = self.source
        load_weights(
            [group], source.checkpoint, name_of=names, device=source.device, dtype=torch.float32, checks_finite=True
        )


def torch_type(checkpoint: Checkpoint, stored: str) -> torch.dtype:
    """Return the type of a tensor of floating-point numbers, by the checkpoint's name."""
    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
    return types[checkpoint.find(stored).dtype]


def _linears(decoder: ComposedDecoder, prefix: str) -> dict[str, Linear]:
    return {path: linear for path, linear in decoder.linears.items() if path.startswith(prefix)}


def _norms(decoder: ComposedDecoder, prefix: str) -> list[Weight]:
    return [weight for weight in decoder.plain_weights if weight.parts[0].tensor.startswith(prefix)]


def only(name_of_all: Names, is_wanted: Callable[[str], bool]) -> Names:
    """Return a naming of the tensors that are wanted; None for others."""

    def name_of(stored: str) -> str | None:
        name = name_of_all(stored)
        return name if name is not None and is_wanted(name) else None

    return name_of
