"""A `Decoder` that computes with the modules of a Transformers model, and our attention over KV blocks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from seesay.device.backends import has_graphs
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.modules.module_attention import StepHolder
from seesay.llm.models.modules.module_check import check_texts, compute_texts
from seesay.llm.models.modules.module_embedding import ModuleEmbedding
from seesay.llm.models.modules.module_fusion import Fusion, try_fusions
from seesay.llm.models.modules.module_graphs import why_not_captured
from seesay.llm.models.modules.module_model import ModuleModel, ModuleWeights
from seesay.llm.models.modules.module_parts import without_decoder, without_head
from seesay.llm.models.modules.module_probe import run_decoder
from seesay.llm.ops import DecodeRows, RowLayout, pick_ops
from seesay.llm.plans.traits import DecoderTraits, KVShape

logger = logging.getLogger("seesay")


class ModuleDecoder:
    """See `Decoder`. The modules are not ours: what of them is computed by our kernels, and whether their steps are
    captured as CUDA graphs, is tried at start."""

    def __init__(
        self,
        owner: ModuleModel,
        *,
        device: torch.device,
        dtype: torch.dtype,
        media_run: int = 0,
        num_position_axes: int = 1,
        num_deep_layers: int = 0,
    ) -> None:
        """Load the weights of `owner`, or use those that its tower has loaded. `media_run` and `num_position_axes`: see
        `DecoderTraits`; tokens of a picture see each other in the layers with a window alone. `num_deep_layers`: first
        layers behind which a part of each embedding is added (`DecoderConfig`). Raises `CheckpointError`."""
        self.device, self.dtype = device, dtype
        self._owner = owner
        self._ops = pick_ops(device)
        self._holder = StepHolder(self._ops)
        self._model = owner.load(device, dtype)
        attention = owner.bind(self._holder)
        self.weights = ModuleWeights(owner, device, dtype)
        self._decoder = self._model.get_decoder()
        self._head = without_decoder(self._model)
        shapes = owner.probed.shapes
        self._windows = frozenset(shape.window for shape in shapes)
        text_config = self._model.config.get_text_config(decoder=True)
        self._embedding = ModuleEmbedding(self._model, self._ops, num_deep_layers=num_deep_layers)
        self._traits = DecoderTraits(
            vocab_size=text_config.vocab_size,
            embedding_size=owner.probed.hidden_size * (1 + num_deep_layers),
            kv_shapes=tuple(KVShape(num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim) for shape in shapes),
            num_position_axes=num_position_axes,
            media_run=media_run,
            flops_per_token=2 * owner.probed.num_parameters,
            has_graphs=False,
        )
        fusion = Fusion(self._model, owner.probed.joined, attention, self._holder)
        if device.type == "meta":  # as it will be in most cases
            fusion.make(joins=True, turns=True)
            self._traits = replace(self._traits, has_graphs=has_graphs(device))
        else:
            self._try_out(fusion)

    def _try_out(self, fusion: Fusion) -> None:
        """Find what of the modules our kernels compute, and whether steps are captured. Raises `CheckpointError`."""
        with self._owner.blaming("its modules fail in a trial at start"):
            texts = compute_texts(self)
            try_fusions(fusion, lambda: check_texts(self, texts))
        reason = why_not_captured(self)
        self._traits = replace(self._traits, has_graphs=reason is None)
        if reason is not None and self.device.type != "cpu":
            logger.warning("decode steps are not captured as graphs, which makes them slow: %s", reason)

    @property
    def traits(self) -> DecoderTraits:
        return self._traits

    @property
    def needs_clean_blocks(self) -> bool:
        return self._ops.needs_clean_blocks

    def forget_blocks(self) -> None:
        self._ops.forget_blocks()

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Decoder.forward`. Tokens of all rows are one text to the modules, of which only attention looks at more
        than one token."""
        tokens = self._embedding.give(inputs)
        plans = self._plan(inputs.layout)
        with torch.no_grad(), self._holder.during(caches, plans, inputs.slot_mapping, inputs.faults, self.dtype):
            hidden = run_decoder(self._decoder, inputs.positions, **tokens)
        return hidden if wanted is None else hidden.index_select(0, wanted)

    def _plan(self, layout: RowLayout | DecodeRows) -> tuple[object, object]:
        """Return the plans of layers without a window, and of those with one. In the latter, a token of a picture sees
        those of it that follow, and of those before no more than the window has."""
        runs = layout.runs if isinstance(layout, RowLayout) else None
        if runs is None or not isinstance(layout, RowLayout):
            plan = self._ops.plan_attention(layout, windows=self._windows, device=self.device, dtype=self.dtype)
            return plan, plan
        windows = self._windows - {None}
        starts = np.repeat(layout.kv_lens - np.diff(layout.cu_seqlens_q), np.diff(layout.cu_seqlens_q))
        within = np.arange(runs.shape[1]) - np.repeat(layout.cu_seqlens_q[:-1], np.diff(layout.cu_seqlens_q))
        first = starts + within + 1 - min(window for window in windows if window is not None)
        layouts = replace(layout, runs=None), replace(layout, runs=np.stack((np.maximum(runs[0], first), runs[1])))
        kinds = frozenset[int | None]([None]), frozenset[int | None](windows)
        full, windowed = (
            self._ops.plan_attention(each, windows=kind, device=self.device, dtype=self.dtype)
            for each, kind in zip(layouts, kinds, strict=True)
        )
        return full, windowed

    @property
    def named_tokens(self) -> frozenset[int]:
        """The ids of tokens that the configuration names: the model may compute those of media otherwise than text."""
        settings = self._model.config.to_dict()
        return frozenset(value for name, value in settings.items() if "token" in name and type(value) is int)

    def compute_alone(self, ids: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [T, vocab] of one text int64 [T] as the model computes them, without our attention."""
        with torch.no_grad(), self._owner.attending_itself():
            logits: torch.Tensor = self._model(input_ids=ids[None], use_cache=False, return_dict=True).logits
        return logits[0].to(self.dtype).float()

    def compute_whole(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return hidden states [T, hidden] behind the last norm of one prompt with media, as the whole model computes
        them of its processor's `inputs`, without our attention."""
        seen: list[torch.Tensor] = []
        hook = self._decoder.register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
        try:
            with torch.no_grad(), self._owner.attending_itself():
                without_head(self._model)(**inputs, use_cache=False, return_dict=True)
        finally:
            hook.remove()
        return seen[0][0]

    def warm_up(self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor) -> None:
        self.logits(self.forward(inputs, caches, wanted))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocab] of hidden states [N, hidden]: those that the model makes of its decoder's output."""
        with torch.no_grad():
            logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False, return_dict=True).logits
        return logits[0].to(self.dtype)
