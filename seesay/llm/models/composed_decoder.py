"""The one decoder of all text backbones that we compute ourselves: their differences are in `DecoderConfig`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Source, Weight
from seesay.device.backends import has_graphs
from seesay.device.determinism import by_groups
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.ranks import Ranks
from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.adapters.adapter_reader import AdapterReader
from seesay.llm.models.adapters.adapters import Adapters
from seesay.llm.models.adapters.end_reader import make_end_reader
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.divided_traits import divide_traits
from seesay.llm.models.division import WHOLE, Division, make_division
from seesay.llm.models.embedding import EmbeddingTable
from seesay.llm.models.layer import Layer, make_layer
from seesay.llm.models.layer_states import LayerStates
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.mixers.rotary import Rotary
from seesay.llm.models.norm import make_norm
from seesay.llm.models.projection import PROJECTION, make_projections
from seesay.llm.models.residual import LayerDelta, settle
from seesay.llm.models.spec import AlibiSpec, DecoderConfig, QueryGrowth
from seesay.llm.ops import pick_ops
from seesay.llm.ops.state_plan import make_state_plan
from seesay.llm.plans.traits import DecoderTraits

_HEAD = "lm_head"


class ComposedDecoder:
    """A `Decoder` of layers that `DecoderConfig` describes, or a rank's share of them, which computes what the whole
    computes together with those of the other ranks. `weights` loads, replaces and drops all of its weights.
    `layer_states` keep what goes into some layers, where they are set."""

    weights: LoadedLayers

    def __init__(
        self,
        config: DecoderConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        division: Division = WHOLE,
        layers: range | None = None,
    ) -> None:
        """`layers`: those of a stage; None for all."""
        self.config = config
        own = range(config.num_layers) if layers is None else layers
        self._first_layer = own.start
        self._division = division
        self.device = device
        self.dtype = dtype
        self._ops = pick_ops(device)
        has_device_graphs = self._ops.takes_device_rows and has_graphs(device)
        self._traits = divide_traits(config, division, own, has_graphs=has_device_graphs)
        self._table = EmbeddingTable(config, division)
        with torch.device("meta"):
            self._layers = [make_layer(config, index, self._ops, division) for index in own]
            self._head = Linear(
                config.hidden_size,
                sources=[_make_head_source(config, division)],
                bias=config.head_bias,
                has_unit_rows=config.has_unit_head,
            )
            self._projections = make_projections(config)
        self._cache_numbers = _number_caches(config)
        self._norm = make_norm("norm", config.hidden_size, config.norm, self._ops)
        self._embedding_norm = (
            make_norm("embed_norm", config.hidden_size, config.norm, self._ops) if config.has_embedding_norm else None
        )
        self._max_few_rows = 0
        self._rotaries = [Rotary(spec, device=device, dtype=dtype) for spec in config.rotaries]
        self._slopes = None if config.alibi is None else _make_slopes(config.alibi, division.heads(config), device)
        self._windows = frozenset(layer.window for layer in config.layers)
        self._num_taps = config.num_taps
        cap = config.logit_soft_cap
        self._cap = None if cap is None else by_groups(lambda logits: logits.div_(cap).tanh_().mul_(cap))
        self.adapters: Adapters | None = None
        self.layer_states: LayerStates | None = None
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()  # rounded, as published

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        *,
        decoder_name: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
        ranks: Ranks | None = None,
        expert_parallel: bool = False,
        layers: range | None = None,
    ) -> Self:
        """Return the decoder with its weights from `checkpoint`, or a rank's share of both: see `make_division`. With
        `layers`, those of a stage.

        `decoder_name` maps a checkpoint tensor's name to ours (`embed_tokens.weight`, `norm.weight`, `lm_head.weight`,
        `layers.0.self_attn.q_proj.weight`, …), or to None when it belongs to another part. Raises `CheckpointError`
        naming the tensor that is missing, unexpected or of a wrong shape, `ConfigError` naming the numbers of ranks
        that can divide the decoder.
        """
        division = make_division(config, ranks, checkpoint.quantization, expert_parallel=expert_parallel)
        decoder = cls(config, device=device, dtype=dtype, division=division, layers=layers)
        is_tied = config.tied_embeddings
        owner = weakref.ref(decoder)  # a cycle would keep the weights until the next garbage collection

        def renew() -> None:
            if (found := owner()) is not None:
                found._renew()

        decoder.weights = LoadedLayers(
            {path: linear for path, linear in decoder.linears.items() if not (is_tied and path == _HEAD)}
            | decoder._projections,
            decoder.plain_weights,
            name_of=decoder_name,
            device=device,
            dtype=dtype,
            ignored=decoder.names_elsewhere() | ({f"{_HEAD}.weight"} if is_tied else set()),
            on_change=renew,
        )
        decoder.weights.load(checkpoint, may_quantize=True)
        return decoder

    def names_elsewhere(self) -> frozenset[str]:
        """Return the names of the tensors and modules that other stages have."""
        if len(self._layers) == self.config.num_layers:
            return frozenset()
        whole = ComposedDecoder(self.config, device=self.device, dtype=self.dtype)
        return frozenset(_list_names(whole)) - frozenset(_list_names(self))

    def make_adapters(self, *, num_slots: int, max_rank: int) -> Adapters:
        """Make slots for adapters of these layers, in which tokens of `ModelInput.adapters` find them. Raises
        `ConfigError` where none can be computed."""
        media = self.config.media_rows
        if media is not None and media.rank is None:
            raise ConfigError("adapters: pictures have weights of their own in this model, and cannot have adapters")
        if self._traits.attends_media:
            raise ConfigError("adapters: a decoder that attends to pictures beside the text cannot have them here")
        reader = AdapterReader(
            self.linears,
            make_end_reader(self.config, self._division, self._table, self._head, self.dtype),
            name_of=self.weights.name_of,
            device=self.device,
            dtype=self.dtype,
            max_rank=max_rank,
        )
        ranks = self._division.ranks
        self.adapters = Adapters(
            reader,
            self._ops,
            device=self.device,
            dtype=self.dtype,
            num_slots=num_slots,
            sum_ranks=(lambda x: x) if ranks is None else ranks.sum,
        )
        return self.adapters

    def _renew(self) -> None:
        """Renew what is made of the weights, which have changed."""
        if self.adapters is not None:
            self.adapters.magnitudes.measure_again()
        in_layers = [linear for layer in self._layers for linear in layer.linears.values()]
        self._max_few_rows = max(linear.max_fused_rows for linear in in_layers)
        if self.config.tied_embeddings:
            if hasattr(self._table.weight, "data"):
                self._head.use(self._table.weight.data)
            else:
                self._head.drop()

    @property
    def traits(self) -> DecoderTraits:
        return self._traits

    @property
    def needs_clean_blocks(self) -> bool:
        """See `Ops.needs_clean_blocks`."""
        return self._ops.needs_clean_blocks

    def forget_blocks(self) -> None:
        """See `Ops.forget_blocks`."""
        self._ops.forget_blocks()

    @property
    def linears(self) -> dict[str, Linear]:
        """The linear layers by their paths. With tied embeddings the head's weight is the embedding table."""
        return {path: linear for layer in self._layers for path, linear in layer.linears.items()} | {_HEAD: self._head}

    @property
    def plain_weights(self) -> list[Weight]:
        """All weights that belong to no linear layer."""
        first = () if self._embedding_norm is None else self._embedding_norm.weights
        return [
            self._table.weight,
            *first,
            *self._norm.weights,
            *(norm for layer in self._layers for norm in layer.norms),
        ]

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states [N, hidden] after the last norm, of the tokens `wanted` int64 [N] or of all. Writes keys and
        values of all tokens to `caches`, one per layer that has one.

        Most of the last layer is computed for wanted tokens only; of a prompt that is its last one. With rows of media
        it is computed for all. On the meta device, where nothing has values, a layer of each kind stands for all.
        """
        if self.device.type == "meta":
            return self._compute_kinds(inputs, caches, wanted)
        return self._compute(inputs, self._layers, self._pick(caches, range(len(self._layers))), wanted)

    def warm_up(self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor) -> None:
        """Compute logits with a layer of each kind, for the sake of the kernels they take."""
        self.logits(self._compute_kinds(inputs, caches, wanted))

    def _compute_kinds(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute a layer of each kind, and one more as the last."""
        kinds = list({layer.kind: index for index, layer in reversed(list(enumerate(self._layers)))}.values())
        kinds.append(kinds[-1])
        return self._compute(inputs, [self._layers[i] for i in kinds], self._pick(caches, kinds), wanted)

    def _pick(self, caches: Sequence[LayerCache], indexes: Sequence[int]) -> list[LayerCache]:
        """Return the caches of these layers, of those of all layers that have one."""
        return [caches[self._cache_numbers[index]] for index in indexes]

    def _compute(
        self,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        delta, residual, left = self._run_layers(self.embed(inputs), inputs, layers, caches, wanted)
        hidden = self._norm(residual) if delta is None else self._norm.add(delta, residual)
        return hidden if left is None else hidden.index_select(0, left)

    def _run_layers(
        self,
        residual: torch.Tensor,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """Return what the last layer adds to the residual stream behind it (None: it is added), that stream, and the
        tokens of it that are still to be picked; None where that is done, or all are wanted."""
        if self.adapters is not None:
            self.adapters.begin(inputs.adapters)
        step = self._begin_step(inputs)
        self._keep(0, residual)
        if 0 < len(residual) <= self._max_few_rows and inputs.media_rows is None:
            self._run_few(residual, inputs, layers, caches, step)
            return None, residual, wanted
        last_wanted = self._find_picked(inputs, wanted)
        delta: LayerDelta = None
        for number, (layer, cache) in enumerate(zip(layers, caches, strict=True), 1):
            picked = last_wanted if number == len(layers) else None
            delta, residual = layer.run(delta, residual, cache, step, picked)
            if picked is None:
                self._add_deep(residual, inputs, number - 1)
                delta = self._keep(number, residual, delta)
        return settle(delta), residual, None if last_wanted is not None else wanted

    def _find_picked(self, inputs: ModelInput, wanted: torch.Tensor | None) -> torch.Tensor | None:
        """Return the tokens that the last layer computes alone; None for all. Rows of media are numbered among all."""
        if wanted is None or inputs.media_rows is not None:
            return None
        return wanted if self.adapters is None or self.adapters.try_pick(wanted) else None

    def _run_few(
        self,
        residual: torch.Tensor,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        step: AttentionStep,
    ) -> None:
        """Change the residual stream of a few tokens in place to that behind the last layer."""
        for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
            layer.run_few(residual, cache, step)
            self._add_deep(residual, inputs, index)
            self._keep(index + 1, residual)

    def _keep(self, place: int, residual: torch.Tensor, delta: LayerDelta = None) -> LayerDelta:
        """Return what is still to be added to the residual stream before layer `place`, which may be wanted."""
        if self.layer_states is None:
            return delta
        added = settle(delta)
        self.layer_states.take(place, residual, added)
        return added

    # --- stage by stage -----------------------------------------------------------------------------------------------

    def run_stage(
        self,
        residual: torch.Tensor,
        inputs: ModelInput,
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the residual stream behind the layers of this stage, of the tokens `wanted` or of all. `residual`
        [T, hidden], that before them, may be changed."""
        delta, residual, left = self._run_layers(residual, inputs, self._layers, caches, wanted)
        if delta is not None:
            residual = residual.add_(delta)
        return residual if left is None else residual.index_select(0, left)

    # --- layer by layer, where the weights of one layer at a time are loaded ------------------------------------------

    def embed(self, inputs: ModelInput) -> torch.Tensor:
        """Return what the first layer takes: the residual stream [T, hidden]."""
        residual = self._table.look_up(inputs.input_ids)
        if self.adapters is not None and inputs.adapters is not None:
            self.adapters.ends.look_up(residual, inputs.input_ids, inputs.adapters)
        if self._embedding_scale != 1.0 and not self.config.scales_media:
            residual.mul_(self._embedding_scale)
        if inputs.splice_rows is not None and inputs.splice_embeddings is not None:
            first = inputs.splice_embeddings[:, : self.config.hidden_size]
            self._ops.splice(residual, inputs.splice_rows, first)
        if self._embedding_scale != 1.0 and self.config.scales_media:
            residual.mul_(self._embedding_scale)
        return residual if self._embedding_norm is None else self._embedding_norm(residual)

    def _add_deep(self, residual: torch.Tensor, inputs: ModelInput, index: int) -> None:
        """Add to the residual stream behind layer `index` of these what the embeddings have for it, if anything."""
        index += self._first_layer
        if index >= self.config.num_deep_layers or inputs.splice_rows is None or inputs.splice_embeddings is None:
            return
        size = self.config.hidden_size
        part = inputs.splice_embeddings[:, (index + 1) * size : (index + 2) * size]
        residual.index_add_(0, inputs.splice_rows, part.to(residual.dtype))

    def forward_layer(self, index: int, residual: torch.Tensor, inputs: ModelInput, cache: LayerCache) -> torch.Tensor:
        """Return the residual stream behind layer `index`. `residual` [T, hidden] is changed."""
        found, residual = self._layers[index].run(None, residual, cache, self._begin_step(inputs))
        delta = settle(found)
        self._add_deep(residual, inputs, index)
        return residual if delta is None else residual.add_(delta)

    def normalize(self, residual: torch.Tensor) -> torch.Tensor:
        """Return what `logits` takes: the last norm of the residual stream behind the last layer."""
        return self._norm(residual)

    def _begin_step(self, inputs: ModelInput) -> AttentionStep:
        turns = [rotary.tables(inputs.positions, inputs.stretches) for rotary in self._rotaries]
        plan = self._ops.plan_attention(inputs.layout, windows=self._windows, device=self.device, dtype=self.dtype)
        scale = self._scale_queries(inputs.positions, None)
        growth, states = self.config.query_growth, None
        if inputs.state_slots is not None and self._num_taps:
            states = make_state_plan(inputs.layout, inputs.state_slots, num_taps=self._num_taps, device=self.device)
        return AttentionStep(
            turns,
            inputs.slot_mapping,
            plan,
            inputs.faults,
            query_scale=scale,
            grown_scale=scale if growth is None else self._scale_queries(inputs.positions, growth),
            rows=inputs.media_rows,
            slopes=self._slopes,
            is_adapted=inputs.adapters is not None,
            media=inputs.media_attention,
            states=states,
        )

    def _scale_queries(self, positions: torch.Tensor, growth: QueryGrowth | None) -> torch.Tensor | None:
        """Return the factor of each token's query, [T, 1, 1]; None for 1. It is computed on the device alone."""
        length = self.config.log_length
        if length is None and growth is None:
            return None
        places = positions if positions.dim() == 1 else positions.amax(0)
        scale = torch.ones(len(places), dtype=torch.float32, device=places.device)
        if length is not None:
            scale = (places + 1).to(torch.float32).log_().div_(math.log(length)).clamp_(min=1.0)
        if growth is not None:
            steps = (places + growth.first) // growth.length
            scale.mul_(steps.to(torch.float32).log1p_().mul_(growth.beta).add_(1.0))
        return scale.to(self.dtype)[:, None, None]

    def logits(self, hidden: torch.Tensor, slots: npt.NDArray[np.int64] | None = None) -> torch.Tensor:
        """Logits [N, vocab] of hidden states [N, hidden], in the model's dtype. slots int64 [n]: of the adapters of the
        first of them; -1: none."""
        head = self._head
        if head.fused is not None and 0 < len(hidden) <= head.max_fused_rows:
            logits = head.fused(hidden)
        else:
            logits = head(hidden)
        if self.adapters is not None and slots is not None:
            self.adapters.ends.multiply(hidden, logits, slots, head.bias)
        if self.config.logit_scale != 1.0:
            logits.mul_(self.config.logit_scale)
        return self._gather(logits if self._cap is None else self._cap(logits))

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the vectors [N, size] that stand for hidden states [N, hidden] in late interaction: those of the
        model's head, or the states themselves without one."""
        head = self._projections.get(PROJECTION)
        return hidden if head is None else head(hidden)

    def _gather(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the tokens of all ranks, for those of this one's [N, own]."""
        ranks, count = self._division.ranks, self.config.vocab_size
        if ranks is None or not len(logits):
            return logits if ranks is None else logits.new_empty(0, count)
        padding = self._division.padded_tokens(count) - logits.shape[1]
        return ranks.gather(F.pad(logits, (0, padding)) if padding else logits)[:, :count].contiguous()


def _number_caches(config: DecoderConfig) -> tuple[int, ...]:
    """Return the number of each layer's cache; of one that has none, that of some other layer."""
    ends = accumulate(not layer.attends_media for layer in config.layers)
    return tuple(max(0, end - 1) for end in ends)


def _make_slopes(spec: AlibiSpec, heads: range, device: torch.device) -> torch.Tensor:
    """Return the slopes of a rank's heads, as `Ops.attend` takes them."""
    slopes = torch.tensor(spec.slopes[heads.start : heads.stop], dtype=torch.float32, device=device)
    return slopes.to(torch.bfloat16) if spec.is_rounded else slopes


def _list_names(decoder: ComposedDecoder) -> Iterator[str]:
    """Yield the names of a decoder's plain tensors, and of the modules of its linear layers."""
    for path, linear in decoder.linears.items():
        yield from linear.modules_in(path)
    for weight in decoder.plain_weights:
        yield from (part.tensor for part in weight.parts)


def _make_head_source(config: DecoderConfig, division: Division) -> Source:
    count = config.vocab_size
    return Source(module=_HEAD, num_outputs=count, picks=(division.tokens(count),))
